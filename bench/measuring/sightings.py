"""What the catalog tells of sidecars and of extents on them, for scenarios that must know."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from cassq.base.clock import SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.model.sidecar_rows import Placement, SidecarRow

CATALOG = "catalog.sqlite"


class Sightings:
    """The catalog of a directory that queues on sidecars are in, to read only."""

    def __init__(self, url: str) -> None:
        directory = Path(urlsplit(url).path)
        self._catalog = SqliteCatalog(directory / CATALOG, SystemClock(), durable=False)

    def now_ms(self) -> int:
        """Catalog time."""
        return self._catalog.now_ms()

    def sidecars(self) -> list[SidecarRow]:
        return self._catalog.sidecars.listed()

    def sidecar(self, name: str) -> SidecarRow:
        """The row of one. LookupError if there is none of that name."""
        for row in self.sidecars():
            if row.name == name:
                return row
        raise LookupError(f"no sidecar of the name {name} has registered")

    def _open(self, queue: str) -> Placement | None:
        """Where the newest pipe of a queue is that has no end yet."""
        found = [
            one
            for one in self._catalog.sidecars.placements()
            if one.queue_name == queue and one.end is None
        ]
        return max(found, key=lambda one: one.created_ms, default=None)

    def pipe(self, queue: str) -> str | None:
        """The pipe that a queue is pushed to."""
        found = self._open(queue)
        return None if found is None else found.pipe_id

    def holders(self, queue: str) -> list[str]:
        """The sidecars that hold it; none when there is no such pipe."""
        found = self._open(queue)
        return [] if found is None else [replica.sidecar for replica in found.replicas]

    def close(self) -> None:
        self._catalog.close()
