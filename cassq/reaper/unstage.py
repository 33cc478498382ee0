"""The unstage pass: aborts writes whose driver is gone, and removes their staged pipes.

A write is abandoned if the lease of its driver was not renewed for its whole length, measured by
the watcher's own clock; the age of its pipes does not matter. Its own row is marked as aborted
before any of its pipes is removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from cassq.lifecycle.ports import Ports
from cassq.model.rows import Driver, WriteRow, WriteState
from cassq.plurals import counted
from cassq.producer.staging import DRIVER_LEASE_MS, abort
from cassq.reaper.actions import DONE, Action, PlannedPass, Scope, is_lapsed


class SeenDriver(NamedTuple):
    """A driver's lease as last seen, and since when, by the watcher's own boot clock."""

    beat: int
    since_ms: int


class OpenWrites(NamedTuple):
    """Writes that are open or not finished, and the drivers of the open ones."""

    rows: Sequence[WriteRow]
    drivers: Mapping[str, Driver]
    seen: Mapping[str, SeenDriver]
    names: Mapping[str, str]  # of queues, by id


def plan(snapshot: OpenWrites, now_ms: int) -> list[Action]:
    """Abort writes whose driver's lease was not renewed for its whole length; finish writes that
    are published or aborted.

    now_ms: by the watcher's own boot clock, like the times in `seen`.
    """
    found = []
    for row in snapshot.rows:
        if row.state is WriteState.OPEN:
            driver, look = snapshot.drivers[row.driver], snapshot.seen[row.driver]
            if not is_lapsed(driver, look.beat, look.since_ms, now_ms):
                continue
        queue = snapshot.names.get(row.queue_id, row.queue_id)
        found.append(Action("unstage", row.id, queue, row=row))
    return found


class Unstage(PlannedPass[OpenWrites]):
    """Aborts abandoned writes, and finishes writes that were published or aborted."""

    name = "unstage"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._seen: dict[str, SeenDriver] = {}

    def now_ms(self) -> int:
        return self._ports.clock.boot_ms()

    def look(self, scope: Scope) -> OpenWrites:
        """Cost: one query, and one for the drivers of open writes."""
        rows = self._ports.catalog.writes.unfinished(scope.ids)
        open_rows = [row for row in rows if row.state is WriteState.OPEN]
        drivers = known_drivers(self._ports, {row.driver for row in open_rows})
        now_ms = self.now_ms()
        for driver in drivers.values():
            before = self._seen.get(driver.id)
            if before is None or before.beat != driver.beat:
                self._seen[driver.id] = SeenDriver(driver.beat, now_ms)
        if scope.ids is None:
            for gone in self._seen.keys() - drivers.keys():
                del self._seen[gone]
        names = {row.queue_id: scope.name(row.queue_id) for row in rows}
        return OpenWrites(rows, drivers, dict(self._seen), names)

    def plan(self, snapshot: OpenWrites, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: one conditional write, and the removal of pipes."""
        row: WriteRow = action.row
        if row.state is WriteState.OPEN:
            return "aborted: its driver is gone" if abort(self._ports, row) else None
        count = self._ports.catalog.writes.finish(row)
        return counted(count, "pipe") if count else None

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Do the actions; leave out those that found nothing to do."""
        outcomes = super().apply_all(actions)
        return [action for action in outcomes if action.outcome == DONE or action.detail]


def known_drivers(ports: Ports, driver_ids: Collection[str]) -> dict[str, Driver]:
    """Drivers by id; for one that has sent no beat yet, a first beat is assumed."""
    unknown = {each: Driver(each, 0, DRIVER_LEASE_MS) for each in driver_ids}
    found: Iterable[Driver] = ports.catalog.writes.drivers(driver_ids) if driver_ids else ()
    return unknown | {driver.id: driver for driver in found}
