"""A cluster: servers of one kind that belong together, each on a loopback address of its own."""

from __future__ import annotations

import abc
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Generic, Self, TypeVar

from cassq.base.clock import Stopwatch
from tests.servers.parts.addresses import Subnet, claim_subnet
from tests.servers.parts.errors import ServerFailedError
from tests.servers.parts.network import Guest, Network
from tests.servers.parts.node import START_SECONDS_MAX, Node, pause

_POLL_SECONDS = 0.1
_HOME_PREFIX = "cassq-servers."
_OWNER = "owner"
_YOUNG_SECONDS = 60.0

N = TypeVar("N", bound=Node)


class Cluster(abc.ABC, Generic[N]):
    """Servers that start and end together; a context manager that always ends them.

    Without `home` the files are in a fresh temporary directory, gone with the cluster; a `home`
    that is given stays, and a cluster that finds data there goes on with them, if it has the same
    `subnet`: nodes are known by their addresses. Without `subnet` it is one that no other cluster
    has. With `partitions` each node has a network namespace of its own instead, and `partition`
    can cut them apart; so it is `beside` a cluster that runs and has them, on one network with it.
    """

    kind: ClassVar[str]
    port: ClassVar[int]
    nodes_max: ClassVar[int] = 5

    def __init__(
        self,
        nodes: int,
        *,
        home: Path | None = None,
        subnet: str | None = None,
        partitions: bool = False,
        beside: Cluster[Any] | None = None,
    ) -> None:
        if (partitions or beside) and subnet is not None:
            raise ValueError("with partitions the subnet cannot be chosen")
        if not 1 <= nodes <= self.nodes_max:
            raise ValueError(f"{self.kind} has 1 to {self.nodes_max} nodes here, not {nodes}")
        self.size = nodes
        self.nodes: list[N] = []
        self._wanted_home = home
        self._wanted_subnet = subnet
        self._partitions = partitions
        self._beside = beside
        self._subnet: Subnet | None = None
        self._network: Network | None = None
        self._first = 1  # the number that its first node has on the network
        self._owner: IO[bytes] | None = None
        self.home = Path()

    # --- what each kind says --------------------------------------------------------------------

    @abc.abstractmethod
    def find(self) -> None:
        """Look for all that is needed, fetching jars; raises MissingServerError."""

    @abc.abstractmethod
    def make_nodes(self, addresses: Sequence[str]) -> list[N]:
        """The nodes at these addresses, not started, each with a directory below `home`."""

    @abc.abstractmethod
    def whole(self) -> bool:
        """Whether all nodes, each of which answers, see one another."""

    def help_along(self) -> None:
        """What an administrator would do for a cluster that does not become whole by itself."""

    @abc.abstractmethod
    def url(self, path: str = "cassq") -> str:
        """The address as cassq takes it."""

    # --- life -----------------------------------------------------------------------------------

    def start(self, seconds: float = START_SECONDS_MAX) -> Self:
        """Start all nodes at once and wait until they are one cluster.

        Raises MissingServerError, or ServerFailedError with the end of a log; nothing runs then.
        """
        self.find()
        try:
            self._make_home()
            self.nodes = self.make_nodes(self._make_addresses())
            for at, node in enumerate(self.nodes):
                node.entry = self._network.entry(self._first + at) if self._network else []
            for node in self.nodes:
                node.spawn()
            self.await_ready(seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def await_ready(self, seconds: float = START_SECONDS_MAX) -> None:
        """Return when every node answers and sees all others. Raises ServerFailedError."""
        watch = Stopwatch()
        for node in self.nodes:
            node.await_ready(seconds - watch.seconds())
        while not self.whole():
            self.help_along()
            if watch.seconds() > seconds:
                raise ServerFailedError(
                    f"{self.kind}: the {self.size} nodes did not become one cluster within"
                    f" {seconds:.0f} s\n{self.nodes[0].log_tail()}"
                )
            pause(_POLL_SECONDS)

    def mend(self) -> None:
        """Heal what is cut, resume what is paused, start what is down, and wait for the whole."""
        if self._network is not None:
            self._network.heal()
        for node in self.nodes:
            if node.alive:
                node.resume()
            else:
                node.spawn()
        self.await_ready()

    def stop(self) -> None:
        """End every node by its id and remove what is temporary. Harmless when done twice.

        Nodes whose files stay are ended politely, so that they lose nothing; others are killed.
        """
        for node in self.nodes:
            if self._wanted_home is None:
                node.kill()
            else:
                node.stop()
        if self._subnet is not None:
            self._subnet.release()
        if self._network is not None and self._beside is None:
            self._network.stop()
        if self._owner is not None:
            self._owner.close()
            if self._wanted_home is None:
                shutil.rmtree(self.home, ignore_errors=True)

    def _make_addresses(self) -> list[str]:
        if self._beside is not None:
            self._network = self._beside._cuttable()
            self._first = len(self._network.addresses) + 1
            return self._network.grow(self.size)
        if self._partitions:
            self._network = Network(self.home)
            self._network.start()
            return self._network.grow(self.size)
        self._subnet = claim_subnet(self._wanted_subnet)
        return self._subnet.addresses(self.size)

    def _make_home(self) -> None:
        if self._wanted_home is None:
            sweep()
            self.home = Path(tempfile.mkdtemp(prefix=_HOME_PREFIX))
        else:
            self.home = self._wanted_home.absolute()
            self.home.mkdir(parents=True, exist_ok=True)
        self._owner = (self.home / _OWNER).open("ab")
        try:
            fcntl.flock(self._owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ServerFailedError(f"another cluster runs in {self.home}") from error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- partitions -----------------------------------------------------------------------------

    def partition(self, *numbers: int) -> None:
        """Cut these nodes off from all others, both ways; clients still reach every node.

        Raises ValueError for a cluster without `partitions`.
        """
        others = [each for each in range(1, self.size + 1) if each not in numbers]
        for number in numbers:
            here = self._on_network(number)
            for other in others:
                self._cuttable().cut(here, self._on_network(other))

    def part(self, number: int, other: Cluster[Any]) -> None:
        """Cut a node off from all nodes of a cluster that is on the same network, both ways.

        Raises ValueError for one that is not.
        """
        if other._cuttable() is not self._cuttable():
            raise ValueError(f"this {self.kind} cluster is not on one network with {other.kind}")
        for there in range(1, other.size + 1):
            self._cuttable().cut(self._on_network(number), other._on_network(there))

    def guest(self) -> Guest:
        """A place for clients on the network of the nodes, which may be cut off from single ones.

        Raises ValueError for a cluster without `partitions`.
        """
        return self._cuttable().guest()

    def hide_from(self, guest: Guest, *numbers: int) -> None:
        """Cut these nodes off from the clients of one place, both ways; others reach them."""
        for number in numbers:
            self._cuttable().cut(self._on_network(number), guest.number)

    def hide(self, *numbers: int) -> None:
        """Cut these nodes off from all clients but guests, both ways; they still reach each other.

        Raises ValueError for a cluster without `partitions`.
        """
        for number in numbers:
            self._cuttable().hide(self._on_network(number))

    def heal(self) -> None:
        """Undo every cut, of the whole network. The nodes find each other again within some
        seconds."""
        self._cuttable().heal()

    def _on_network(self, number: int) -> int:
        """The number of a node there. Raises ValueError for a node that is none."""
        self.node(number)
        return self._first + number - 1

    @property
    def can_be_cut(self) -> bool:
        """Whether its network is one that can be; once it was started."""
        return self._network is not None

    def _cuttable(self) -> Network:
        if self._network is None:
            raise ValueError(f"this {self.kind} cluster was made without partitions")
        return self._network

    # --- looking --------------------------------------------------------------------------------

    def node(self, number: int) -> N:
        """The node of this number; they count from 1, as their addresses do."""
        if not 1 <= number <= len(self.nodes):
            raise ValueError(f"{self.kind} has nodes 1 to {len(self.nodes)}, not {number}")
        return self.nodes[number - 1]

    @property
    def contact_points(self) -> list[str]:
        """The addresses of all nodes."""
        return [node.address for node in self.nodes]

    def status(self) -> dict[str, Any]:
        """What `status` shows, and `up` prints."""
        return {
            "kind": self.kind,
            "url": self.url(),
            "contact_points": self.contact_points,
            "port": self.port,
            "home": str(self.home),
            "nodes": [node.status() for node in self.nodes],
        }


def sweep() -> None:
    """Remove the temporary directories whose owners were killed: nobody holds their lock."""
    for place in Path(tempfile.gettempdir()).glob(f"{_HOME_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or swept by another process
            if place.stat().st_uid != os.getuid():
                continue
            # A young one may be about to be locked.
            if time.time() - place.stat().st_mtime < _YOUNG_SECONDS:
                continue
            with (place / _OWNER).open("ab") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place, ignore_errors=True)
