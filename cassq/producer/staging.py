"""Staging: many pipes that are filled separately, and join a queue all at once, or never.

A *write* has an id and one row, which alone decides. Each task that fills pipes for it calls
`begin`, and appends to its own invisible pipes (`Stage`). The leader of the write, its *driver*,
then publishes the pipes that count, in one step; all others are removed. Meanwhile the driver
renews one lease for all its writes; if it does not, the reaper aborts them. The pipes of a write
have no leases, so filling them may take hours.

The id makes a write happen only once: a published write cannot be begun again. Successive writes
under one id, such as the batches of a stream, have growing numbers.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import NamedTuple

from cassq.errors import (
    BackendError,
    CassqError,
    ConfigError,
    FencedError,
    QueueFullError,
    QueueNotFoundError,
    QueuePausedError,
)
from cassq.lifecycle.ports import Ports
from cassq.message.batches import Appendable, AppendReceipt
from cassq.model.priorities import PLAIN, Level
from cassq.model.rows import PipeRow, PipeState, QueueRow, WriteRow, WriteState
from cassq.model.scaling import owner_of
from cassq.pipes import OpenPipe, PipeWriter
from cassq.plurals import counted
from cassq.producer.quota import lengths

logger: logging.Logger = logging.getLogger("cassq")

DRIVER_LEASE_MS = 60_000
BEAT_SECONDS = 10.0


class StagedPipe(NamedTuple):
    """A filled and sealed pipe. size: bytes of its frames."""

    id: str
    messages: int
    size: int


def check_queue(queue: QueueRow) -> None:
    """Raise ConfigError for a cp queue, whose pipes have one order, and QueuePausedError if pushing
    is paused."""
    if queue.policy.strict:
        raise ConfigError(
            f"queue {queue.name!r} is cp: its messages are in one order, but this write fills pipes"
            " in parallel, and they have no common order",
            hint="write to an ap queue, or push from one process with cassq's own pusher",
        )
    if queue.policy.push_paused:
        raise QueuePausedError(f"pushing to queue {queue.name!r} is paused", pushed=0)


def begin(ports: Ports, queue: QueueRow, write_id: str, number: int, driver: str) -> WriteRow:
    """Open a write, or join it; returns its row. If `is_over` of it is true, nothing is left to do.

    Raises FencedError if a later driver leads it, QueueNotFoundError, and as `check_queue` does.
    Cost: a read; for the first caller also a conditional write.
    """
    check_queue(queue)
    now_ms = ports.catalog.now_ms()
    wanted = WriteRow(queue.id, write_id, number, 0, WriteState.OPEN, driver, now_ms)
    row = ports.catalog.writes.begin(wanted)
    if row is None:
        raise QueueNotFoundError(f"queue {queue.name!r} was deleted")
    if not is_over(row, number) and row.driver != driver:
        raise FencedError(f"write {write_id!r} to queue {queue.name!r} was begun again by another")
    return row


def is_over(row: WriteRow, number: int) -> bool:
    """Whether a write of that number was published, according to its row."""
    return row.number > number or (row.number == number and row.state is WriteState.PUBLISHED)


def publish(ports: Ports, queue: QueueRow, write: WriteRow, pipes: list[StagedPipe]) -> bool:
    """Add these pipes to the queue, in one step, and remove all other pipes of the write. False if
    the write was published before: then these pipes are discarded, and nothing else changes.

    Raises FencedError if another driver has begun the write again, or it was aborted;
    QueueFullError if the queue rejects excess messages and has no room for all of these. Cost: see
    `Writes.publish`.
    """
    check_queue(queue)
    check_room(ports, queue, sum(pipe.messages for pipe in pipes))
    filled = [pipe.id for pipe in pipes if pipe.messages]
    if ports.catalog.writes.publish(write, filled):
        return True
    row = ports.catalog.writes.by_id(write.queue_id, write.id)
    if row is None:
        raise QueueNotFoundError(f"queue {queue.name!r} was deleted")
    if not is_over(row, write.number):
        raise FencedError(
            f"write {write.id!r} to queue {queue.name!r} was aborted or begun again by another",
            hint="none of it was published; start it again",
        )
    return False


def check_room(ports: Ports, queue: QueueRow, count: int) -> None:
    """Raise QueueFullError for a queue that rejects excess messages and has no room for `count`.
    Cost: its length, if that is limited."""
    most = queue.policy.max_length
    if most is None or queue.policy.overflow == "drop-oldest" or not count:
        return
    length = max(lengths(ports, queue).values())
    if length + count > most:
        raise QueueFullError(
            f"queue {queue.name!r} has {counted(length, 'uncommitted message')}; its"
            f" limit is {most}, so there is no room for {count}",
            retryable=count <= most,
            pushed=0,
        )


def abort(ports: Ports, write: WriteRow) -> bool:
    """Abort a write, and remove as many of its pipes as possible now. False if it is over, or was
    begun again."""
    if not ports.catalog.writes.abort(write):
        return False
    try:
        ports.catalog.writes.finish(write)
    except BackendError as exc:
        logger.warning("pipes of write %s are left for the reaper: %s", write.id, exc)
    return True


class _StagedWriter(PipeWriter):
    """Appends to invisible pipes."""

    def __init__(
        self, ports: Ports, queue: QueueRow, stage: str, lane: int | None, level: Level
    ) -> None:
        # Not patient: if a frame may be in one pipe, it must not be written to another.
        super().__init__(
            ports,
            lambda: queue,
            lane=lane,
            owner=owner_of(ports.ids.version(), level.key_lane),
            patient=False,
            priority=level.priority,
        )
        self._name = queue.name
        self._stage = stage

    def _new_row(self, queue: QueueRow, predecessor: str, state: PipeState) -> PipeRow:
        row = super()._new_row(queue, predecessor, state)
        return replace(row, state=PipeState.STAGED, stage=self._stage)

    def _create(self, predecessor: str, state: PipeState) -> OpenPipe:
        opened = self._try_create(predecessor, state)
        if opened is None:
            raise self._over()
        return opened

    def seal(self) -> None:
        """Seal the pipe that is open."""
        pipe = self._pipe
        if pipe is None:
            return
        if self._seal_own(pipe) is None:
            raise self._over()  # the write was aborted, and the pipe is gone

    def _over(self) -> FencedError:
        return FencedError(
            f"the write to queue {self._name!r} is over, or was begun again",
            hint="nothing of this attempt will be published",
        )


class Stage:
    """One attempt at a part of a write: the pipes it fills. Not thread-safe.

    After an error the attempt must be abandoned: its pipes will not be published.
    """

    def __init__(self, ports: Ports, queue: QueueRow, write: WriteRow) -> None:
        self._ports, self._queue, self._stage = ports, queue, write.stage
        self.key_lanes: int = queue.policy.key_lanes
        self._writers: dict[tuple[int | None, Level], _StagedWriter] = {}
        self._counts: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    def append(
        self, messages: Appendable, lane: int | None = None, level: Level = PLAIN
    ) -> list[AppendReceipt]:
        """Append messages; durable on return. lane: of timer pipes, if they have due times. level:
        of all of them. Raises FencedError if the write is over."""
        writer = self._writers.get((lane, level))
        if writer is None:
            writer = _StagedWriter(self._ports, self._queue, self._stage, lane, level)
            self._writers[lane, level] = writer
        before = writer.written_bytes
        receipts = writer.append(messages)
        size = writer.written_bytes - before
        for receipt in receipts:
            pipe_id, _, count = receipt
            self._counts[pipe_id] = self._counts.get(pipe_id, 0) + count
            share = size * count // messages.count
            self._sizes[pipe_id] = self._sizes.get(pipe_id, 0) + share
        return receipts

    def finish(self) -> list[StagedPipe]:
        """Seal the open pipes; returns the filled pipes, in order."""
        for writer in self._writers.values():
            writer.seal()
        return [StagedPipe(each, count, self._sizes[each]) for each, count in self._counts.items()]

    def close(self) -> None:
        """Abandon the attempt."""
        for writer in self._writers.values():
            try:
                writer.close()
            except CassqError as exc:
                logger.info(
                    "a pipe could not be removed; the end of its write will remove it: %s", exc
                )
