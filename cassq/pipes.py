"""Pipes: opens, appends to, rolls and seals them.

`PipeWriter` is a pusher's core: it owns one open pipe at a time and turns batches of messages into
frames in it. It has no threads and no locks: `cassq.producer.pusher` serialises its callers.
`PipeWriters` holds the writers of one pusher.

`cassq.lifecycle.sealing` seals pipes, here as everywhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from cassq.base.counters import Tally
from cassq.base.ids import made_at_ms
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    CorruptionError,
    PipeSealedError,
    QueueNotFoundError,
    StorageFullError,
    is_outage,
)
from cassq.extents.port import ExtentMissingError, ExtentWriter
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import STRAY_MS, seal_pipe
from cassq.message.batches import Appendable, AppendReceipt, Intend
from cassq.message.frames import Place, pipe_key
from cassq.model.lanes import lane_start_ms
from cassq.model.queues import QueuePolicy
from cassq.model.rows import PipeRow, PipeState, QueueRow
from cassq.model.scaling import owner_of, share_of

logger: logging.Logger = logging.getLogger("cassq")

CARRY_OVERS_MAX = 4
MAINTENANCE_SECONDS = 1.0
# How long a cp pusher may keep its turn while others wait ...
TURN_MS = 50
# ... and how long it may then append nothing before another takes the turn.
TURN_IDLE_MS = 5
TURN_WAIT_SECONDS = 30.0


@dataclass(slots=True)
class OpenPipe:
    """A pipe that this process writes."""

    row: PipeRow
    extent: ExtentWriter
    opened_ms: int  # boot time; for a ready pipe, when it was created
    used_ms: int  # when it was last found used ...
    heartbeat_ms: int
    strict: bool  # whether others may want the turn
    key: int  # its frames' key, see `pipe_key`
    used: bool = False  # ... and whether it was used since
    after: int = 0  # for a ready pipe: its writer's `_opened_at_once` when it was requested

    def may_improve(self) -> bool:
        """Whether replicas are missing that another pipe would probably have. Cost: a memory read;
        while some are missing, that of `ExtentWriter.may_improve`."""
        return self.extent.missing > 0 and self.extent.may_improve()


# A task that uses the catalog, and may wait for it.
MaintenanceJob = Callable[[], object]


class AppendSnapshot(NamedTuple):
    """The snapshot that an append uses: the queue's row, and the boot time."""

    queue: QueueRow
    now_ms: int


class Maintenance(NamedTuple):
    """The result of housekeeping: seconds until the next time, and the jobs left to do."""

    again: float
    jobs: list[MaintenanceJob]


