"""The schedule pass: pushes the ticks of schedules that are due.

Each tick becomes exactly one message, however many passes run, and wherever they stop: see
`cassq.producer.tick_push`. Schedules of deleted queues are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cassq.errors import OwnershipError, QueueFullError, QueuePausedError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.model.rows import QueueRow
from cassq.model.schedules import ScheduleRow, Step, iso_time, next_step, passed_by
from cassq.plurals import counted
from cassq.producer.quota import Quota
from cassq.producer.settled import unsettled_groups
from cassq.producer.tick_push import PushTo, push_tick
from cassq.reaper.actions import VOID, Action, PlannedPass, Scope

logger: logging.Logger = logging.getLogger("cassq")


class DoneTicks(NamedTuple):
    """What one action did for a schedule."""

    pushed: int = 0
    skipped: int = 0
    removed: bool = False

    def __str__(self) -> str:
        if self.removed:
            return "removed: its queue was deleted"
        parts = [counted(self.pushed, "tick") + " pushed"] if self.pushed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return ", ".join(parts)


def plan(snapshot: Sequence[ScheduleRow], now_ms: int) -> list[Action]:
    """Decide which schedules are due. now_ms: wall time."""
    found: list[Action] = []
    for row in snapshot:
        step = next_step(row, now_ms)
        if step is not None:
            detail = f"the tick of {iso_time(step.tick_ms)}"
            found.append(Action("schedule", row.name, row.queue, detail=detail, row=row))
    return found


class PushTicks(PlannedPass[Sequence[ScheduleRow]]):
    """Pushes ticks that are due. push_to: pushes their messages; None: nothing is done. patience:
    returns the seconds after which further ticks of a schedule are left to the next run."""

    name = "schedule"

    def __init__(
        self,
        ports: Ports,
        dead_letter: DeadLetterFn,
        push_to: PushTo | None,
        patience: Callable[[], float],
    ) -> None:
        super().__init__(ports)
        self._dead_letter = dead_letter
        self._push_to = push_to
        self._patience = patience

    def now_ms(self) -> int:
        """Wall time: that of the servers, or of this machine if there are none."""
        return self._ports.catalog.wall_ms()

    def look(self, scope: Scope) -> list[ScheduleRow]:
        """Cost: one read of the schedules."""
        if self._push_to is None:
            return []
        rows = self._ports.catalog.records.schedules()
        return [row for row in rows if scope.ids is None or row.queue_id in scope.ids]

    def plan(self, snapshot: Sequence[ScheduleRow], now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Do the actions; leave out those that found nothing to do."""
        return [action for action in super().apply_all(actions) if action.outcome != VOID]

    def apply(self, action: Action) -> str | None:
        """Push the due ticks of a schedule, one after another. Cost: for each, a read, two synced
        catalog transactions and one durable push; with overlap="skip" some more reads."""
        row: ScheduleRow | None = action.row
        clock, done = self._ports.clock, DoneTicks()
        until_ms = clock.boot_ms() + self._patience() * 1000
        try:
            while row is not None:
                step = next_step(row, self.now_ms())
                if step is None:
                    break
                queue = self._ports.catalog.queues.by_id(row.queue_id)
                if queue is None or queue.deleted:
                    removed = self._ports.catalog.records.drop_schedule(row)
                    return str(DoneTicks(removed=True)) if removed else None
                before = row
                row, pushed = self._take(queue, row, step)
                if row is before:
                    break  # another process changed it
                done = done._replace(pushed=done.pushed + pushed, skipped=done.skipped + 1 - pushed)
                if clock.boot_ms() >= until_ms:
                    break
        except OwnershipError as exc:
            logger.debug("%s", exc)  # another process handles this tick
        except (QueueFullError, QueuePausedError) as exc:
            logger.debug("a tick of schedule %s waits: %s", action.subject, exc)
        return str(done) or None

    def _take(
        self, queue: QueueRow, row: ScheduleRow, step: Step
    ) -> tuple[ScheduleRow | None, int]:
        """Push a tick, or skip it. Returns the schedule's new row, or the same row if another
        process has changed it, and how many ticks were pushed."""
        why = step.skip
        if why is None and self._overlaps(row):
            why = "overlap"
        if why is not None:
            new = passed_by(row, step.tick_ms, why)
            return (new if self._ports.catalog.records.change_schedule(row, new) else row), 0
        Quota(self._ports, lambda: queue, self._dead_letter).admit(1, whole=True)
        assert self._push_to is not None
        return push_tick(self._ports, self._push_to, queue, row, step.tick_ms), 1

    def _overlaps(self, row: ScheduleRow) -> bool:
        """Whether a tick must be skipped because a group is not done with the last one's
        message."""
        if row.overlap == "allow" or row.last is None or row.firing is not None:
            return False
        return bool(unsettled_groups(self._ports, row.last.pipe_id, row.last.seq))
