"""The client: opens the queues and schedules of one URL, and closes what was opened."""

from __future__ import annotations

import atexit
import logging
import os
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Unpack

from cassq import extras
from cassq.base.arguments import check_text, refuse_pickling
from cassq.base.clock import Clock
from cassq.client.backends.embedded import Embedded
from cassq.client.backends.opening import row_named
from cassq.client.backends.rebuilt import rebuilt_at
from cassq.client.queue import Queue, create_queue, own_queue
from cassq.client.runtime import Offline, Openable, Runtime
from cassq.client.schedule import (
    Schedule,
    create_schedule,
    find_schedule,
    schedules_of,
    wanted_schedule,
)
from cassq.client.spool import Spool
from cassq.client.watched import WatchedQueue
from cassq.errors import (
    BackendError,
    CassqError,
    QueueNotFoundError,
    UsageError,
    is_outage,
)
from cassq.inspect.explain import Explanation, explain
from cassq.inspect.metrics import Histogram, Meter, Metric
from cassq.lifecycle.ports import Ports, operation
from cassq.lifecycle.sealing import live_pipe
from cassq.message.batches import Batch, Intend
from cassq.model.queues import (
    check_queue_name,
    is_dead_letter_name,
)
from cassq.model.rows import QueueRow
from cassq.popper import Popper
from cassq.producer.pusher import Pusher
from cassq.reaper import Action, Reaper
from cassq.settings import Missed, Overlap, QueueSettings

if TYPE_CHECKING:
    from cassq.inspect.prometheus import PrometheusServer, Read

logger: logging.Logger = logging.getLogger("cassq")

_PASSWORD = re.compile(r"(//[^:/@]*:)[^/]*@")
_TOKEN = re.compile(r"(\bsidecar_token=)[^&]*")

_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_of_the_parent: list[object] = []


