"""The load of a sidecar: its recent write rate in bytes per second."""

from __future__ import annotations

from cassq.base.clock import Stopwatch

_WEIGHT_SECONDS = 10.0  # older writes count little


class ByteLoad:
    """A count of bytes, and its recent rate."""

    def __init__(self) -> None:
        self.bytes = 0
        self._counted = 0
        self._rate = 0.0
        self._watch = Stopwatch()

    def rate(self) -> int:
        """Bytes per second, mostly over the last ten seconds."""
        seconds = self._watch.seconds()
        if seconds > 0.1:
            weight = min(1.0, seconds / _WEIGHT_SECONDS)
            self._rate += weight * ((self.bytes - self._counted) / seconds - self._rate)
            self._counted, self._watch = self.bytes, Stopwatch()
        return round(self._rate)
