"""What /health of the reaper's daemon says: whether its passes have succeeded lately."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

from cassq.base.clock import Clock
from cassq.errors import CassqError

# It is unhealthy after this many pauses without a successful pass; a pass itself takes some time.
PAUSES_MAX = 3
SECONDS_MIN = 30.0


class ReapHealth:
    """Remembers the outcomes of passes. every: the seconds between two passes. Thread-safe.

    A pass succeeded if it ran to its end, even if some of its actions could not be done; those are
    counted. A pass that hangs is as bad as one that fails.
    """

    def __init__(self, every: float, clock: Clock) -> None:
        self._limit_ms = round(1000 * max(PAUSES_MAX * every, SECONDS_MIN))
        self._clock = clock
        self._lock = threading.Lock()
        self._well_ms = clock.boot_ms()  # the first pass has as much time as later ones
        self._succeeded_at: datetime | None = None
        self._passes = 0
        self._failures = 0
        self._undone = 0
        self._error = ""

    def succeeded(self, undone: int) -> None:
        """A pass is over. undone: how many of its actions failed."""
        with self._lock:
            self._well_ms = self._clock.boot_ms()
            self._succeeded_at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
            self._passes += 1
            self._failures, self._undone, self._error = 0, undone, ""

    def failed(self, exc: CassqError) -> None:
        """A pass was ended by an error."""
        with self._lock:
            self._passes += 1
            self._failures += 1
            self._error = str(exc)

    def facts(self) -> dict[str, Any]:
        """What /health says. healthy: whether a pass succeeded lately. failures: passes that
        failed since; undone: actions of the last successful pass that could not be done."""
        with self._lock:
            silent_ms = self._clock.boot_ms() - self._well_ms
            at = self._succeeded_at
            return {
                "healthy": silent_ms <= self._limit_ms,
                "last_success": None if at is None else at.isoformat(timespec="milliseconds"),
                "seconds_since": round(silent_ms / 1000, 3),
                "seconds_allowed": self._limit_ms / 1000,
                "passes": self._passes,
                "failures": self._failures,
                "undone": self._undone,
                "error": self._error,
            }
