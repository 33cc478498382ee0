"""The sweep pass: finishes removals of pipes and queues that a crash interrupted, and cleans up
after interrupted openings of pipes.

An extent is made before its pipe's row, and nothing is written to it before the row exists. If it
has no row an hour later, because its pusher died in between, it is a *stray*. One reaper searches
all extents for strays every `LOOK_MS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from cassq.base.ids import made_at_ms
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentInfo, ExtentMissingError
from cassq.inspect.history import MINUTE_MS
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import STRAY_MS
from cassq.model.rows import PipeRow, Sample
from cassq.plurals import counted
from cassq.reaper.actions import (
    DONE,
    LEASE_MS,
    PIPES_AT_ONCE,
    VOID,
    Action,
    PlannedPass,
    Scope,
)

LOOK_MS = 600_000
REMOVAL_LEASE = "reaper:removal"
# The subject of the sample that records the last search for strays.
LOOKED = "strays"


class Leftovers(NamedTuple):
    """Pipes whose rows say that their files must be removed, and extents without a pipe's row."""

    consumed: Sequence[PipeRow]
    names: Mapping[str, str]  # of queues, by id
    rowless: Sequence[ExtentInfo] = ()


def plan(snapshot: Leftovers, now_ms: int) -> list[Action]:
    """Remove all these pipes, and the extents that are old enough. now_ms: catalog time."""
    found = [
        Action("sweep", pipe.id, snapshot.names.get(pipe.queue_id, pipe.queue_id))
        for pipe in snapshot.consumed
    ]
    for info in snapshot.rowless:
        made_ms = made_at_ms(info.pipe_id)
        if made_ms is not None and now_ms - made_ms >= STRAY_MS:
            found.append(Action("sweep", info.pipe_id, info.queue_name, row=info))
    return found


class Removal:
    """Removes the consumed pipes of all queues: their extents, then their rows.

    One reaper at a time does so, and removes the oldest pipes of a queue first: in Cassandra, a
    pipe that is still listed between removed ones keeps their tombstones apart, and each read has
    to pass these. Pipes that are left, for instance by a crash, stay consumed until the next sweep.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    def remove(self) -> set[str]:
        """Remove all pipes that are consumed now, unless another reaper does; return the ids of
        those removed. Cost: taking a lease, and a query; for every `PIPES_AT_ONCE` pipes a sync, a
        transaction, and renewing the lease."""
        leases, owner = self._ports.catalog.leases, self._ports.ids.client
        removed: set[str] = set()
        if leases.take(REMOVAL_LEASE, owner, LEASE_MS) is None:
            return removed
        try:
            consumed = self._ports.catalog.pipes.consumed()
            in_order = sorted(consumed, key=lambda pipe: (pipe.queue_id, pipe.ordinal))
            left = [pipe.id for pipe in in_order]
            while left:
                some, left = left[:PIPES_AT_ONCE], left[PIPES_AT_ONCE:]
                self._ports.store.drop(some)
                self._ports.catalog.pipes.forget(some)
                removed.update(some)
                if left and leases.take(REMOVAL_LEASE, owner, LEASE_MS) is None:
                    break
        finally:
            leases.drop(REMOVAL_LEASE, owner)
        return removed


class Sweep(PlannedPass[Leftovers]):
    """Removes abandoned extents and rows, always of all queues."""

    name = "sweep"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._removal = Removal(ports)
        self._look_at_ms = 0  # boot time
        self._looked = False

    def look(self, scope: Scope) -> Leftovers:
        """Cost: one query of a partial index; on networked stores, once in `LOOK_MS`, the ids of
        all extents and pipes."""
        consumed = self._ports.catalog.pipes.consumed()
        names = {pipe.queue_id: scope.name(pipe.queue_id) for pipe in consumed}
        return Leftovers(consumed, names, self._rowless())

    def _rowless(self) -> Sequence[ExtentInfo]:
        """Extents without a row, if it is time to look for them."""
        catalog, boot_ms = self._ports.catalog, self._ports.clock.boot_ms()
        if not self._ports.store.leaves_strays or boot_ms < self._look_at_ms:
            return ()
        self._look_at_ms = boot_ms + LOOK_MS
        if catalog.records.samples(LOOKED, MINUTE_MS, catalog.now_ms() - LOOK_MS):
            return ()
        self._looked = True
        return list(self._ports.store.extents(catalog.pipes.ids()))

    def plan(self, snapshot: Leftovers, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Remove a stray. Cost: a read, that of sealing it, and that of dropping it."""
        if self._ports.catalog.pipes.by_id(action.subject) is not None:
            return None  # the row was added meanwhile
        with suppress(ExtentMissingError):  # its removal was interrupted
            end = self._ports.store.seal(action.subject)
            if end.seq > 0:
                raise CorruptionError(
                    f"pipe {action.subject} has {counted(end.seq, 'message')} but no row: it is not"
                    " removed",
                    hint="were tables restored from backups of different times?",
                )
        self._ports.store.drop([action.subject])
        return "never had a row"

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Remove all consumed pipes, then strays one by one, then the rows of deleted queues that
        have no pipes any more."""
        consumed = [action for action in actions if action.row is None]
        removed = self._removal.remove() if consumed else ()
        outcomes = [
            replace(action, outcome=DONE if action.subject in removed else VOID)
            for action in consumed
        ]
        outcomes += super().apply_all([action for action in actions if action.row is not None])
        if self._looked and not self.stopping():
            self._looked = False
            now_ms = self._ports.catalog.now_ms()
            self._ports.catalog.records.add_samples([Sample(LOOKED, MINUTE_MS, now_ms, "{}")])
        for deleted in self._ports.catalog.queues.listed(deleted=True):
            self._ports.catalog.queues.forget(deleted.id)
        return outcomes
