"""Rate limiter of copying, in bytes a second."""

from __future__ import annotations

from cassq.base.clock import Clock

# The bounds of how many bytes all copies together copy in one round.
ROUND_BYTES_MIN, ROUND_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024
ROUNDS_PER_SECOND = 4


class CopyPace:
    """Keeps to a rate by pauses after copied bytes; unused time is not saved up. rate: bytes per
    second.

    round_bytes: how much to copy at once.
    """

    def __init__(self, clock: Clock, rate: int) -> None:
        self._clock = clock
        self._rate = rate
        desired = max(ROUND_BYTES_MIN, rate // ROUNDS_PER_SECOND)
        self.round_bytes: int = min(ROUND_BYTES_MAX, desired)
        self._free_ms = 0.0  # boot time

    def owed_ms(self) -> int:
        """Milliseconds until more may be copied."""
        return max(0, round(self._free_ms - self._clock.boot_ms()))

    def spent(self, size_bytes: float) -> None:
        """Note that this much was copied."""
        begin_ms = max(self._free_ms, self._clock.boot_ms())
        self._free_ms = begin_ms + 1000 * size_bytes / self._rate
