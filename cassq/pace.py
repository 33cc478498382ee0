"""Pace: how fast a popper has been finishing messages, and how many it may claim by that."""

from __future__ import annotations

PREFETCH_SECONDS = 0.1  # how much work an iteration claims ahead


class Pace:
    """A moving average of one popper's messages a second; unknown until it finished some."""

    def __init__(self) -> None:
        self._rate: float | None = None

    def learn(self, count: int, ms: int) -> None:
        """`count` messages were finished in `ms` milliseconds."""
        rate = count * 1000 / max(ms, 1)
        self._rate = rate if self._rate is None else 0.5 * self._rate + 0.5 * rate

    def ahead(self) -> int:
        """How many an iteration may claim that it has not been asked for."""
        return 1 if self._rate is None else max(1, int(self._rate * PREFETCH_SECONDS))

    def allowed(self, asked: int, timeout_ms: int) -> int:
        """No more than was being finished in a third of the claim timeout."""
        if self._rate is None:
            return asked
        return max(1, min(asked, int(self._rate * timeout_ms / 3000)))
