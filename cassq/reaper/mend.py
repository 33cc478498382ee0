"""The mend pass: groups whose claim rows do not cover what they must get rows that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.lifecycle.mending import faults, mend
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Cursor
from cassq.reaper.actions import Action, PlannedPass, Scope

# How often all queues are looked at by one reaper that goes on.
EVERY_MS = 60_000


class Wedge(NamedTuple):
    """A group's claims in a pipe of a queue, and what is wrong with them."""

    queue: str
    cursor: Cursor
    why: str


def plan(snapshot: Sequence[Wedge]) -> list[Action]:
    """Mend each. Pure."""
    return [
        Action("mend", f"{wedge.cursor.pipe_id}", wedge.queue, detail=wedge.why, row=wedge)
        for wedge in snapshot
    ]


class Mend(PlannedPass[Sequence[Wedge]]):
    """Mends wedged groups.

    What no row covers moves nothing else, so it is not found by what is due: every cursor of a live
    pipe is looked at, with its open claims. So a reaper that goes on looks once a minute; the first
    time, and of queues that are named, or for a dry run, at once. Retired pipes have no cursors:
    history costs nothing.
    """

    name = "mend"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._next_ms = 0  # boot time

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Look, decide and act, if it is time."""
        now_ms = self._ports.clock.boot_ms()
        if scope.ids is None and not dry_run:
            if now_ms < self._next_ms:
                return []
            self._next_ms = now_ms + EVERY_MS
        return super().run(scope, dry_run=dry_run)

    def look(self, scope: Scope) -> list[Wedge]:
        """Cost: that of `Catalog.wedged`; four reads for each that is found."""
        catalog, found = self._ports.catalog, []
        for cursor, why in faults(catalog, scope.ids):
            pipe = catalog.pipe(cursor.pipe_id)
            if pipe is not None:
                found.append(Wedge(scope.name(pipe.queue_id), cursor, why))
        return found

    def plan(self, snapshot: Sequence[Wedge], now_ms: int) -> list[Action]:
        return plan(snapshot)

    def apply(self, action: Action) -> str | None:
        """Cost: that of `mending.mend`."""
        wedge: Wedge = action.row
        return mend(self._ports, wedge.cursor.group_id, wedge.cursor.pipe_id)
