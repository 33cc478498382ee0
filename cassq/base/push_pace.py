"""How fast an appender appends, which decides how many pipes are open side by side."""

from __future__ import annotations


class PushPace:
    """Messages a second, measured now and then."""

    __slots__ = ("_since_ms", "count", "rate")

    def __init__(self, now_ms: int) -> None:
        self.count: int = 0  # messages since it was last measured
        self.rate: int = 0  # messages a second, then
        self._since_ms = now_ms

    def measure(self, now_ms: int) -> int:
        """Messages a second since the last time."""
        self.rate = -(-self.count * 1000 // max(1, now_ms - self._since_ms))
        self.count, self._since_ms = 0, now_ms
        return self.rate