class PushRate:
    """How fast a writer appends, in messages a second, measured periodically: it decides how many
    pipes are open side by side."""

    __slots__ = ("_since_ms", "count", "last")

    def __init__(self, now_ms: int) -> None:
        self.count: int = 0  # messages since the last measurement
        self.last: int = 0  # messages a second at the last measurement
        self._since_ms = now_ms

    def measure(self, now_ms: int) -> int:
        """Messages a second since the last time."""
        self.last = -(-self.count * 1000 // max(1, now_ms - self._since_ms))
        self.count, self._since_ms = 0, now_ms
        return self.last


class PipeWriter:
    """Appends batches to one queue, one after another, each durable when `append` returns.

    queue: called at each append, so that a changed policy applies. lane: for delayed messages,
    which go to timer pipes; None: for immediate delivery. group_id: the only group its pipes are
    for. owner: the pipes' owner; generated if empty. patient: whether to try another pipe when the
    outcome of a write is unknown. tally: counts such writes. priority: of the messages.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        *,
        lane: int | None = None,
        group_id: str = "",
        owner: str = "",
        patient: bool = True,
        tally: Tally | None = None,
        priority: int = 0,
    ) -> None:
        self._lane = lane
        self._priority = priority
        self._tally = tally or Tally()
        self._patient = patient
        self.receipts: list[AppendReceipt] = []  # what the current or last append has pushed
        self._doubtful = False  # whether a failed write of that append may have succeeded
        self.doubt: tuple[str, int] | None = None  # where its next message may already be
        self._group_id = group_id
        self._catalog = ports.catalog
        self._store = ports.store
        self._clock = ports.clock
        self._ids = ports.ids
        self._queue = queue
        self._owner = owner or ports.ids.version()
        self._push_rate = PushRate(self._clock.boot_ms())
        self._pipe: OpenPipe | None = None
        self._ready: OpenPipe | None = None
        self._opened_at_once = 0  # pipes opened during an append, as none was ready
        self._failing = False  # whether the last write failed
        self._closed = False
        self.written_bytes: int = 0  # of frames, without their headers

    # --- appending ----------------------------------------------------------------------------

    def append(
        self, batch: Appendable, intend: Intend | None = None, present: AppendSnapshot | None = None
    ) -> list[AppendReceipt]:
        """Push a batch; returns where its messages went, in order. present: a fresh snapshot.

        A BackendError's `.fields["pushed"]` says how many messages, from the first, are durably
        pushed all the same; the others are not, unless its `outcome_unknown` is set.
        """
        receipts = self.receipts = []
        self.doubt = None
        at, failures = 0, 0
        self._doubtful = False
        total = batch.count
        try:
            while at < total:
                queue, now_ms = present or (self._queue(), self._clock.boot_ms())
                policy, present = queue.policy, None
                pipe = self._current(policy, now_ms)
                base = pipe.extent.end.seq
                try:
                    count = self._write(pipe, policy, batch, range(at, total), base, intend)
                except PipeSealedError:
                    count = self._adopt(pipe, base, total - at)
                    failures += 1
                except BackendError as exc:
                    found = self._salvage(pipe, base, total - at, exc)
                    failures += 1
                    self._doubtful = self._doubtful or found is None
                    count = found or 0
                    alone = policy.strict or intend is not None or not self._patient
                    lost = found is None and alone
                    if lost or isinstance(exc, StorageFullError) or failures > CARRY_OVERS_MAX:
                        if count:
                            receipts.append(AppendReceipt(pipe.row.id, base, count))
                        at += count
                        self.doubt = (pipe.row.id, base) if found is None else None
                        exc.outcome_unknown = self._doubtful
                        raise
                    self._carries_over(total - at - count, found is None, exc)
                if count:
                    receipts.append(AppendReceipt(pipe.row.id, base, count))
                    at += count
                if failures > CARRY_OVERS_MAX * (1 + len(receipts)):
                    raise BackendTimeoutError("each new pipe was sealed as soon as it was opened")
        except BackendError as exc:
            exc.fields["pushed"] = at
            exc.outcome_unknown = exc.outcome_unknown or self._doubtful
            raise
        return receipts

    def _write(
        self,
        pipe: OpenPipe,
        policy: QueuePolicy,
        batch: Appendable,
        left: range,
        base: int,
        intend: Intend | None,
    ) -> int:
        """Encode the messages of a batch that are left, from seq `base` on, and append as many as
        one write takes; returns how many."""
        at, seq, key = left.start, base, pipe.key
        stop = min(left.stop, at + policy.max_pushes_per_pipe - base)
        frames: list[tuple[bytes, bytes]] = []
        size = 0
        while at < stop and size < pipe.extent.append_bytes:
            last = batch.frame_end(at, min(stop, at + pipe.extent.frame_messages))
            frame = batch.frame(seq, at, last, key, policy.compression)
            frames.append(frame)
            size += len(frame[1])
            seq += last - at
            at = last
        if intend is not None:
            intend(pipe.row.id, base, range(at - (seq - base), at))
        pipe.extent.append(frames, seq)
        pipe.used = True
        self._failing = False
        self._push_rate.count += seq - base
        self.written_bytes += size
        return seq - base

    def _adopt(self, pipe: OpenPipe, base: int, most: int) -> int:
        """How many messages from `base` on lie below the end of a pipe that another process
        sealed."""
        self._drop_current(pipe)
        try:
            end = seal_pipe(self._catalog, self._store, pipe.row.id)
        except BackendError as exc:
            exc.outcome_unknown = True
            self.doubt = pipe.row.id, base
            raise
        counted = self._counted(end, base, most)
        self._tally.carried_over += most - counted
        return counted

    def _salvage(
        self, pipe: OpenPipe, base: int, most: int, exc: BackendError | None = None
    ) -> int | None:
        """Seal a pipe after a failed write; return how many messages from `base` on lie below its
        end all the same. None if the seal is left to the reaper: the outcome is unknown for now."""
        self._drop_current(pipe)
        if exc is not None and is_outage(exc) and not self._patient:
            return None  # the next try looks there first
        try:
            end = seal_pipe(self._catalog, self._store, pipe.row.id)
        except (BackendError, CorruptionError) as exc:
            logger.warning("pipe %s is left for the reaper to seal: %s", pipe.row.id, exc)
            return None
        return self._counted(end, base, most)

    def _counted(self, end: Place | None, base: int, most: int) -> int:
        """How many messages from `base` on lie below the end of a pipe. If the pipe is gone, their
        number stays unknown, and they are all written again: a duplicate is the lesser evil."""
        if end is None:
            self._doubtful = True
            return 0
        return max(0, min(end.seq - base, most))

    def _carries_over(self, count: int, in_doubt: bool, exc: BackendError) -> None:
        """Count messages that are tried in another pipe. Warns once, until a write succeeds."""
        self._tally.carried_over += count
        self._tally.doubtful += count if in_doubt else 0
        level = logging.INFO if self._failing else logging.WARNING
        logger.log(level, "carrying over to another pipe: %s", exc)
        self._failing = True

    def _drop_current(self, pipe: OpenPipe) -> None:
        pipe.extent.close()
        if self._pipe is pipe:
            self._pipe = None

    # --- opening and rolling ------------------------------------------------------------------

    def _current(self, policy: QueuePolicy, now_ms: int) -> OpenPipe:
        """The pipe to append to, opened or rolled if needed. now_ms: boot time."""
        pipe = self._pipe
        if pipe is not None and self._is_full(pipe, policy, now_ms):
            self._seal_own(pipe)
            pipe = None
        if pipe is None:
            strict = self._is_strict(policy)
            pipe = self._pipe = self._open_strict() if strict else self._open()
        return pipe

    def _is_strict(self, policy: QueuePolicy) -> bool:
        return policy.strict and not self._group_id

    def _is_full(self, pipe: OpenPipe, policy: QueuePolicy, now_ms: int) -> bool:
        age_ms = now_ms - pipe.opened_ms
        end, size = pipe.extent.end, pipe.extent.size_bytes
        if pipe.extent.sealed() or (pipe.extent.missing and self._leaves(pipe, policy)):
            return True
        if end.seq == 0:
            return False
        if pipe.strict and age_ms >= TURN_MS and pipe.extent.turn_wanted():
            return True
        return (
            end.seq >= policy.max_pushes_per_pipe
            or size >= policy.max_bytes_per_pipe
            or age_ms >= policy.max_push_time_of_pipe * 1000
        )

    def _leaves(self, pipe: OpenPipe, policy: QueuePolicy) -> bool:
        """Whether to leave a pipe that lacks replicas: for a ready pipe that lacks fewer; or, if
        this writer makes none ready, for a new pipe that may have them all."""
        if not self._makes_ready(policy):
            return pipe.extent.may_improve()
        return self._ready is not None and self._ready.extent.missing < pipe.extent.missing

    def _makes_ready(self, policy: QueuePolicy) -> bool:
        return self._lane is None and not policy.strict

    def _seal_own(self, pipe: OpenPipe) -> Place | None:
        self._drop_current(pipe)
        return seal_pipe(self._catalog, self._store, pipe.row.id)

    def _open(self) -> OpenPipe:
        ready, now_ms = self._ready, self._clock.boot_ms()
        if ready is not None and not self._is_stale(ready, now_ms):
            self._ready = None
            # Unsynced is enough: readers read ready pipes too.
            rate, sealed = self._push_rate.last, ready.extent.sealed()
            if not sealed and self._catalog.pipes.beat(
                ready.row.id, self._owner, PipeState.OPEN, rate
            ):
                ready.opened_ms = ready.used_ms = ready.heartbeat_ms = now_ms
                return ready
            ready.extent.close()
        self._opened_at_once += 1
        return self._create("", PipeState.OPEN)

    def _is_stale(self, ready: OpenPipe, now_ms: int) -> bool:
        """Whether appends may no longer take a ready pipe. `maintain` seals it.

        A ready pipe is outrun if an append has opened another pipe since the ready one was
        requested: the ready pipe may come first in the queue, and so later pushes would be
        delivered before earlier ones. And a pipe that waited long would be retired too soon after
        its pushes: `cassq.producer.quota.keeps` counts from its creation. now_ms: boot time.
        """
        waited_ms = now_ms - ready.opened_ms
        outrun = ready.after != self._opened_at_once
        return outrun or waited_ms >= self._queue().policy.max_push_time_of_pipe * 1000

    def _create(self, predecessor: str, state: PipeState) -> OpenPipe:
        opened = self._try_create(predecessor, state)
        if opened is None:
            raise QueueNotFoundError(f"queue {self._queue().name!r} was deleted")
        return opened

    def _try_create(self, predecessor: str, state: PipeState) -> OpenPipe | None:
        queue = self._queue()
        began_ms = self._clock.boot_ms()
        row = self._new_row(queue, predecessor, state)
        strict = self._is_strict(queue.policy)
        if state is PipeState.READY:
            extent = self._store.create_ahead(row.id, queue.name)
        else:
            extent = self._store.create(row.id, queue.name, strict=strict)
        try:
            added = self._catalog.pipes.add(row)
        except BackendError:
            # The row may exist: an empty pipe does no harm, and the reaper removes it.
            extent.close()
            raise
        if not added:
            extent.close()
            self._store.drop([row.id])
            return None
        boot_ms = self._clock.boot_ms()
        if boot_ms - began_ms >= STRAY_MS // 2:
            extent.close()
            self._catalog.pipes.record_end(row.id, Place(0, 0))
            return self._try_create(predecessor, state)
        return OpenPipe(row, extent, began_ms, boot_ms, boot_ms, strict, pipe_key(row.id))

    def _new_row(self, queue: QueueRow, predecessor: str, state: PipeState) -> PipeRow:
        now_ms = self._catalog.now_ms()
        # Ids rise along a chain, whatever clocks say and however soon one pipe follows another.
        made_ms = max(now_ms, (made_at_ms(predecessor) or 0) + 1)
        return PipeRow(
            id=self._ids.new(made_ms),
            queue_id=queue.id,
            state=state,
            owner=self._owner,
            created_ms=now_ms,
            lease_ms=round(queue.policy.lease * 1000),
            predecessor=predecessor,
            group_id=self._group_id,
            timer_ms=None if self._lane is None else lane_start_ms(self._lane, now_ms),
            rate=self._push_rate.last if state is PipeState.OPEN else 0,
            priority=self._priority,
        )

    def _open_strict(self) -> OpenPipe:
        """Wait for the turn, and open a successor once the end of the queue's newest pipe is
        recorded."""
        started_ms = self._clock.boot_ms()
        while True:
            queue = self._catalog.queues.by_id(self._queue().id)
            if queue is None or queue.deleted:
                raise QueueNotFoundError(f"queue {self._queue().name!r} was deleted")
            tail = self._catalog.pipes.by_id(queue.tail) if queue.tail else None
            if tail is None or tail.state >= PipeState.SEALED or self._pass_turn(tail, started_ms):
                opened = self._try_create(queue.tail, PipeState.OPEN)
                if opened is not None:
                    return opened
            if self._clock.boot_ms() - started_ms > TURN_WAIT_SECONDS * 1000:
                raise BackendTimeoutError(
                    f"no turn to push to {queue.name!r} within {TURN_WAIT_SECONDS:g} s"
                )
            self._clock.sleep(0.001)

    def _pass_turn(self, tail: PipeRow, started_ms: int) -> bool:
        """Take the turn from the newest pipe's owner if it is gone, idle or unresponsive."""
        try:
            reader = self._store.reader(tail.id)
        except ExtentMissingError:
            # Its end can never be found: only a person can decide how the order goes on.
            if self._catalog.pipes.by_id(tail.id) is None:
                return False  # retired a moment ago: try again
            raise
        try:
            last_ms = reader.ask_turn()
        finally:
            reader.close()
        now_ms = self._clock.boot_ms()
        idle = now_ms - last_ms >= TURN_IDLE_MS and now_ms - started_ms >= TURN_IDLE_MS
        unresponsive = now_ms - started_ms >= 4 * TURN_MS
        if idle or unresponsive or self._store.abandoned(tail.id):
            seal_pipe(self._catalog, self._store, tail.id)
            return True
        return False

    # --- housekeeping -------------------------------------------------------------------------

    def maintain(self) -> Maintenance:
        """Renew the lease, seal an idle pipe, open the next one before it is needed.

        Called between appends, and never waits: jobs that need the catalog are returned, to be
        done alongside later appends, in order, before the next call.
        """
        policy = self._queue().policy
        now_ms = self._clock.boot_ms()
        pipe = self._pipe
        ready = self._ready
        stale = ready is not None and (self._is_stale(ready, now_ms) or ready.may_improve())
        if pipe is None:
            # A pipe with too few replicas was left for the ready one: the next push uses that.
            keep = ready is not None and now_ms - ready.opened_ms < policy.idle_seal * 1000
            jobs = self._maintain_ready(now_ms, keep=keep and not stale)
            return Maintenance(MAINTENANCE_SECONDS, jobs)
        jobs = []
        if pipe.used:
            pipe.used, pipe.used_ms = False, now_ms
        idle = now_ms - pipe.used_ms >= policy.idle_seal * 1000
        leaves = pipe.extent.missing and self._leaves(pipe, policy)
        if idle or pipe.extent.sealed() or leaves:
            self._drop_current(pipe)
            jobs.append(partial(seal_pipe, self._catalog, self._store, pipe.row.id))
        elif now_ms - pipe.heartbeat_ms >= pipe.row.lease_ms // 3:
            jobs.append(partial(self._beat, pipe, self._push_rate.measure(now_ms)))
        jobs += self._maintain_ready(now_ms, keep=not stale)
        if self._makes_ready(policy) and self._ready is None and self._pipe:
            # Counted here, between appends: an append may be opening a pipe when the job runs.
            count = self._opened_at_once
            if self._nearly_full(pipe):
                jobs.append(partial(self._prepare, count))
            elif pipe.may_improve():
                jobs.append(partial(self._improve, pipe, count))
        return Maintenance(min(MAINTENANCE_SECONDS, policy.lease / 6), jobs)

    def _maintain_ready(self, now_ms: int, *, keep: bool) -> list[MaintenanceJob]:
        ready = self._ready
        if ready is None:
            return []
        if not keep:
            self._ready = None
            self._drop_current(ready)
            return [partial(seal_pipe, self._catalog, self._store, ready.row.id)]
        if now_ms - ready.heartbeat_ms >= ready.row.lease_ms // 3:
            return [partial(self._beat, ready, 0)]
        return []

    def _beat(self, pipe: OpenPipe, rate: int) -> None:
        """Show that the pipe's owner is alive. An append may open a ready pipe meanwhile."""
        ready = self._ready is pipe
        if ready:
            self._catalog.pipes.beat(pipe.row.id, self._owner, PipeState.READY)
            ready = self._ready is pipe
        if not ready:
            self._catalog.pipes.beat(pipe.row.id, self._owner, PipeState.OPEN, rate)
        pipe.heartbeat_ms = self._clock.boot_ms()

    def _prepare(self, after: int) -> None:
        """Open the next pipe. An append may then take it, unless one has opened a pipe since."""
        ready = self._create("", PipeState.READY)
        ready.after = after
        self._ready = ready
        if self._closed:  # `close` may have run before it was there
            self._close_ready()

    def _improve(self, pipe: OpenPipe, after: int) -> None:
        """Open the next pipe because this one has too few replicas, unless another writer has just
        failed to get a better one."""
        if pipe.may_improve():
            self._prepare(after)

    def _nearly_full(self, pipe: OpenPipe) -> bool:
        policy = self._queue().policy
        end = pipe.extent.end
        age = (self._clock.boot_ms() - pipe.opened_ms) / 1000
        return end.seq > 0 and (
            end.seq >= 0.7 * policy.max_pushes_per_pipe
            or pipe.extent.size_bytes >= 0.7 * policy.max_bytes_per_pipe
            or age >= 0.9 * policy.max_push_time_of_pipe
        )

    def close(self) -> None:
        """Seal what is open, so that it can be retired without waiting for a lease."""
        self._closed = True
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._salvage(pipe, 0, 0)
        self._close_ready()

    def _close_ready(self) -> None:
        ready, self._ready = self._ready, None
        if ready is not None:
            self._salvage(ready, 0, 0)


# --- a pusher's writers ----------------------------------------------------------------------


class PipeWriters:
    """The writers of one pusher: some for immediate delivery, and one for each lane of timers. With
    a `group_id` or a `priority`, or in a queue with several key lanes, only one is for immediate
    delivery. Created when first needed; not thread-safe, like `PipeWriter`."""

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group_id: str,
        *,
        patient: bool = True,
        tally: Tally | None = None,
        priority: int = 0,
        key_lane: int = 0,
    ) -> None:
        self._ports = ports
        self._priority = priority
        self._key_lane = key_lane
        self._tally = tally
        self._patient = patient
        self._queue = queue
        self._group_id = group_id
        self._lanes: dict[int, PipeWriter] = {}
        self._owner = ports.ids.version()
        self._side_by_side: list[PipeWriter] = []  # for immediate delivery, in turn
        self._share = 1
        self._turn = 0

    def of(self, lane: int | None, *, keyed: bool = False) -> PipeWriter:
        """The writer of a lane; None: the next of those for immediate delivery. keyed: always the
        first of these, for messages with keys, whose order counts."""
        if lane is None:
            self._turn = (self._turn + 1) % self._share
            at = 0 if keyed else self._turn
            if at >= len(self._side_by_side):
                at = len(self._side_by_side)
                owner = owner_of(self._owner, self._key_lane + at)
                self._side_by_side.append(self._appender(owner=owner))
            return self._side_by_side[at]
        appender = self._lanes.get(lane)
        if appender is None:
            owner = owner_of(self._ports.ids.version(), self._key_lane)
            appender = self._lanes[lane] = self._appender(lane=lane, owner=owner)
        return appender

    def _appender(self, *, lane: int | None = None, owner: str = "") -> PipeWriter:
        return PipeWriter(
            self._ports,
            self._queue,
            lane=lane,
            group_id=self._group_id,
            owner=owner,
            patient=self._patient,
            tally=self._tally,
            priority=self._priority,
        )

    def maintain(self) -> Maintenance:
        """Housekeeping of all writers, as `PipeWriter.maintain`."""
        again, jobs = 1.0, self._follow_desired_pipes()
        for appender in self._all():
            maintenance = appender.maintain()
            again = min(again, maintenance.again)
            jobs += maintenance.jobs
        return Maintenance(again, jobs)

    def _follow_desired_pipes(self) -> list[MaintenanceJob]:
        """Take this pusher's share of the queue's desired pipes; returns jobs that seal the
        excess.

        Cost: none while one pipe is desired, else one query of a partial index.
        """
        queue = self._queue()
        pipes: list[PipeRow] = []
        alone = bool(self._group_id or self._priority) or queue.policy.key_lanes > 1
        if not alone and max(queue.desired_pipes, queue.policy.min_open_pipes) > 1:
            pipes = self._ports.catalog.pipes.unsealed([queue.id])
        self._share = 1 if alone else share_of(queue, pipes, self._owner)
        jobs: list[MaintenanceJob] = []
        while len(self._side_by_side) > self._share:
            jobs.append(self._side_by_side.pop().close)
        return jobs

    def _all(self) -> list[PipeWriter]:
        return [*self._side_by_side, *self._lanes.values()]

    def close(self) -> None:
        """Seal what is open."""
        for appender in self._all():
            appender.close()
