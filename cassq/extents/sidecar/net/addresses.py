"""The addresses of sidecars, as last read from the catalog."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, BackendUnavailableError
from cassq.model.sidecar_rows import SidecarRow

# An address this old is looked up again before a connection is opened; after a failure, a little
# sooner.
FRESH_SECONDS, RETRY_SECONDS = 2.0, 0.05


class Addresses:
    """Addresses of sidecars by name. Thread-safe. rows: reads all sidecars from the catalog."""

    def __init__(self, rows: Callable[[], list[SidecarRow]]) -> None:
        self._rows = rows
        self._known: dict[str, SidecarRow] = {}
        self._asked: Stopwatch | None = None
        self._lock = threading.Lock()

    def of(self, name: str, *, failed: bool = False) -> str:
        """host:port of a sidecar. failed: the known address failed. Raises BackendUnavailableError
        for an unknown sidecar."""
        with self._lock:
            limit = RETRY_SECONDS if failed or name not in self._known else FRESH_SECONDS
            if self._asked is None or self._asked.seconds() >= limit:
                self._ask(name)
            row = self._known.get(name)
        if row is None:
            raise BackendUnavailableError(
                f"the catalog knows no sidecar {name!r}",
                hint="was it ever started with this catalog?",
                sidecar=name,
            )
        return row.address

    def _ask(self, name: str) -> None:
        watch = Stopwatch()
        try:
            self._known = {row.name: row for row in self._rows()}
        except BackendError:
            # While the catalog is away the last known addresses are used.
            if name not in self._known:
                raise
        self._asked = watch
