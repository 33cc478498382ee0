"""A network that can be cut: every node in a network namespace of its own, on one bridge.

The bridge is in a namespace too, with one link to this machine's network, through which clients
reach all nodes. The namespaces have no names: each lives as long as the process that holds it,
which ends with ours, and takes its links along. So nothing is left, however the tests end.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cassq.base.clock import Stopwatch
from tests.servers.parts.errors import MissingServerError, ServerFailedError
from tests.servers.parts.node import keep, pause

_TOOLS = ("ip", "unshare", "nsenter")
# Where Debian keeps `ip` away from users.
_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
_TRIES_MAX = 20
_HOLD_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.01
_OUTSIDE = 254


def can_partition() -> bool:
    """Whether clusters with `partitions` can be had here; `obstacle` says why not."""
    return not obstacle()


@functools.cache
def obstacle() -> str:
    """What stands in the way of namespaces and virtual links; "" if nothing.

    Cost: some processes, once. It makes a namespace and a link to it, and removes both.
    """
    for tool in _TOOLS:
        if shutil.which(tool, path=_PATH) is None:
            return f"{tool} is not installed (Debian and Ubuntu: apt install iproute2 util-linux)"
    if os.geteuid() != 0:
        return "only root may make network namespaces that this machine's network reaches"
    name = f"cqp{os.getpid()}"
    try:
        _run("unshare", "--net", "ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}x")
        _run("ip", "link", "del", name)
    except ServerFailedError as error:
        return str(error)
    return ""


@dataclass(frozen=True, slots=True)
class Guest:
    """A place on the network for clients, in a namespace that is none of a node. number: there.
    space: the file that stands for the namespace; see setns(2)."""

    number: int
    space: str


class Network:
    """The namespaces of nodes, numbered from 1, and the cuts between them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.addresses: list[str] = []
        self._holders: list[subprocess.Popen[bytes]] = []
        self._hub = 0
        self._prefix = ""
        self._spaces: list[int] = []
        self._cuts: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Make everything. Raises MissingServerError where it cannot be had."""
        if why := obstacle():
            raise MissingServerError(f"no network partitions: {why}")
        try:
            self._hub = self._hold()
            self._inside(self._hub, "link", "add", "br0", "type", "bridge")
            self._inside(self._hub, "link", "set", "br0", "up")
            self._prefix = self._link_outside()
        except BaseException:
            self.stop()
            raise

    def grow(self, nodes: int) -> list[str]:
        """Plug so many nodes more in: their addresses. They are numbered on."""
        for _ in range(nodes):
            number = len(self.addresses) + 1
            self.addresses.append(f"{self._prefix}.{number}")
            self._spaces.append(self._hold())
            self._link(number, self.addresses[-1])
        return self.addresses[len(self.addresses) - nodes :]

    def guest(self) -> Guest:
        """A place for clients that can be cut off from single nodes."""
        self.grow(1)
        return Guest(len(self.addresses), _namespace(self._spaces[-1]))

    def stop(self) -> None:
        """End the holders, and with them the namespaces. Harmless when done twice."""
        for holder in self._holders:
            holder.terminate()  # the kernel ends its child with it
        for holder in self._holders:
            holder.wait()
        self._holders.clear()

    def entry(self, number: int) -> list[str]:
        """What the command of a node begins with to run in its namespace."""
        tool = shutil.which("nsenter", path=_PATH) or "nsenter"
        return [tool, f"--net={_namespace(self._spaces[number - 1])}", "--"]

    def cut(self, one: int, other: int) -> None:
        """Let no packet pass between two nodes, either way; harmless when there is a cut."""
        for here, there in ((one, other), (other, one)):
            if (here, there) not in self._cuts:
                self._route("add", here, there)
                self._cuts.add((here, there))

    def hide(self, number: int) -> None:
        """Let no packet pass between a node and this machine's network: what comes in is not
        answered. Harmless when it is so."""
        if (number, _OUTSIDE) not in self._cuts:
            self._route("add", number, _OUTSIDE)
            self._cuts.add((number, _OUTSIDE))

    def heal(self) -> None:
        """Undo every cut."""
        for here, there in sorted(self._cuts):
            self._route("del", here, there)
            self._cuts.discard((here, there))

    # --- how ------------------------------------------------------------------------------------

    def _route(self, what: str, here: int, there: int) -> None:
        host = f"{self._prefix}.{there}/32"
        self._inside(self._spaces[here - 1], "route", what, "blackhole", host)

    def _hold(self) -> int:
        """A fresh namespace: the id of the process that lives in it."""
        with (self.home / "network.log").open("ab") as log:
            holder, pid = keep(["unshare", "--net", "sleep", "infinity"], self.home, log)
        self._holders.append(holder)
        watch = Stopwatch()
        while not pid or _space(pid) in (None, _space(os.getpid())):
            if not pid or holder.poll() is not None or watch.seconds() > _HOLD_SECONDS_MAX:
                raise ServerFailedError(f"no namespace: {(self.home / 'network.log').read_text()}")
            pause(_POLL_SECONDS)
        self._inside(pid, "link", "set", "lo", "up")
        return pid

    def _link_outside(self) -> str:
        """Link the bridge to this machine; the prefix of a subnet that nobody else has.

        Of the range that is set aside for tests of networks, so it is nobody's real one. The
        name of the link stands for the subnet: who could make it has it.
        """
        for _ in range(_TRIES_MAX):
            second, third = random.choice((18, 19)), random.randint(0, 255)
            name = f"cq{second}x{third}"
            peer = ("peer", "name", "uplink", "netns", str(self._hub))
            try:
                _run("ip", "link", "add", name, "type", "veth", *peer)
            except ServerFailedError:
                continue
            self._inside(self._hub, "link", "set", "uplink", "master", "br0", "up")
            _run("ip", "addr", "add", f"198.{second}.{third}.{_OUTSIDE}/24", "dev", name)
            _run("ip", "link", "set", name, "up")
            return f"198.{second}.{third}"
        raise ServerFailedError(f"no free subnet in {_TRIES_MAX} tries")

    def _link(self, number: int, address: str) -> None:
        """Plug a node's namespace into the bridge."""
        space = self._spaces[number - 1]
        peer = ("peer", "name", "eth0", "netns", str(space))
        self._inside(self._hub, "link", "add", f"port{number}", "type", "veth", *peer)
        self._inside(self._hub, "link", "set", f"port{number}", "master", "br0", "up")
        self._inside(space, "addr", "add", f"{address}/24", "dev", "eth0")
        self._inside(space, "link", "set", "eth0", "up")

    def _inside(self, space: int, *words: str) -> None:
        _run("nsenter", f"--net={_namespace(space)}", "ip", *words)


def _namespace(pid: int) -> str:
    return f"/proc/{pid}/ns/net"


def _space(pid: int) -> str | None:
    """What tells a process's namespace from others; None when the process is gone."""
    try:
        return os.readlink(_namespace(pid))
    except OSError:
        return None


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": _PATH}
    )
    if done.returncode:
        raise ServerFailedError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
