"""Schedules: rows that say what is pushed to a queue when, and the moves of such a row. Pure.

::

    waiting ──push──> firing ──settle──> waiting, for the next tick
       └──────────────skip─────────────────^

*firing*: the row names the place that the message of a tick has or is about to get. The row is
written before the message, and it goes on to the next tick only after the message is known to be
there.

Invariants:
1. `next_ms` only grows, unless the times of the schedule are changed: a tick that was passed never
   comes again, whatever a clock says.
2. A tick whose push was begun is pushed before any other tick is considered.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import field, fields, replace
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from cassq.frozen import dataclass
from cassq.model.rows import QueueRow
from cassq.model.ticks import EVERY, Ticks, ticks_of
from cassq.settings import Missed, Overlap

# A tick that was not pushed within this time is missed.
GRACE_MS = 60_000
SCHEDULES_MAX = 1_000
SCHEDULE_BYTES_MAX = 64 * 1024
# The headers that name the schedule and the tick of a message.
SCHEDULE_HEADER = "cassq-schedule"
TICK_HEADER = "cassq-tick"

Skipping = Literal["missed", "overlap"]
# Fields that rows of earlier versions lack. They are stored only if they are set, so that earlier
# versions can still run a schedule that does not use them, and leave other schedules alone.
_LATER = ("priority", "since_ms", "firing_queue_id")


class TickPlace(NamedTuple):
    """Where the message of a tick is, or is about to be written."""

    tick_ms: int
    pipe_id: str
    seq: int


class SkippedTick(NamedTuple):
    """The last tick that was not pushed, and why."""

    tick_ms: int
    why: Skipping


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule. Times are wall milliseconds.

    id: differs from that of an earlier schedule of this name. next_ms: the earliest tick that was
    neither pushed nor skipped. firing: the place of the tick being pushed. last: that of the last
    tick pushed. since_ms: when it got its present times; 0: when it was created. firing_queue_id:
    the queue of `firing`; empty: its own.
    """

    id: str
    name: str
    queue_id: str
    queue: str
    cron: str
    tz: str
    created_ms: int
    next_ms: int
    payload: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    key: bytes | None = None
    missed: Missed = "once"
    overlap: Overlap = "allow"
    paused: bool = False
    firing: TickPlace | None = None
    last: TickPlace | None = None
    skipped: SkippedTick | None = None
    priority: int = 0
    since_ms: int = 0
    firing_queue_id: str = ""

    @property
    def ticks(self) -> Ticks:
        """Its ticks."""
        return ticks_of(self.cron, self.tz, self.since_ms or self.created_ms)

    @property
    def message(self) -> tuple[object, ...]:
        """What it pushes, and where."""
        return (self.queue_id, self.payload, dict(self.headers), self.key, self.priority)

    def headers_at(self, tick_ms: int) -> dict[str, str]:
        """The headers of the message of a tick."""
        return {**self.headers, SCHEDULE_HEADER: self.name, TICK_HEADER: iso_time(tick_ms)}


class Step(NamedTuple):
    """What to do next: push the tick, or pass it by."""

    tick_ms: int
    skip: Skipping | None = None


def next_step(row: ScheduleRow, now_ms: int) -> Step | None:
    """What to do for a schedule at the wall time `now_ms`; None: nothing yet."""
    if row.paused:
        return None
    if row.firing is not None:
        return Step(row.firing.tick_ms)
    if row.next_ms > now_ms:
        return None
    late_ms = now_ms - GRACE_MS
    if row.missed == "all" or row.next_ms >= late_ms:
        return Step(row.next_ms)
    latest_ms = row.ticks.latest(row.next_ms, late_ms - 1)
    return Step(latest_ms, "missed" if row.missed == "skip" else None)


def due_tick_ms(row: ScheduleRow) -> int:
    """The earliest tick that was neither pushed nor skipped, whether it is due or not."""
    return row.next_ms if row.firing is None else row.firing.tick_ms


