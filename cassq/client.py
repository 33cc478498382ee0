"""The client: `connect(url)` picks the backends by the URL's scheme and puts them together."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from cassq.catalog.port import QueueRow
from cassq.clock import Clock, SystemClock
from cassq.compression import check_compression
from cassq.doorbell import Doorbell
from cassq.embedded import Embedded, default_group, directory_of, open_directory
from cassq.errors import (
    BackendError,
    CassqError,
    ClosedError,
    ConfigError,
    QueueExistsError,
    QueueNotFoundError,
)
from cassq.housekeeper import Housekeeper, Tend
from cassq.pipes import Batch, Intend
from cassq.popper import Popper
from cassq.pusher import Pusher
from cassq.queue import Queue
from cassq.queues import QueuePolicy, changed, check_queue_name, differences, is_dead_letter_name
from cassq.reaper import Reaper
from cassq.retries import Bury, DeadLetters

logger = logging.getLogger("cassq")

DEFAULT_URL = "file:cassq-data"
REAP_SECONDS = 1.0
_REAP_LEASE = "reaper:passing"

_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_of_the_parent: list[object] = []


def connect(
    url: str | None = None, *, durability: str | None = None, create: bool = True
) -> Client:
    """A client of the queues at `url`: `CASSQ_URL` when None, else `file:cassq-data`.

    file:DIR and file:///DIR name a local directory, made when it is not there; any number of
    threads and processes of one machine may use it at once.
    durability: "disk" (the default) syncs to disk before anything is acknowledged; "os" leaves it
    to the operating system: nothing is lost when a process dies, the last seconds may be when the
    machine does. Also as `?durability=os` in the URL.
    create: False makes a directory that is not there a ConfigError.

    Raises ConfigError for a URL or directory that cannot be used.
    """
    url = url or os.environ.get("CASSQ_URL") or DEFAULT_URL
    if not isinstance(url, str):
        raise ConfigError(f"a URL is a str, not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    rest, _, query = rest.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    durability = durability or options.pop("durability", "disk")
    clock = SystemClock()
    match scheme if colon else "":
        case "file":
            if options:
                raise ConfigError(f"the URL has an unknown option {next(iter(options))!r}")
            embedded = open_directory(directory_of(rest), clock, durability, create=create)
        case "cassandra":
            raise ConfigError(
                "cassandra: URLs are not supported by this version", hint="use file:DIR"
            )
        case _:
            raise ConfigError(
                f"{url!r} is not a URL of queues",
                hint="write file:cassq-data or file:///var/lib/cassq",
            )
    return Client(url, embedded, clock)


class Client:
    """Queues of one place. Thread-safe; not to be used after a fork."""

    def __init__(self, url: str, embedded: Embedded, clock: Clock) -> None:
        self.url = url
        self.ports = embedded.ports
        self._embedded = embedded
        self._doorbells: dict[str, Doorbell] = {}
        self._housekeeper = Housekeeper(clock)
        self._open: dict[Pusher | Popper, Queue] = {}
        self._closing = False
        self._letter_pushers: dict[str, Pusher] = {}
        self._dead_letters = DeadLetters(self.ports, self._append_to)
        self.reaper = Reaper(self.ports, self._dead_letters.bury)
        _clients.add(self)

    # --- queues ---------------------------------------------------------------------------------

    def create_queue(self, name: str, **policy: Any) -> Queue:
        """Make a queue with its group `default`; the settings are those of `QueuePolicy`.

        The same again is no error; with another policy it is QueueExistsError, which names the
        differences.
        """
        return self._create(check_queue_name(name), policy)

    def _create(self, name: str, policy: dict[str, Any]) -> Queue:
        self.ports.life.check()
        catalog, ids = self.ports.catalog, self.ports.ids
        new = changed(QueuePolicy(), policy)
        check_compression(new.compression)
        now_ms = catalog.now_ms()
        row = QueueRow(ids.new(now_ms), name, new, version=1, groups_version=1)
        if catalog.create_queue(row, default_group(row.id, ids, now_ms)):
            return Queue(self, row)
        existing = catalog.queue(name)
        if existing is None:
            return self._create(name, policy)  # deleted this moment
        found = differences(existing.policy, new)
        if found:
            told = ", ".join(f"{k} is {old!r}, not {new!r}" for k, (old, new) in found.items())
            raise QueueExistsError(f"queue {name!r} exists: {told}", differences=found)
        return Queue(self, existing)

    def queue(self, name: str) -> Queue:
        """The queue of that name; QueueNotFoundError when there is none."""
        self.ports.life.check()
        row = self.ports.catalog.queue(name) if isinstance(name, str) else None
        if row is None:
            check_queue_name(name.replace("~", ".") if isinstance(name, str) else name)
            raise QueueNotFoundError(f"there is no queue {name!r}")
        return Queue(self, row)

    def queues(self, prefix: str = "") -> list[Queue]:
        """The queues whose name begins with `prefix`, by name; dead letters among them."""
        self.ports.life.check()
        return [Queue(self, row) for row in self.ports.catalog.queues(prefix)]

    def delete_queue(self, name: str) -> None:
        """Remove a queue with its messages, groups and dead letters, durably and for ever."""
        row = self.queue(name).row
        doomed = [row]
        if not is_dead_letter_name(name):
            doomed += self.ports.catalog.queues(f"{name}~")
        for queue in doomed:
            self._letter_pushers.pop(queue.name, None)
            for thing, owner in list(self._open.items()):
                if owner.name == queue.name:
                    self._open.pop(thing)
                    self._housekeeper.remove(thing.tend)
            self.ports.store.drop(self.ports.catalog.delete_queue(queue.id))
        self.reaper.sweep()

    # --- what queues and poppers ask of their client ------------------------------------------

    def doorbell(self, queue_id: str) -> Doorbell:
        """The bell of a queue."""
        bell = self._doorbells.get(queue_id)
        if bell is None:
            bell = self._doorbells[queue_id] = self._embedded.doorbell(queue_id)
        return bell

    def bury(self) -> Bury:
        """How a spent message becomes a dead letter."""
        return self._dead_letters.bury

    def look_after(self, tend: Tend, first: float) -> None:
        """Have the housekeeper call `tend`, first in so many seconds."""
        self._housekeeper.add(self._reap_in_passing, REAP_SECONDS)
        self._housekeeper.add(tend, first)

    def hurry(self, tend: Tend, seconds: float) -> None:
        """Have `tend` called in so many seconds at the latest."""
        self._housekeeper.hurry(tend, seconds)

    def opened(self, thing: Pusher | Popper, queue: Queue) -> None:
        """Remember what to close; refuse it, closed, while the client is being closed."""
        if self._closing:
            thing.close()
            raise ClosedError("this client is being closed")
        for old in [old for old in self._open if old.closed]:
            self._open.pop(old)
            self._housekeeper.remove(old.tend)
        self._open[thing] = queue

    def _append_to(self, name: str, batch: Batch, intend: Intend) -> None:
        """Push one dead letter, to a queue made when it is first needed."""
        pusher = self._letter_pushers.get(name)
        if pusher is not None and not pusher.closed:
            try:
                return pusher.push_intended(batch, intend)
            except QueueNotFoundError:
                logger.warning("queue %s was deleted: it is made anew for a dead letter", name)
        row = self.ports.catalog.queue(name)
        queue = Queue(self, row) if row else self._create(name, {})
        pusher = self._letter_pushers[name] = queue.pusher()
        return pusher.push_intended(batch, intend)

    def _reap_in_passing(self) -> float:
        """The urgent passes over this client's own queues, by one client at a time."""
        lease_ms = round(REAP_SECONDS * 1000)
        catalog, owner = self.ports.catalog, self.ports.ids.client
        rows = {queue.name: queue for queue in self._open.values()}
        if rows and catalog.take_lease(_REAP_LEASE, owner, lease_ms) is not None:
            self.reaper.reap([queue.row for queue in rows.values()])
        return REAP_SECONDS

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every pusher and popper, durably, and give back what is held."""
        if self.ports.life.forked or self.ports.life.closed:
            return
        self._closing = True
        self._housekeeper.stop()
        failure: CassqError | None = None
        queues: dict[str, Queue] = {}
        while self._open:
            thing, queue = self._open.popitem()
            queues[queue.name] = queue
            try:
                thing.close()
            except CassqError as exc:
                failure = failure or exc
        self._retire(queues.values())
        for bell in self._doorbells.values():
            bell.close()
        self.ports.locker.close()
        self.ports.store.close()
        self.ports.life.closed = True
        self.ports.catalog.close()
        if failure is not None:
            raise failure

    def _retire(self, queues: Iterable[Queue]) -> None:
        """Remove what was consumed; what cannot be now is left for the next reaper."""
        for queue in queues:
            try:
                self.reaper.retire(queue.row)
            except (QueueNotFoundError, BackendError) as exc:
                logger.warning("queue %s is left for the reaper: %s", queue.name, exc)

    def _forget_parent(self) -> None:
        """In a forked child: touch nothing that is the parent's, refuse every call."""
        self.ports.life.forked = True
        _of_the_parent.append((self, self._embedded.abandon()))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.url}>"


def _after_fork() -> None:
    for client in list(_clients):
        client._forget_parent()


def _at_exit() -> None:
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
