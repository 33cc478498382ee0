"""Where sidecars listen, as the catalog told it last."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, BackendUnavailableError
from cassq.model.sidecar_rows import SidecarRow

# What is known so long is asked for again before a connection is opened; where one failed it is
# asked for again a little sooner.
FRESH_SECONDS, RETRY_SECONDS = 2.0, 0.05


class Addresses:
    """Sidecars by name. Thread-safe. rows: all of them, from the catalog; a read."""

    def __init__(self, rows: Callable[[], list[SidecarRow]]) -> None:
        self._rows = rows
        self._known: dict[str, SidecarRow] = {}
        self._asked: Stopwatch | None = None
        self._lock = threading.Lock()

    def of(self, name: str, *, anew: bool = False) -> str:
        """host:port of a sidecar. anew: what is known did not help. Raises
        BackendUnavailableError for one that is not known."""
        with self._lock:
            limit = RETRY_SECONDS if anew or name not in self._known else FRESH_SECONDS
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
            # Without the catalog sidecars are found where they were.
            if name not in self._known:
                raise
        self._asked = watch
