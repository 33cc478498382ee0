"""Pace: how fast a popper finishes messages, how long its writes take, and what follows from that.

Where claims and acks are slow, as where many poppers share one pipe of a cluster, each covers more
messages, so that writing takes a small part of a popper's time. Where they are quick, as in one
directory, they stay small, which leaves work for others.

Writes that one client's poppers make at the same time share one step. So poppers that write seldom
write at the same moments, the *beats* of their client, which differ from other clients' beats.
"""

from __future__ import annotations

from collections import deque

PREFETCH_SECONDS = 0.1  # how much work an iteration prefetches
# The most, on average, where claims are slow and there is enough for all. A single prefetch may
# take half as much again, to reach a beat.
PREFETCH_SECONDS_MAX = 2.0
ACK_INTERVAL_MS = 50  # how long acks are collected at most ...
ACK_INTERVAL_MS_MAX = 1000  # ... and where writing them is slow
WORK_PER_WRITE = 32  # between two writes a popper works at least this many times as long as one
SAMPLES_MAX = 16  # older measurements count for next to nothing
BEATS_MS = (125, 250, 500, 1000, 2000)  # each divides the slower ones: their beats coincide


class PopperPace:
    """Moving averages of one popper: how many messages it finishes per second (unknown until it
    has finished some), and how long its claims and its writes of acks take.

    client: a number that all poppers of a client share; sets the phase of their beats. finished:
    (number of messages, milliseconds) of fully settled claims, newest last. claimed: milliseconds
    that claims took. quick: whether writing is quick enough to write acks every `ACK_INTERVAL_MS`.
    """

    def __init__(self, client: int = 0) -> None:
        self._phase_ms = client % BEATS_MS[-1]
        self._rate: float | None = None
        self._claim_ms = self._flush_ms = 0.0
        self.finished: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self.claimed: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.quick: bool = True

    def _look(self) -> None:
        """Add the new measurements to the averages."""
        while self.finished:
            count, ms = self.finished.popleft()
            rate = count * 1000 / max(ms, 1)
            self._rate = rate if self._rate is None else 0.5 * self._rate + 0.5 * rate
        while self.claimed:
            self._claim_ms = 0.75 * self._claim_ms + 0.25 * self.claimed.popleft()

    def flushed(self, ms: int) -> None:
        """Note that writing some acks took `ms` milliseconds."""
        self._flush_ms = 0.75 * self._flush_ms + 0.25 * ms
        self.quick = WORK_PER_WRITE * self._flush_ms <= ACK_INTERVAL_MS

    def ahead(self) -> int:
        """How many messages an iteration may prefetch."""
        return self._in_seconds(PREFETCH_SECONDS)

    def prefetch_limit(self, now_ms: int) -> int:
        """How many messages it may claim where plenty remain for others; where claims are slow, as
        many as it finishes until one of the next beats."""
        self._look()
        wanted_ms = WORK_PER_WRITE * self._claim_ms
        if wanted_ms <= PREFETCH_SECONDS * 1000:
            return self.ahead()
        beat_ms = _beat_ms(wanted_ms, int(PREFETCH_SECONDS_MAX * 1000))
        until_ms = self._until_beat(beat_ms, now_ms)
        return self._in_seconds((until_ms + (beat_ms if until_ms < beat_ms / 2 else 0)) / 1000)

    def _in_seconds(self, seconds: float) -> int:
        self._look()
        return 1 if self._rate is None else max(1, int(self._rate * seconds))

    def ack_wait_ms(self, timeout_ms: int, now_ms: int) -> int:
        """How long an ack may wait to be written together with others."""
        most_ms = min(ACK_INTERVAL_MS_MAX, timeout_ms // 10)
        if self.quick or most_ms < BEATS_MS[0]:
            return ACK_INTERVAL_MS
        return self._until_beat(_beat_ms(WORK_PER_WRITE * self._flush_ms, most_ms), now_ms)

    def _until_beat(self, beat_ms: int, now_ms: int) -> int:
        return beat_ms - (now_ms + self._phase_ms) % beat_ms

    def allowed(self, asked: int, timeout_ms: int) -> int:
        """How many of the messages asked for it may claim: at most as many as it finishes in a
        third of the claim timeout."""
        self._look()
        if self._rate is None:
            return asked
        return max(1, min(asked, int(self._rate * timeout_ms / 3000)))


def _beat_ms(wanted_ms: float, most_ms: int) -> int:
    """The quickest beat of at least `wanted_ms`, or else the slowest one allowed."""
    allowed = [beat_ms for beat_ms in BEATS_MS if beat_ms <= most_ms]
    return next((beat_ms for beat_ms in allowed if beat_ms >= wanted_ms), allowed[-1])