def late_ms(row: ScheduleRow, now_ms: int) -> int:
    """How long the next tick of a schedule has been due at the wall time `now_ms`; 0: it is not
    due, or the schedule is paused."""
    return 0 if row.paused else max(0, now_ms - due_tick_ms(row))


def fired(row: ScheduleRow, place: TickPlace) -> ScheduleRow:
    """The row once the message of a tick is there: it waits for the next tick."""
    return replace(_past(row, place.tick_ms), firing=None, firing_queue_id="", last=place)


def passed_by(row: ScheduleRow, tick_ms: int, why: Skipping) -> ScheduleRow:
    """The row after a tick was skipped: it waits for the next tick."""
    return replace(_past(row, tick_ms), skipped=SkippedTick(tick_ms, why))


def resumed(row: ScheduleRow, now_ms: int) -> ScheduleRow:
    """The row when a pause ends: ticks that came meanwhile are not pushed, and were not missed."""
    return replace(row, paused=False, next_ms=max(row.next_ms, row.ticks.after(now_ms)))


def retimed(row: ScheduleRow, cron: str, tz: str, now_ms: int) -> ScheduleRow:
    """The row with other times from now on. A tick that is already due stays due; of several, only
    the last one does. Raises ConfigError if the new times never come."""
    if (cron, tz) == (row.cron, row.tz):
        return row
    if cron == row.cron and cron.startswith(EVERY):
        return replace(row, tz=tz)  # intervals are the same everywhere
    known = [each.tick_ms for each in (row.firing, row.last, row.skipped) if each is not None]
    since_ms = max([now_ms, *known])
    new = replace(row, cron=cron, tz=tz, since_ms=since_ms)
    next_ms = new.ticks.after(since_ms)
    due_ms = row.next_ms if row.firing is None else row.ticks.after(row.firing.tick_ms)
    if due_ms <= now_ms and not row.paused:
        next_ms = row.ticks.latest(due_ms, now_ms)
    return replace(new, next_ms=next_ms)


def moved(row: ScheduleRow, queue: QueueRow) -> ScheduleRow:
    """The row with its next ticks in another queue."""
    where = "" if row.firing is None else row.firing_queue_id or row.queue_id
    if where == queue.id:
        where = ""
    return replace(row, queue_id=queue.id, queue=queue.name, firing_queue_id=where)


def _past(row: ScheduleRow, tick_ms: int) -> ScheduleRow:
    if row.next_ms > tick_ms:
        return row
    return replace(row, next_ms=row.ticks.after(tick_ms))


# --- as stored ------------------------------------------------------------------------------------


def encoded(row: ScheduleRow) -> str:
    """A row as stored. Equal rows give equal texts. A client can change a row only if it can give
    the row's text, so a client of an earlier version leaves alone what it does not understand."""
    values: dict[str, Any] = {
        each.name: getattr(row, each.name)
        for each in fields(row)
        if each.name not in _LATER or getattr(row, each.name) != each.default
    }
    values["payload"] = b64encode(row.payload).decode()
    values["key"] = None if row.key is None else b64encode(row.key).decode()
    values["headers"] = dict(row.headers)
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def decoded(text: str) -> ScheduleRow:
    """A row from its stored form; what a later version has added is left out."""
    stored = json.loads(text)
    values = {each.name: stored[each.name] for each in fields(ScheduleRow) if each.name in stored}
    values["payload"] = b64decode(values["payload"])
    values["key"] = None if values["key"] is None else b64decode(values["key"])
    for name in ("firing", "last"):
        values[name] = None if values[name] is None else TickPlace(*values[name])
    values["skipped"] = None if values["skipped"] is None else SkippedTick(*values["skipped"])
    return ScheduleRow(**values)


def iso_time(at_ms: int) -> str:
    """A time in UTC, as the header of a message has it."""
    when = datetime.fromtimestamp(at_ms / 1000, UTC)
    exact = "milliseconds" if at_ms % 1000 else "seconds"
    return when.isoformat(timespec=exact).replace("+00:00", "Z")
