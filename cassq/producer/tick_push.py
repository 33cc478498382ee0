"""Pushes of schedules' ticks: each tick becomes one message, however many clients push it.

A tick is pushed like a message with a dedup id (see `cassq.producer.dedup`), but the place that the
message is about to get is noted in the schedule's own row, by compare-and-set. So this needs no
`dedup_window`, and the note stays until the row moves on to the next tick.

Invariants:
1. A tick's message is written only after its place was noted in the schedule's row. The note is
   refused if the row is past that tick, or the schedule was paused, deleted or given another
   message.
2. The row moves on only when the message is known to be in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cassq.base.clock import attempts, contended
from cassq.errors import OwnershipError
from cassq.lifecycle.ports import Ports
from cassq.message.batches import Batch, Intend
from cassq.message.columns import encode_headers
from cassq.message.frames import Frame
from cassq.model.rows import Dedup, QueueRow
from cassq.model.schedules import (
    SCHEDULE_HEADER,
    TICK_HEADER,
    ScheduleRow,
    TickPlace,
    fired,
)
from cassq.producer.dedup import DedupPush

# Pushes a message to a queue, after passing its place to `Intend`.
PushTo = Callable[[QueueRow, Batch, Intend], None]


class TickPush(DedupPush):
    """A push of one tick. row: the schedule, as last read or written."""

    def __init__(self, ports: Ports, queue: QueueRow, row: ScheduleRow, tick_ms: int) -> None:
        super().__init__(ports, lambda: queue, [f"{row.id}@{tick_ms}"])
        self.row = row
        self._records = ports.catalog.records
        self._tick_ms = tick_ms
        self._message = row.message
        headers = row.headers_at(tick_ms)
        self._marks = {name: headers[name] for name in (SCHEDULE_HEADER, TICK_HEADER)}
        self.batch = Batch(
            [row.payload],
            ports.clock.wall_ms(),
            [encode_headers(headers)],
            [row.key],
            priority=row.priority,
        )

    @property
    def place(self) -> TickPlace | None:
        """Where the message is, once it is durable."""
        place = self.done(0)
        return None if place is None else TickPlace(self._tick_ms, *place)

    def _write(self, rows: Sequence[Dedup]) -> list[Dedup]:
        """Note the place of the message in the schedule's row. If it names another place, return
        that. Raises OwnershipError if the tick must not be pushed any more."""
        (wanted,) = rows
        mine = TickPlace(self._tick_ms, wanted.pipe_id, wanted.seq)
        before = self._before.get(wanted.dedup_id)
        for _ in attempts(self._ports.clock):
            there = self.row.firing
            if there == mine:
                return []
            if there is not None and (before is None or there[1:] != (before.pipe_id, before.seq)):
                return [replace(wanted, pipe_id=there.pipe_id, seq=there.seq)]
            new = replace(self.row, firing=mine, firing_queue_id="")
            if self._records.change_schedule(self.row, new):
                self.row = new
                return []
            self.row = self._read()
        raise contended(f"schedule {self.row.name!r}")

    def _read(self) -> ScheduleRow:
        """The current row. Raises OwnershipError if the tick must not be pushed."""
        name = self.row.name
        row = self._records.schedule(name)
        if row is None or row.id != self.row.id:
            raise OwnershipError(f"schedule {name!r} was deleted")
        at_ms = row.next_ms if row.firing is None else row.firing.tick_ms
        if at_ms > self._tick_ms or (row.firing is not None and at_ms != self._tick_ms):
            raise OwnershipError(f"another process has pushed this tick of schedule {name!r}")
        if row.paused:
            raise OwnershipError(f"schedule {name!r} is paused")
        if row.message != self._message:
            raise OwnershipError(f"schedule {name!r} was changed")  # the next pass pushes the new
        return row

    def _target_id(self) -> str:
        return self.row.firing_queue_id or super()._target_id()

    def _is_over(self, row: Dedup) -> bool:
        return False  # the note stays until the tick is settled

    def _bears(self, frame: Frame, index: int, row: Dedup) -> bool:
        headers = frame.headers_at(index)
        return all(headers.get(name) == value for name, value in self._marks.items())


def push_tick(
    ports: Ports, push_to: PushTo, queue: QueueRow, row: ScheduleRow, tick_ms: int
) -> ScheduleRow | None:
    """Push the message of a tick, unless it was pushed already, and move the schedule on. Returns
    the schedule's new row; None if it was deleted meanwhile.

    Raises OwnershipError if another process has pushed the tick, or it must not be pushed any more.
    Cost: two synced catalog transactions, and one durable push.
    """
    push = TickPush(ports, queue, row, tick_ms)
    push_to(queue, push.batch, push)
    place = push.place
    assert place is not None
    return settle_tick(ports, push.row, place)


def settle_tick(ports: Ports, row: ScheduleRow, place: TickPlace) -> ScheduleRow | None:
    """Move a schedule on after a tick whose message is in its place. Returns the schedule's row,
    which another process may have written; None if it was deleted."""
    records = ports.catalog.records
    now: ScheduleRow | None = row
    for _ in attempts(ports.clock):
        if now is None or now.id != row.id:
            return None
        if now.firing is None or now.firing.tick_ms != place.tick_ms:
            return now
        new = fired(now, place)
        if records.change_schedule(now, new):
            return new
        now = records.schedule(row.name)
    raise contended(f"schedule {row.name!r}")
