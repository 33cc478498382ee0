"""Health: which sidecars failed lately in this process, so that nobody waits for them again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cassq.base.clock import Clock
from cassq.errors import BackendTimeoutError
from cassq.extents.protocol.words import RefusedError
from cassq.extents.sidecar.net.network import CallResult

# How long one that failed is avoided: at first, and at most; twice as long each time.
AVOID_FIRST_MS, AVOID_MOST_MS = 1000, 60_000


class SidecarHealth:
    """Those that failed, and until when they are avoided. Thread-safe. A hint, never more: who
    has no other choice asks them all the same."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: dict[str, tuple[int, int]] = {}  # by name: how long, and until when, in ms

    def failed(self, sidecar: str) -> None:
        """It did not do what it was asked to, or not in time. Once while it is avoided: all who
        were asking it at the moment will say so."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            long_ms, until_ms = self._failing.get(sidecar, (0, 0))
            if now_ms >= until_ms:
                long_ms = min(max(AVOID_FIRST_MS, 2 * long_ms), AVOID_MOST_MS)
                self._failing[sidecar] = long_ms, now_ms + long_ms

    def well(self, sidecar: str) -> None:
        """It answered in time."""
        if sidecar in self._failing:
            with self._lock:
                self._failing.pop(sidecar, None)

    def avoided(self, sidecar: str) -> bool:
        """Whether others are to be asked first. Cost: a memory read."""
        failing = self._failing.get(sidecar)
        return failing is not None and self._clock.boot_ms() < failing[1]

    def note(self, answers: Sequence[CallResult], *, slow: bool = True) -> None:
        """Learn from what became of calls. slow: whether one that did not answer in time failed;
        not where the time was short."""
        for answer in answers:
            if answer.error is None or isinstance(answer.error, RefusedError):
                self.well(answer.sidecar)
            elif slow or not isinstance(answer.error, BackendTimeoutError):
                self.failed(answer.sidecar)
