"""Planted bugs of schedules, with the wrong parts they put in; see `plants`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from cassq.catalog.sqlite import record_tables
from cassq.model.schedules import fired
from cassq.producer.tick_push import TickPush
from tests.simulation.plants.plants import Plant
from tests.simulation.worlds.schedule_world import ScheduleWorld, draw_schedules


@dataclass(frozen=True)
class SchedulePlant(Plant):
    """Of a world with a schedule."""

    def world(self, seed: int, *, planted: bool = True, verbose: bool = False) -> ScheduleWorld:
        drawn = draw_schedules(random.Random(f"schedules {seed}"))
        return ScheduleWorld(seed, replace(drawn, **self.shape), verbose=verbose)


def pushed_over_notes() -> AbstractContextManager[Any]:
    """A process that finds a note pushes the tick without looking whether it is there."""
    return mock.patch.object(TickPush, "_counts", lambda self, row: False)


def believed_notes() -> AbstractContextManager[Any]:
    """A process that finds a note takes the tick for pushed."""
    return mock.patch.object(TickPush, "_counts", lambda self, row: True)


def changed_blindly() -> AbstractContextManager[Any]:
    """A schedule's row is changed whatever is there."""
    wrong = record_tables.CHANGE_SCHEDULE.replace("value = ?2", "?2 = ?2")
    return mock.patch.object(record_tables, "CHANGE_SCHEDULE", wrong)


@contextmanager
def settled_first() -> Iterator[None]:
    """The schedule goes on before the message of the tick is written."""
    right = TickPush._write

    def wrong(self: Any, rows: Any) -> Any:
        taken = right(self, rows)
        if not taken and self.row.firing is not None:
            settled = fired(self.row, self.row.firing)
            if self._records.change_schedule(self.row, settled):
                self.row = replace(settled, firing=self.row.firing)
        return taken

    with mock.patch.object(TickPush, "_write", wrong):
        yield


CRASHES: dict[str, Any] = {"crash_rate": 0.02, "switches": 400, "cuts": 0, "jump_rate": 0.0}
BESIDE: dict[str, Any] = {
    "pause_rate": 0.05, "pause_ms": (100, 5000), "switches": 500, "cuts": 0, "jump_rate": 0.0,
}  # fmt: skip

SCHEDULE_PLANTS = [
    SchedulePlant("tick-pushed-over-note", "who finds a note pushes without looking", 40,
                  CRASHES, patch=pushed_over_notes),
    SchedulePlant("tick-note-believed", "who finds a note takes the tick for pushed", 40,
                  CRASHES, patch=believed_notes),
    SchedulePlant("schedule-changed-blind", "a schedule is changed whatever is there", 40,
                  BESIDE, patch=changed_blindly),
    SchedulePlant("tick-settled-first", "a schedule goes on before the tick is pushed", 40,
                  CRASHES, patch=settled_first),
]  # fmt: skip