class Client:
    """Gives access to the queues of one URL. Thread-safe; must not be used after a fork.

    place: already open, or opened by the spool's thread as soon as a server answers. spool: if
    given, takes pushes while no quorum answers.
    """

    runtime_class: ClassVar[type[Runtime]] = Runtime

    def __init__(
        self,
        url: str,
        place: Embedded | Offline,
        clock: Clock,
        spool: Spool | None = None,
    ) -> None:
        self.url = url
        self.spool = spool
        self.runtime: Runtime = self.runtime_class(
            place,
            clock,
            None if spool is None else spool.overflow,
            self._append_to,
            self._push_to,
        )
        self._life = self.runtime.life
        self._letter_pushers: dict[str, Pusher] = {}
        self._tick_pushers: dict[str, Pusher] = {}  # by queue id
        self._servers: list[PrometheusServer] = []
        _clients.add(self)
        if spool is not None:
            spool.start(
                self.runtime.reach, lambda row: Queue(self.runtime, row).forwarding_pusher()
            )

    @property
    def ports(self) -> Ports:
        """The backends; BackendUnavailableError while no server has answered yet."""
        return self.runtime.ports

    @property
    def reaper(self) -> Reaper:
        """The reaper's passes; BackendUnavailableError while no server has answered yet."""
        return self.runtime.online().reaper

    # --- queues ---------------------------------------------------------------------------------

    @operation
    def create_queue(self, name: str, **policy: Unpack[QueueSettings]) -> Queue:
        """Create a queue with its group `default`; the settings are the fields of `QueuePolicy`.

        If the queue exists with the same settings, returns it. Raises QueueExistsError, which names
        the differences, if it has other settings.
        """
        return create_queue(self.runtime, check_queue_name(name), policy)

    @operation
    def queue(self, name: str) -> Queue:
        """The queue with this name. Raises QueueNotFoundError if it does not exist."""
        return self._named(name)

    def _named(self, name: str) -> Queue:
        def find(named: str) -> QueueRow | None:
            return self.spool.named(named, self._row_of) if self.spool else self._row_of(named)

        return Queue(self.runtime, row_named(name, find))

    def _row_of(self, name: str) -> QueueRow | None:
        return self.ports.catalog.queues.named(name)

    @operation
    def queues(self, prefix: str = "") -> list[Queue]:
        """The queues whose names begin with `prefix`, by name, including dead-letter queues."""
        check_text("prefix", prefix)
        return [Queue(self.runtime, row) for row in self.ports.catalog.queues.listed(prefix)]

    @operation
    def queue_of_pipe(self, pipe_id: str) -> Queue:
        """The queue that a pipe belongs to. Raises UsageError if the pipe does not exist or was
        retired. Cost: two reads."""
        pipe = live_pipe(self.ports.catalog, pipe_id)
        row = None if pipe is None else self.ports.catalog.queues.by_id(pipe.queue_id)
        if row is None or row.deleted:
            raise UsageError(
                f"there is no pipe {pipe_id!r}",
                hint="`cassq pipe list QUEUE` lists the pipes of a queue that are not retired",
            )
        return Queue(self.runtime, row)

    @operation
    def explain(self, message_id: str) -> Explanation:
        """The state of a message for every group, what happened to it, and what happens next and
        when.

        Raises UsageError for an invalid id, and MessageNotFoundError if no queue knows the message.
        Cost: see `cassq.inspect.explain`.
        """
        return explain(self.ports, message_id)

    @operation
    def delete_queue(self, name: str) -> None:
        """Delete a queue permanently, with its messages, groups, dead letters and schedules. The
        deletion is durable on return."""
        row = self._named(name).row
        doomed = [row]
        if not is_dead_letter_name(name):
            doomed += self.ports.catalog.queues.listed(f"{name}~")
        watching: set[WatchedQueue] = set()
        for queue in doomed:
            self._letter_pushers.pop(queue.name, None)
            self._tick_pushers.pop(queue.id, None)
            watching |= self.runtime.forget([queue.name])
            self.ports.store.drop(self.ports.catalog.queues.delete(queue.id))
        for watched in watching:
            watched.refresh()  # pushers and poppers learn of it at their next call
            self.runtime.settings.remove(watched.refresh)
        for schedule in schedules_of(self.runtime, row.id):
            schedule.drop(row.id)
        self.reaper.reap(only=("sweep",))

    # --- schedules ------------------------------------------------------------------------------

    @operation
    def create_schedule(
        self,
        name: str,
        queue: str,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        tz: str = "UTC",
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        missed: Missed = "once",
        overlap: Overlap = "allow",
        priority: int = 0,
    ) -> Schedule:
        """Create a schedule: at each of its ticks, one message is pushed to a queue, by any client
        or reaper that runs then.

        cron: five fields, as in "0 3 * * *", with the syntax and the rules for daylight saving time
        of Debian's cron; "@daily" and the like; or "@every 5m". every: instead of `cron`, an
        interval of 1 second to 366 days, counted from now. tz: the time zone of `cron`, as in
        "Europe/Vienna". missed: what to do about ticks that were not pushed within a minute: push
        only the last one of several in a row ("once"), all of them ("all"), or none ("skip").
        overlap: "skip" leaves a tick out while a group is not done with the message of the tick
        before. payload, headers and key: of each message, 64 KiB together at most; the headers
        `cassq-schedule` and `cassq-tick` are added. priority: of each message, as for
        `Pusher.push`.

        If the schedule exists with the same settings, returns it. Raises ScheduleExistsError if it
        has other settings (`Schedule.update` changes them), QueueNotFoundError, and ConfigError,
        which names the argument or the field of `cron`. Cost: a few reads, one of them of all
        schedules, and a conditional write.
        """
        wanted = wanted_schedule(
            name,
            cron=cron,
            every=every,
            tz=tz,
            payload=payload,
            headers=headers,
            key=key,
            missed=missed,
            overlap=overlap,
            priority=priority,
        )
        return create_schedule(self.runtime, self._named(queue).row, wanted)

    @operation
    def schedule(self, name: str) -> Schedule:
        """The schedule with this name. Raises ScheduleNotFoundError if it does not exist. Cost: one
        read."""
        return find_schedule(self.runtime, name)

    @operation
    def schedules(self, queue: str | None = None) -> list[Schedule]:
        """The schedules of one queue, or of all (None), by name. Cost: reads all schedules."""
        return schedules_of(self.runtime, None if queue is None else self._named(queue).id)

    @operation
    def rebuilt_at(self) -> datetime | None:
        """When a lost catalog was rebuilt from pipe files; None if that never happened.

        Pipe files do not hold policies, groups, commits and schedules: those from before that time
        are gone. Cost: one read.
        """
        return rebuilt_at(self.ports.catalog)

    @operation
    def serve_metrics(
        self,
        port: int = 0,
        host: str = "127.0.0.1",
        *,
        queues: bool = True,
        health: Callable[[], Mapping[str, Any]] | None = None,
        also: Read | None = None,
    ) -> PrometheusServer:
        """Serve metrics for Prometheus at http://host:port/ until the client is closed.

        port: 0 picks a free one; the result's `port` is the one in use. queues: also report the
        depths of all queues, at the cost of `Queue.stats` for each at every scrape. health: the
        facts for /health, whose status is 200 if its "healthy" is true, else 503; without `health`,
        404. also: reads further metrics to serve.
        Raises MissingExtraError without the extra `metrics`, and ConfigError if it cannot listen at
        the address.
        """
        with extras.wanted("metrics need", "prometheus-client", "metrics"):
            from cassq.inspect.prometheus import PrometheusServer
        runtime = self.runtime
        reach, counted = (lambda: runtime.ports), (runtime.requests, runtime.tallies)
        meter = Meter(reach, *counted, runtime.actions, queues=queues)

        def read() -> list[Metric | Histogram]:
            return [*meter.read(), *(() if also is None else also())]

        server = PrometheusServer(read, host, port, health)
        self._servers.append(server)
        return server

    @operation
    def reap(self, queues: Iterable[str] | None = None, *, dry_run: bool = False) -> list[Action]:
        """Run the reaper's passes once, over the named queues (None: all). Returns the actions
        taken, each with `verb`, `subject`, `queue`, `outcome` and `detail`.

        dry_run: only return the actions that would be taken. A stalled pusher is detected by the
        second of two calls that are a lease apart. Raises QueueNotFoundError. Cost with nothing to
        do: one query per pass, for any number of queues.
        """
        rows = None if queues is None else [self._named(name).row for name in queues]
        return self.reaper.reap(rows, dry_run=dry_run)

    def _append_to(self, name: str, batch: Batch, intend: Intend) -> None:
        """Push one dead letter. Its queue is created when it is first needed."""
        pusher = self._letter_pushers.get(name)
        if pusher is not None and not pusher.closed:
            try:
                pusher.push_intended(batch, intend)
                return
            except QueueNotFoundError:
                logger.warning("queue %s was deleted: it is created again for a dead letter", name)
        pusher = self._letter_pushers[name] = own_queue(self.runtime, name).pusher_for("")
        pusher.push_intended(batch, intend)

    def _push_to(self, queue: QueueRow, batch: Batch, intend: Intend) -> None:
        """Push the message of a schedule's tick."""
        pusher = self._tick_pushers.get(queue.id)
        if pusher is None or pusher.closed:
            pusher = self._tick_pushers[queue.id] = Queue(self.runtime, queue).tick_pusher()
        pusher.push_intended(batch, intend)

    # --- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every pusher and popper, and give back the messages that poppers hold. All is
        durable on return.

        If a signal handler calls this while its thread is inside another call of the client, the
        poppers are stopped at once, and the client is closed when that call ends.
        """
        self._life.end(self._close_now, meanwhile=self._stop_poppers)

    def _stop_poppers(self) -> None:
        for thing in list(self.runtime.open):
            if isinstance(thing, Popper):
                thing.stop()

    def _close_now(self) -> None:
        runtime = self.runtime
        runtime.closing = True
        runtime.housekeeper.stop()
        runtime.settings.stop()
        for server in self._servers:
            server.close()
        failure: CassqError | None = None
        queues: dict[str, WatchedQueue] = {}
        while (thing := self._next_to_close()) is not None:
            queue = runtime.open[thing]
            queues[queue.name] = queue
            try:
                thing.close_inside()
            except CassqError as exc:
                failure = failure or exc
            runtime.open.pop(thing, None)
        try:
            online = runtime.online()
            runtime.notebook.close(online.ports)
            online.presence.maintain()
        except CassqError as exc:
            # With a spool, an outage loses nothing here.
            failure = failure or (None if self.spool and is_outage(exc) else exc)
        if self.spool is not None:
            self.spool.close()
        self._retire(queues.values())
        runtime.close_place()
        if failure is not None:
            raise failure

    def _next_to_close(self) -> Openable | None:
        """The pusher or popper opened first; pushers of dead letters come last, since poppers may
        still need them."""
        things, letters = list(self.runtime.open), list(self._letter_pushers.values())
        others = (thing for thing in things if thing not in letters)
        return next(others, things[0] if things else None)

    def _retire(self, queues: Iterable[WatchedQueue]) -> None:
        """Retire the consumed pipes of these queues. If that fails, the next reaper does it."""
        for queue in queues:
            try:
                self.reaper.reap([queue.load()], only=("retire",))
            except (QueueNotFoundError, BackendError) as exc:
                logger.warning("queue %s is left for the reaper: %s", queue.name, exc)

    def _forget_parent(self) -> None:
        """In a forked child: refuse every call, and leave what belongs to the parent untouched."""
        kept = self.runtime.abandon()
        for server in self._servers:
            server.abandon()
        _of_the_parent.append((self, kept))

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
    # Clients with a spool come last: sorted() puts False first. Each spool has a client of its own.
    for client in sorted(_clients, key=lambda client: client.spool is None):
        try:
            client.close()
        except CassqError as exc:  # the others must still be closed
            logger.warning("%r could not be closed at the end of the process: %s", client, exc)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
