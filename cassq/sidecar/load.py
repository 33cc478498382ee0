"""The load of a sidecar: the bytes per second that it wrote recently."""

from __future__ import annotations

from cassq.base.clock import Stopwatch

_WEIGHT_SECONDS = 10.0  # what is older counts little


class ByteLoad:
    """Counts bytes, and their recent rate per second."""

    def __init__(self) -> None:
        self.bytes = 0
        self._counted = 0
        self._rate = 0.0
        self._watch = Stopwatch()

    def rate(self) -> int:
        """Bytes a second, most of it of the last ten seconds."""
        seconds = self._watch.seconds()
        if seconds > 0.1:
            weight = min(1.0, seconds / _WEIGHT_SECONDS)
            self._rate += weight * ((self.bytes - self._counted) / seconds - self._rate)
            self._counted, self._watch = self.bytes, Stopwatch()
        return round(self._rate)
