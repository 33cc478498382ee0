"""The directory: the sidecars of a catalog, cached for a moment."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cassq.base.clock import Clock
from cassq.catalog.port import Catalog
from cassq.errors import BackendError
from cassq.model.sidecar_rows import ReplicaAt, SidecarRow, SidecarState

logger: logging.Logger = logging.getLogger("cassq")

FRESH_MS = 1000


class SidecarDirectory:
    """Rows of sidecars, refreshed when they are a second old. Thread-safe."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._read: tuple[int, dict[str, SidecarRow]] | None = None

    def rows(self) -> Sequence[SidecarRow]:
        """Rows by name; the last known ones if the catalog does not answer. Cost: at most a read a
        second."""
        return list(self._rows().values())

    def zone_of(self, sidecar: str) -> str:
        """The zone of a sidecar; "" if it is not known. Cost: as `rows`."""
        row = self._rows().get(sidecar)
        return row.zone if row is not None else ""

    def lost(self, replicas: Sequence[ReplicaAt]) -> set[ReplicaAt]:
        """The replicas that are certainly lost: a user gave their sidecar up, or it has another
        data directory now. Cost: a read."""
        self.outdated()
        rows = self._rows()
        return {
            replica
            for replica in replicas
            if (row := rows.get(replica.sidecar)) is not None
            and (row.generation != replica.generation or row.state is SidecarState.GONE)
        }

    def outdated(self) -> None:
        """Note that the rows are outdated: the next call reads them again."""
        if self._read is not None:
            self._read = -FRESH_MS, self._read[1]

    def _rows(self) -> dict[str, SidecarRow]:
        now_ms, read = self._clock.boot_ms(), self._read
        if read is not None and now_ms - read[0] < FRESH_MS:
            return read[1]
        try:
            rows = {row.name: row for row in self._catalog.sidecars.listed()}
        except BackendError as exc:
            if read is None:
                raise
            logger.debug("using the last known sidecars: %s", exc)
            rows = read[1]
        self._read = now_ms, rows
        return rows
