"""Health: which sidecars failed lately in this process, so that callers do not wait for them; and
when a new pipe may get all its replicas again."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from cassq.base.clock import Clock
from cassq.errors import BackendTimeoutError
from cassq.extents.protocol.messages import RefusedError
from cassq.extents.sidecar.net.network import CallResult

# How long a sidecar that failed is avoided: at first, and at most; twice as long each time.
AVOID_FIRST_MS, AVOID_MOST_MS = 1000, 4000


class SidecarHealth:
    """Sidecars that failed, and until when to avoid them. Thread-safe. Only a hint: callers without
    another choice ask them nevertheless."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failing: dict[str, tuple[int, int]] = {}  # by name: how long, and until when, in ms

    def failed(self, sidecar: str) -> None:
        """Note that a sidecar failed or was late. Counts once while it is avoided, because all
        callers that were waiting for it report the failure."""
        now_ms = self._clock.boot_ms()
        with self._lock:
            long_ms, until_ms = self._failing.get(sidecar, (0, 0))
            if now_ms >= until_ms:
                long_ms = min(max(AVOID_FIRST_MS, 2 * long_ms), AVOID_MOST_MS)
                self._failing[sidecar] = long_ms, now_ms + long_ms

    def well(self, sidecar: str) -> None:
        """Note that a sidecar answered in time."""
        if sidecar in self._failing:
            with self._lock:
                self._failing.pop(sidecar, None)

    def avoided(self, sidecar: str) -> bool:
        """Whether other sidecars should be asked first. Cost: a memory read."""
        failing = self._failing.get(sidecar)
        return failing is not None and self._clock.boot_ms() < failing[1]

    def note(self, answers: Sequence[CallResult], *, slow: bool = True) -> None:
        """Learn from the results of calls. slow: whether a timeout counts as a failure; False where
        the time was short."""
        for answer in answers:
            if answer.error is None or isinstance(answer.error, RefusedError):
                self.well(answer.sidecar)
            elif slow or not isinstance(answer.error, BackendTimeoutError):
                self.failed(answer.sidecar)


# How soon another pipe may be opened instead of one that has too few replicas; how often in a row;
# and how soon after that.
LEAVE_SOON_MS, LEAVE_SOON_TRIES, LEAVE_LATER_MS = 2000, 10, 30_000


class PipeReplacement:
    """When to open pipes instead of those that have too few replicas. Thread-safe.

    A sidecar may be alive and yet unreachable from here. Then the next pipe has too few replicas
    again, and after some such attempts the next one is later.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._attempts = 0
        self._next_ms = 0

    def opened(self, *, full: bool, able: bool) -> None:
        """Note that a pipe was opened, and whether it has all replicas. able: whether enough
        sidecars seemed to accept it for that. Until the next attempt is due, further pipes do not
        count."""
        now_ms = self._clock.boot_ms()
        if full or not able:
            self._attempts = self._next_ms = 0
        elif now_ms >= self._next_ms:
            soon = self._attempts < LEAVE_SOON_TRIES
            self._attempts += 1
            self._next_ms = now_ms + (LEAVE_SOON_MS if soon else LEAVE_LATER_MS)

    def due(self) -> bool:
        """Whether the next attempt may be made now. Cost: a memory read."""
        return self._clock.boot_ms() >= self._next_ms
