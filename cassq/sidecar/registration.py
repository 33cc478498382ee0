"""Registration: a sidecar sends heartbeats to the catalog, and reads its wanted state there.

A sidecar whose engine failed sets itself to draining: it cannot write any more, not even that it is
damaged, so all its replicas must be copied elsewhere. A sidecar that finds damage makes repairers
check all placements, because it may also lack extents that left no trace to report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from cassq.catalog.port import Catalog
from cassq.errors import BackendError
from cassq.extents.replicas.shortages import note_shortage
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.engine.replica_state import ReplicaState

logger: logging.Logger = logging.getLogger("cassq")

LEASE_MS = 10_000


class Registration:
    """Sends heartbeats. row: returns the row to write, without its state. learn: called with the
    state. failure: returns the engine's failure, "" for none. state: the last one known."""

    def __init__(
        self,
        catalog: CatalogThread,
        replica_state: ReplicaState,
        row: Callable[[], SidecarRow],
        learn: Callable[[SidecarState], None],
        failure: Callable[[], str],
        state: SidecarState = SidecarState.UP,
    ) -> None:
        self.state: SidecarState = state
        self._catalog = catalog
        self._replica_state = replica_state
        self._row = row
        self._tell = learn
        self._failure = failure
        self._failed = False  # and logged
        self._damaged = False  # and noted in the catalog
        self._stopping = False
        if state is not SidecarState.UP:
            self._follow()

    async def run(self) -> None:
        """Beat three times per lease, until cancelled."""
        while True:
            await self.beat()
            await asyncio.sleep(LEASE_MS / 3000)

    async def beat(self) -> bool:
        """Beat once; False if the catalog cannot be reached."""
        row, failed = self._row(), self._has_failed()
        newly_damaged = row.damaged > 0 and not self._damaged

        def renewed(catalog: Catalog) -> SidecarRow:
            there = _renewed(catalog, row, failed=failed)
            if newly_damaged:
                note_shortage(catalog)
            return there

        try:
            there = await self._catalog.ask(renewed)
        except BackendError:
            return False
        self._damaged = row.damaged > 0
        self._learn(there)
        return True

    def _has_failed(self) -> bool:
        """Whether the engine failed; this is logged once, so that an operator checks the disk."""
        failure = self._failure()
        if failure and not self._failed:
            logger.error(
                "the sidecar accepts no more messages: %s. It drains: its replicas are copied to"
                " other sidecars, if these have room. Check its disk, move its directory away, and"
                " start it with the same --name and an empty --data: repairs then refill it. With"
                " the old directory it goes on draining, until `cassq sidecar drain --undo`",
                failure,
            )
            self._failed = True
        return bool(failure)

    async def leave(self) -> None:
        """Unregister, if the catalog can be reached. No beat may follow."""
        row = replace(self._row(), lease_ms=0)
        try:
            await self._catalog.ask(lambda catalog: catalog.sidecars.beat(row))
        except BackendError:
            logger.warning(
                "the catalog could not be informed that the sidecar stops: its lease will expire"
            )

    def _learn(self, there: SidecarRow) -> None:
        if there.state is not self.state:
            logger.warning("the sidecar's state is set to %s", there.state.name.lower())
        self.state = there.state
        self._follow()

    def _follow(self) -> None:
        self._tell(self.state)
        if not self._stopping:
            self._replica_state.draining = self.state is not SidecarState.UP

    def stopping(self) -> None:
        """Make it drain from now on, whatever its row says."""
        self._stopping = True
        self._replica_state.draining = True


def _renewed(catalog: Catalog, row: SidecarRow, *, failed: bool) -> SidecarRow:
    """Beat; returns the row afterwards. failed: also set a sidecar that is up to draining. If a
    user gives it up (GONE) between the two steps, that is overwritten, and has to be repeated."""
    there = catalog.sidecars.beat(row)
    if failed and there.state is SidecarState.UP:
        catalog.sidecars.set_state(row.name, SidecarState.DRAINING)
        there = replace(there, state=SidecarState.DRAINING)
    return there
