"""Pace: how fast a popper finishes messages, what its writes take, and what follows from that.

Where a claim or an ack takes long, as it does where many share one pipe of a cluster, each is made
to cover more work, so that writing takes a small part of a popper's time; the writes become fewer,
and shorter. Where they are quick, as in one directory, they stay small, and others find work.
"""

from __future__ import annotations

PREFETCH_SECONDS = 0.1  # how much work an iteration claims ahead
PREFETCH_SECONDS_MAX = 2.0  # and at most, where claiming takes long and there is enough for all
ACK_INTERVAL_MS = 50  # when acks are written at the latest
ACK_INTERVAL_MS_MAX = 1000  # and where writing them takes long
WORK_PER_WRITE = 32  # so many times longer than a write is the work between two


class Pace:
    """Moving averages of one popper: its messages a second, unknown until it finished some, and
    what its claims and the writes of its acks took."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._claim_ms = self._flush_ms = 0.0

    def finished(self, count: int, ms: int) -> None:
        """`count` messages were finished in `ms` milliseconds."""
        rate = count * 1000 / max(ms, 1)
        self._rate = rate if self._rate is None else 0.5 * self._rate + 0.5 * rate

    def claimed(self, ms: int) -> None:
        """A claim took `ms` milliseconds."""
        self._claim_ms = 0.75 * self._claim_ms + 0.25 * ms

    def flushed(self, ms: int) -> None:
        """The acks of some messages took `ms` milliseconds to be written."""
        self._flush_ms = 0.75 * self._flush_ms + 0.25 * ms

    def ahead(self) -> int:
        """How many an iteration may claim that it has not been asked for."""
        return self._in_seconds(PREFETCH_SECONDS)

    def welcome(self) -> int:
        """How many it may claim where that leaves plenty for others."""
        seconds = WORK_PER_WRITE * self._claim_ms / 1000
        return self._in_seconds(min(max(seconds, PREFETCH_SECONDS), PREFETCH_SECONDS_MAX))

    def _in_seconds(self, seconds: float) -> int:
        return 1 if self._rate is None else max(1, int(self._rate * seconds))

    def ack_interval_ms(self, timeout_ms: int) -> int:
        """How long an ack may wait for others to be written with it."""
        wanted = min(int(WORK_PER_WRITE * self._flush_ms), ACK_INTERVAL_MS_MAX, timeout_ms // 10)
        return max(wanted, ACK_INTERVAL_MS)

    def allowed(self, asked: int, timeout_ms: int) -> int:
        """No more than was being finished in a third of the claim timeout."""
        if self._rate is None:
            return asked
        return max(1, min(asked, int(self._rate * timeout_ms / 3000)))
