"""Cluster time: the time that all clients of a cluster agree on, measured from its servers' clocks.

A client's own wall clock plays no part in it. The boot clock counts the milliseconds; its offset is
measured: the time is what a server answers, plus half a round trip. The median of the last few
measurements counts, so that, of three servers, one with a wrong clock is outvoted. Errors are
corrected by running slower or faster: never backwards, and with a jump forward only when much is
missing, as after a pause of the machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median_low
from typing import NamedTuple

from cassq.base.clock import Clock

KEPT = 5  # measurements
ASK_EVERY_MS = 10_000
ASK_SOON_MS = 500  # when an answer is far from those before it
STEP_MS = 1_000  # when this much is missing, the time jumps forward
SLEW = 20  # a correction takes this many times its own length
ROUND_TRIP_MS_MAX = 2_000  # a slower answer is too imprecise

Learn = Callable[[int, int], None]


class _Course(NamedTuple):
    """From `boot_ms` on, when the time was `now_ms`, it approaches `boot + offset_ms`."""

    boot_ms: int
    now_ms: int
    offset_ms: int

    def at(self, boot_ms: int) -> int:
        elapsed = max(boot_ms - self.boot_ms, 0)
        missing = boot_ms + self.offset_ms - (self.now_ms + elapsed)
        most = elapsed // SLEW
        return self.now_ms + elapsed + max(-most, min(missing, most))


class ClusterTime:
    """Milliseconds of cluster time. Thread-safe.

    ask: begins to ask a server for its time; calls its argument with the boot time before the
    question and with the answer, or never. Nothing is known before the first `learn`.
    """

    def __init__(self, clock: Clock, ask: Callable[[Learn], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._offsets: deque[int] = deque(maxlen=KEPT)
        self._course: _Course | None = None
        self._ask_at_ms = 0

    def now_ms(self) -> int:
        """The time; wall time before anything is known. Cost: never blocks; now and then sends a
        question."""
        boot_ms = self._clock.boot_ms()
        course = self._course
        if course is None:
            return self._clock.wall_ms()
        if boot_ms >= self._ask_at_ms:
            self._ask_at_ms = boot_ms + ASK_EVERY_MS
            self._ask(self.learn)
            course = self._course or course
        return course.at(boot_ms)

    def learn(self, asked_ms: int, told_ms: int) -> None:
        """Learn the time that a server, asked at boot time `asked_ms`, has just answered."""
        boot_ms = self._clock.boot_ms()
        if self._course is not None and boot_ms - asked_ms > ROUND_TRIP_MS_MAX:
            return
        told_offset_ms = told_ms - (asked_ms + boot_ms) // 2
        self._offsets.append(told_offset_ms)
        offset_ms = median_low(list(self._offsets))
        # Of two threads that learn at once one may be lost, and comes again.
        before = self._course
        if before is None:
            now_ms = boot_ms + offset_ms
        else:
            now_ms = before.at(boot_ms)
            if boot_ms + offset_ms - now_ms >= STEP_MS:
                now_ms = boot_ms + offset_ms
        self._course = _Course(boot_ms, now_ms, offset_ms)
        is_odd = abs(told_offset_ms - offset_ms) >= STEP_MS
        self._ask_at_ms = boot_ms + (ASK_SOON_MS if is_odd else ASK_EVERY_MS)
