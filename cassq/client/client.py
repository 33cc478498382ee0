"""The client: queues of one place, and what its pushers and poppers have in common."""

from __future__ import annotations

import atexit
import logging
import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Unpack

from cassq.base import extras
from cassq.base.arguments import refuse_pickling
from cassq.base.clock import Clock
from cassq.base.counters import Tallies, Tally
from cassq.base.housekeeper import Housekeeper, Tend
from cassq.client.embedded import Embedded, default_group
from cassq.client.offline import Offline
from cassq.client.queue import Queue
from cassq.client.spool import Spool
from cassq.consumer.attendance import LOOK_SECONDS, Attendance
from cassq.doorbell import Doorbell
from cassq.errors import (
    BackendError,
    CassqError,
    ClosedError,
    QueueExistsError,
    QueueNotFoundError,
    UsageError,
    is_outage,
)
from cassq.inspect.explain import Explanation, explain
from cassq.inspect.metrics import Meter
from cassq.inspect.troubles import NOTE_SECONDS, Notebook
from cassq.lifecycle.ports import Life, Ports, operation
from cassq.lifecycle.retries import AppendTo, DeadLetters
from cassq.lifecycle.sealing import live_pipe
from cassq.message.batches import Batch, Intend
from cassq.message.compression import check_compression
from cassq.model.queues import (
    QueuePolicy,
    changed,
    check_queue_name,
    differences,
    is_dead_letter_name,
)
from cassq.model.rows import Claim, GroupRow, QueueRow
from cassq.popper import Popper
from cassq.producer.pusher import Pusher
from cassq.producer.spilling import Overflow
from cassq.reaper import Action, Reaper
from cassq.settings import QueueSettings

if TYPE_CHECKING:
    from cassq.inspect.prometheus import PrometheusServer

logger: logging.Logger = logging.getLogger("cassq")

REAP_SECONDS = 1.0
REFRESH_SECONDS = 0.25
# After a pass all rest for so many times as long as it took: it may cost a fiftieth of one core.
REAP_REST = 50
REAP_REST_SECONDS_MAX = 10.0
# Held by the client that reaps in passing, from its pass until the next is due.
PASSING_LEASE = "reaper:passing"

_PASSWORD = re.compile(r"(//[^:/@]*:)[^/]*@")
_TOKEN = re.compile(r"(\bsidecar_token=)[^&]*")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_of_the_parent: list[object] = []


class _Online:
    """What works with the ports of a client."""

    def __init__(self, ports: Ports, append_to: AppendTo) -> None:
        self.ports = ports
        self.attendance = Attendance(ports)
        self.dead_letters = DeadLetters(ports, append_to)
        self.reaper = Reaper(ports, self.dead_letters.bury)

    def opened(self) -> _Online:
        return self


