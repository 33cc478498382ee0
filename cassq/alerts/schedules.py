"""Finds schedules whose ticks come too late. Pure.

Kind of findings: late_schedule: a tick has been due for `LATE_SECONDS`, and its message was not
pushed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cassq.alerts.rules import LATE_SCHEDULE, Finding
from cassq.message.importance import NORMAL
from cassq.model.rows import QueueRow
from cassq.model.schedules import ScheduleRow, due_tick_ms, iso_time, late_ms

LATE_SECONDS = 300


def late(rows: Iterable[ScheduleRow], now_ms: int) -> list[ScheduleRow]:
    """The schedules with a tick that is too late at the wall time `now_ms`."""
    return [row for row in rows if late_ms(row, now_ms) >= LATE_SECONDS * 1000]


def schedule_findings(
    rows: Iterable[ScheduleRow], queues: Mapping[str, QueueRow], now_ms: int
) -> list[Finding]:
    """Find the problems of these schedules. queues: the existing queues of those that are late, by
    id. now_ms: wall time."""
    return [
        _late(row, queues[row.queue_id], now_ms)
        for row in late(rows, now_ms)
        if row.queue_id in queues
    ]


def _late(row: ScheduleRow, queue: QueueRow, now_ms: int) -> Finding:
    tick, late_for = iso_time(due_tick_ms(row)), f"more than {LATE_SECONDS // 60} minutes"
    begun = "was begun and not finished" if row.firing is not None else "was not pushed"
    policy = queue.policy
    why = "; pushes to the queue are paused" if policy.push_paused else ""
    return Finding(
        kind=LATE_SCHEDULE,
        queue=queue.name,
        group="",
        queue_id=queue.id,
        group_id=f"schedule:{row.id}",
        owner=policy.owner,
        importance=NORMAL,
        message=f"the tick of {tick} of schedule {row.name} {begun} for {late_for}{why}",
        values={"schedule": row.name, "tick": tick, "late": late_ms(row, now_ms) / 1000},
    )
