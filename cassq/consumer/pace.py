"""Pace: how fast a popper finishes messages, what its writes take, and what follows from that.

Where a claim or an ack takes long, as it does where many share one pipe of a cluster, each is made
to cover more work, so that writing takes a small part of a popper's time; the writes become fewer,
and shorter. Where they are quick, as in one directory, they stay small, and others find work.

What poppers of one client write at the same time goes in one step. So where they write seldom they
do it in time with each other: by a beat of the client's own, which other clients' do not fall on.
"""

from __future__ import annotations

from collections import deque

PREFETCH_SECONDS = 0.1  # how much work an iteration claims ahead
PREFETCH_SECONDS_MAX = 2.0  # and at most, where claiming takes long and there is enough for all
ACK_INTERVAL_MS = 50  # when acks are written at the latest
ACK_INTERVAL_MS_MAX = 1000  # and where writing them takes long
WORK_PER_WRITE = 32  # so many times longer than a write is the work between two
SAMPLES_MAX = 16  # what was measured before counts for next to nothing
BEATS_MS = (125, 250, 500, 1000, 2000)  # who keeps a slow one keeps time with the quicker, too


class PopperPace:
    """Moving averages of one popper: its messages a second, unknown until it finished some, and
    what its claims and the writes of its acks took.

    client: the same for all poppers of a client, which keep time by it. finished: (how many
    messages, milliseconds) of claims all of whose messages were settled, newest last. claimed:
    milliseconds that claims took. quick: whether acks are written often, as writing is quick.
    """

    def __init__(self, client: int = 0) -> None:
        self._phase_ms = client % BEATS_MS[-1]
        self._rate: float | None = None
        self._claim_ms = self._flush_ms = 0.0
        self.finished: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self.claimed: deque[int] = deque(maxlen=SAMPLES_MAX)
        self.quick: bool = True

    def _look(self) -> None:
        """Take what was measured into the averages."""
        while self.finished:
            count, ms = self.finished.popleft()
            rate = count * 1000 / max(ms, 1)
            self._rate = rate if self._rate is None else 0.5 * self._rate + 0.5 * rate
        while self.claimed:
            self._claim_ms = 0.75 * self._claim_ms + 0.25 * self.claimed.popleft()

    def flushed(self, ms: int) -> None:
        """The acks of some messages took `ms` milliseconds to be written."""
        self._flush_ms = 0.75 * self._flush_ms + 0.25 * ms
        self.quick = WORK_PER_WRITE * self._flush_ms <= ACK_INTERVAL_MS

    def ahead(self) -> int:
        """How many an iteration may claim that it has not been asked for."""
        return self._in_seconds(PREFETCH_SECONDS)

    def welcome(self, now_ms: int) -> int:
        """How many it may claim where that leaves plenty for others: as many as are done by a
        beat."""
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
        """How long an ack may wait for others to be written with it."""
        most_ms = min(ACK_INTERVAL_MS_MAX, timeout_ms // 10)
        if self.quick or most_ms < BEATS_MS[0]:
            return ACK_INTERVAL_MS
        return self._until_beat(_beat_ms(WORK_PER_WRITE * self._flush_ms, most_ms), now_ms)

    def _until_beat(self, beat_ms: int, now_ms: int) -> int:
        return beat_ms - (now_ms + self._phase_ms) % beat_ms

    def allowed(self, asked: int, timeout_ms: int) -> int:
        """No more than was being finished in a third of the claim timeout."""
        self._look()
        if self._rate is None:
            return asked
        return max(1, min(asked, int(self._rate * timeout_ms / 3000)))


def _beat_ms(wanted_ms: float, most_ms: int) -> int:
    """The quickest beat that is as slow as wanted, as far as that is allowed."""
    allowed = [beat_ms for beat_ms in BEATS_MS if beat_ms <= most_ms]
    return next((beat_ms for beat_ms in allowed if beat_ms >= wanted_ms), allowed[-1])