class Client:
    """Queues of one place. Thread-safe; not to be used after a fork.

    place: one that is open, or that the spool's thread opens as soon as a server answers. spool:
    what takes pushes while no quorum answers, if there is one.
    """

    def __init__(
        self,
        url: str,
        place: Embedded | Offline,
        clock: Clock,
        spool: Spool | None = None,
    ) -> None:
        self.url = url
        self.spool = spool
        self.clock: Clock = clock
        self.life: Life = place.life
        self._life = place.life
        self._place = place
        self._state: _Online | Offline = (
            place if isinstance(place, Offline) else _Online(place.ports, self._append_to)
        )
        self._doorbells: dict[str, Doorbell] = {}
        self._housekeeper = Housekeeper(clock)
        # Has a task called in so many seconds at the latest.
        self.hurry: Callable[[Tend, float], None] = self._housekeeper.hurry
        # Beside it: what the housekeeper does may wait for long, and so would a new setting.
        self._settings = Housekeeper(clock, "settings")
        self._open: dict[Pusher | Popper, Queue] = {}
        self._closing = False
        self._letter_pushers: dict[str, Pusher] = {}
        self._tallies = Tallies()
        self._notebook = Notebook(clock)
        self._servers: list[PrometheusServer] = []
        _clients.add(self)
        if spool is not None:
            spool.start(self._reach, lambda row: Queue(self, row).forwarding_pusher())

    def _reach(self) -> Ports:
        """The ports, opened if need be: for the spool's thread, which tries again and again.

        Raises BackendError while no server answers.
        """
        if isinstance(self._state, Offline):
            self._state = _Online(self._state.open().ports, self._append_to)
        return self._state.ports

    @property
    def ports(self) -> Ports:
        """The backends; BackendUnavailableError while no server has answered yet."""
        return self._state.opened().ports

    @property
    def overflow(self) -> Overflow | None:
        """Where pushes to ap queues go while no quorum answers, if anywhere."""
        return None if self.spool is None else self.spool.overflow

    @property
    def reaper(self) -> Reaper:
        """The reaper's passes; BackendUnavailableError while no server has answered yet."""
        return self._state.opened().reaper

    # --- queues ---------------------------------------------------------------------------------

    @operation
    def create_queue(self, name: str, **policy: Unpack[QueueSettings]) -> Queue:
        """Make a queue with its group `default`; the settings are those of `QueuePolicy`.

        A queue that exists with the same settings is returned. Raises QueueExistsError, which names
        the differences, when it has other settings.
        """
        return self._create(check_queue_name(name), policy)

    def _create(self, name: str, policy: QueueSettings) -> Queue:
        catalog, ids = self.ports.catalog, self.ports.ids
        new = changed(QueuePolicy(), policy)
        check_compression(new.compression)
        now_ms = catalog.now_ms()
        row = QueueRow(ids.new(now_ms), name, new, version=1, groups_version=1)
        if catalog.queues.create(row, default_group(row.id, ids, now_ms)):
            return Queue(self, row)
        existing = catalog.queues.named(name)
        if existing is None:
            return self._create(name, policy)  # deleted this moment
        found = differences(existing.policy, new)
        if found:
            told = ", ".join(f"{k} is {old!r}, not {new!r}" for k, (old, new) in found.items())
            raise QueueExistsError(f"queue {name!r} exists: {told}", differences=found)
        return Queue(self, existing)

    @operation
    def queue(self, name: str) -> Queue:
        """The queue of that name; QueueNotFoundError when there is none."""
        return self._named(name)

    def _named(self, name: str) -> Queue:
        if not isinstance(name, str) or "~" not in name:  # dead letters have longer names
            check_queue_name(name)
        row = self.spool.named(name, self._row_of) if self.spool else self._row_of(name)
        if row is None:
            check_queue_name(name.replace("~", "."))
            raise QueueNotFoundError(f"there is no queue {name!r}")
        return Queue(self, row)

    def _row_of(self, name: str) -> QueueRow | None:
        return self.ports.catalog.queues.named(name)

    @operation
    def queues(self, prefix: str = "") -> list[Queue]:
        """The queues whose name begins with `prefix`, by name; dead letters among them."""
        return [Queue(self, row) for row in self.ports.catalog.queues.listed(prefix)]

    @operation
    def queue_of_pipe(self, pipe_id: str) -> Queue:
        """The queue that a pipe belongs to; UsageError when there is no such pipe, or it is
        retired. Cost: two reads."""
        pipe = live_pipe(self.ports.catalog, pipe_id)
        row = None if pipe is None else self.ports.catalog.queues.by_id(pipe.queue_id)
        if row is None or row.deleted:
            raise UsageError(
                f"there is no pipe {pipe_id!r}",
                hint="`cassq pipe list QUEUE` lists those of a queue that are not retired",
            )
        return Queue(self, row)

    @operation
    def explain(self, message_id: str) -> Explanation:
        """Where a message is for every group, what happened to it, what happens next and when.

        Raises UsageError for what is no id, MessageNotFoundError for one that no queue knows.
        Cost: see `cassq.inspect.explain`.
        """
        return explain(self.ports, message_id)

    @operation
    def delete_queue(self, name: str) -> None:
        """Remove a queue with its messages, groups and dead letters, durably and for ever."""
        row = self._named(name).row
        doomed = [row]
        if not is_dead_letter_name(name):
            doomed += self.ports.catalog.queues.listed(f"{name}~")
        watching: set[Queue] = set()
        for queue in doomed:
            self._letter_pushers.pop(queue.name, None)
            for thing, owner in list(self._open.items()):
                if owner.name == queue.name:
                    self._open.pop(thing)
                    self._housekeeper.remove(thing.tend)
                    watching.add(owner)
            self.ports.store.drop(self.ports.catalog.queues.delete(queue.id))
        for owner in watching:
            owner.refresh()  # their users learn of it at the next call
            self._settings.remove(owner.refresh)
        self.reaper.reap(only=("sweep",))

    @operation
    def serve_metrics(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        queues: bool = True,
        health: Callable[[], Mapping[str, Any]] | None = None,
    ) -> PrometheusServer:
        """Serve metrics for Prometheus at http://host:port/ until the client is closed.

        port: 0 for any that is free; the answer's `port` tells. queues: whether the depths of all
        queues are told as well, at the cost of `Queue.stats` for each at every scrape. health: the
        facts of /health, of which "healthy" makes it 200 or 503; without them it is 404.
        Raises MissingExtraError without the extra `metrics`, and ConfigError for an address that
        cannot be listened at.
        """
        with extras.wanted("metrics need", "prometheus-client", "metrics"):
            from cassq.inspect.prometheus import PrometheusServer
        reach, requests = (lambda: self.ports), self._place.requests
        meter = Meter(reach, requests, self._tallies, self._actions, queues=queues)
        server = PrometheusServer(meter.read, host, port, health)
        self._servers.append(server)
        return server

    def _actions(self) -> Mapping[tuple[str, str], int]:
        return {} if isinstance(self._state, Offline) else self._state.reaper.counts()

    @operation
    def reap(self, queues: Iterable[str] | None = None, *, dry_run: bool = False) -> list[Action]:
        """Run the reaper's passes once, over the queues of these names or all there are; what was
        done, each with `verb`, `subject`, `queue`, `outcome` and `detail`.

        dry_run: say what would be done, and do nothing. Only a second call, a lease later, can tell
        that a pusher stands still. Raises QueueNotFoundError. Cost with nothing to do: one query a
        pass, whatever the number of queues.
        """
        rows = None if queues is None else [self._named(name).row for name in queues]
        return self.reaper.reap(rows, dry_run=dry_run)

    # --- what queues and poppers ask of their client ------------------------------------------

    def doorbell(self, queue_id: str) -> Doorbell:
        """The bell of a queue."""
        bell = self._doorbells.get(queue_id)
        if bell is None:
            bell = self._doorbells[queue_id] = self._place.doorbell(queue_id)
        return bell

    def bury(self, queue: QueueRow, group: GroupRow, claim: Claim) -> bool:
        """How a spent message becomes a dead letter: see `Bury`."""
        return self._state.opened().dead_letters.bury(queue, group, claim)

    def call_soon(self, tend: Tend) -> None:
        """Have `tend` called now. Takes no lock: for a signal's handler."""
        self._housekeeper.call_soon(tend)

    def look_after(self, tend: Tend, first: float) -> None:
        """Have the housekeeper call `tend`, first in so many seconds."""
        self._housekeeper.add(self._reap_in_passing, REAP_SECONDS)
        self._housekeeper.add(tend, first)

    def keep_fresh(self, refresh: Tend, first: float) -> None:
        """Have settings read anew by `refresh`, first in so many seconds."""
        self._settings.add(refresh, first)

    def changed(self, row: QueueRow | GroupRow) -> None:
        """Settings were changed by this client: its pushers and poppers go by them from now on."""
        for queue in set(self._open.values()):
            queue.take_up(row)

    def attend(self, group_id: str, tally: Tally) -> None:
        """Note from now on that a popper of that group is there."""
        attendance = self._state.opened().attendance
        attendance.add(group_id, tally)
        self.look_after(attendance.tend, LOOK_SECONDS)

    def opened(self, thing: Pusher | Popper, queue: Queue) -> None:
        """Remember what to close; refuse it, closed, while the client is being closed: but poppers
        that are closed with it may have dead letters to put away."""
        if self._closing and not is_dead_letter_name(queue.name):
            thing.close_inside()
            raise ClosedError("this client is being closed")
        for old in [old for old in list(self._open) if old.closed]:  # other threads open some, too
            owner = self._open.pop(old, None)
            self._housekeeper.remove(old.tend)
            if owner is not None and owner not in self._open.values():
                self._settings.remove(owner.refresh)
        self._tallies.add(queue.name, thing.tally)
        self._notebook.add(queue.id, thing.tally)
        self.look_after(self._note, NOTE_SECONDS)
        self._open[thing] = queue
        self.keep_fresh(queue.refresh, REFRESH_SECONDS)

    def own_queue(self, name: str, **policy: Unpack[QueueSettings]) -> Queue:
        """A queue of cassq's own, as of dead letters, made when it is first needed."""
        row = self.ports.catalog.queues.named(name)
        return Queue(self, row) if row else self._create(name, policy)

    def _note(self) -> float:
        return self._notebook.tend(self.ports)

    def _append_to(self, name: str, batch: Batch, intend: Intend) -> None:
        """Push one dead letter, to a queue made when it is first needed."""
        pusher = self._letter_pushers.get(name)
        if pusher is not None and not pusher.closed:
            try:
                pusher.push_intended(batch, intend)
                return
            except QueueNotFoundError:
                logger.warning("queue %s was deleted: it is made anew for a dead letter", name)
        pusher = self._letter_pushers[name] = self.own_queue(name).new_pusher()
        pusher.push_intended(batch, intend)

    def _reap_in_passing(self) -> float:
        """Every pass, by one client at a time; the longer it took, the later the next."""
        lease_ms = round(REAP_SECONDS * 1000)
        if not self._open:
            return REAP_SECONDS
        catalog, owner, clock = self.ports.catalog, self.ports.ids.client, self.clock
        if catalog.leases.take(PASSING_LEASE, owner, lease_ms) is None:
            return REAP_SECONDS
        began_ms = clock.boot_ms()
        self.reaper.reap()
        took = (clock.boot_ms() - began_ms) / 1000
        rest = min(max(REAP_SECONDS, REAP_REST * took), REAP_REST_SECONDS_MAX)
        if rest > REAP_SECONDS:
            catalog.leases.take(PASSING_LEASE, owner, round(rest * 1000))
        return rest

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every pusher and popper, durably, and give back what is held.

        In the middle of another call of this thread, as in a signal's handler, it stops the poppers
        and closes when that call ends.
        """
        self._life.end(self._close_now, meanwhile=self._stop_poppers)

    def _stop_poppers(self) -> None:
        for thing in list(self._open):
            if isinstance(thing, Popper):
                thing.stop()

    def _close_now(self) -> None:
        self._closing = True
        self._housekeeper.stop()
        self._settings.stop()
        for server in self._servers:
            server.close()
        failure: CassqError | None = None
        queues: dict[str, Queue] = {}
        while (thing := self._next_to_close()) is not None:
            queue = self._open[thing]
            queues[queue.name] = queue
            try:
                thing.close_inside()
            except CassqError as exc:
                failure = failure or exc
            self._open.pop(thing, None)
        try:
            online = self._state.opened()
            self._notebook.close(online.ports)
            online.attendance.tend()
        except CassqError as exc:
            # Who spills has nothing to lose here.
            failure = failure or (None if self.spool and is_outage(exc) else exc)
        if self.spool is not None:
            self.spool.close()
        self._retire(queues.values())
        for bell in self._doorbells.values():
            bell.close()
        self._place.close()
        if failure is not None:
            raise failure

    def _next_to_close(self) -> Pusher | Popper | None:
        """The one opened first; those that push dead letters after all others, which may have some
        to put away."""
        things, letters = list(self._open), list(self._letter_pushers.values())
        others = (thing for thing in things if thing not in letters)
        return next(others, things[0] if things else None)

    def _retire(self, queues: Iterable[Queue]) -> None:
        """Remove what was consumed; what cannot be now is left for the next reaper."""
        for queue in queues:
            try:
                self.reaper.reap([queue.row], only=("retire",))
            except (QueueNotFoundError, BackendError) as exc:
                logger.warning("queue %s is left for the reaper: %s", queue.name, exc)

    def _forget_parent(self) -> None:
        """In a forked child: touch nothing that is the parent's, refuse every call."""
        self.life.forked = True
        for server in self._servers:
            server.abandon()
        _of_the_parent.append((self, self._place.abandon()))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling(
            "client",
            "pass its url, and call cassq.connect(url) there",
        )

    def __repr__(self) -> str:
        shown = _TOKEN.sub(r"\1...", _PASSWORD.sub(r"\1...@", self.url))
        return f"<Client {shown}>"


def _after_fork() -> None:
    for client in list(_clients):
        client._forget_parent()


def _at_exit() -> None:
    # A spool's directory is a client too, and closed by the one that spills.
    for client in sorted(_clients, key=lambda client: client.spool is None):
        try:
            client.close()
        except CassqError as exc:  # the others are to be closed all the same
            logger.warning("%r could not be closed at the end of the process: %s", client, exc)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
