"""Cluster time: the time that all clients of a cluster agree on, measured from its servers' clocks.

A client's own wall clock plays no part in it. The boot clock counts the milliseconds; its offset is
measured, from a server's time plus half a round trip. The median of the last few measurements
counts, so that one of three servers with a wrong clock is outvoted. Errors are corrected by running
slower or faster: never backwards, and with a jump forward only if the time lags far behind, as
after a pause of the machine.

If the servers' clocks are set back, clients that run are ahead of new ones until that is corrected.
So what hides or removes whatever is old enough must also be old by `servers_ms`, which follows the
servers within a few measurements.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from statistics import median_low
from typing import NamedTuple

from cassq.base.clock import Clock

logger: logging.Logger = logging.getLogger("cassq")

KEPT = 5  # measurements
ASK_EVERY_MS = 10_000
ASK_SOON_MS = 500  # after an answer that is far from the earlier ones
STEP_MS = 1_000  # if the time lags by this much, it jumps forward
SLEW = 20  # a correction takes this many times its own length
AHEAD_MS = 5_000  # from here on it is logged that the time is ahead
ROUND_TRIP_MS_MAX = 2_000  # a slower answer is too imprecise

Learn = Callable[[int, int], None]


class _Slew(NamedTuple):
    """The time was `now_ms` at `boot_ms`; from then on it approaches `boot + offset_ms`."""

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

    ask: begins to ask a server for its time, and may later call its argument with the boot time
    before the question and the answer. Nothing is known before the first `learn`.
    """

    def __init__(self, clock: Clock, ask: Callable[[Learn], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._offsets: deque[int] = deque(maxlen=KEPT)
        self._slew: _Slew | None = None
        self._ask_at_ms = 0
        self._is_ahead = False

    @property
    def is_known(self) -> bool:
        """Whether a server has said its time, so that `now_ms` is cluster time."""
        return self._slew is not None

    def now_ms(self) -> int:
        """The time; wall time before anything is known. Never blocks. Cost: now and then a
        background request."""
        boot_ms = self._clock.boot_ms()
        slew = self._slew
        if slew is None:
            return self._clock.wall_ms()
        if boot_ms >= self._ask_at_ms:
            self._ask_at_ms = boot_ms + ASK_EVERY_MS
            self._ask(self.learn)
            slew = self._slew or slew
        return slew.at(boot_ms)

    def servers_ms(self) -> int:
        """The servers' time as last measured, which goes back if their clocks are set back; wall
        time before anything is known. Cost: a memory read."""
        slew = self._slew
        return self._clock.wall_ms() if slew is None else self._clock.boot_ms() + slew.offset_ms

    def learn(self, asked_ms: int, told_ms: int) -> None:
        """Learn the time that a server, asked at boot time `asked_ms`, has just answered."""
        boot_ms = self._clock.boot_ms()
        if self._slew is not None and boot_ms - asked_ms > ROUND_TRIP_MS_MAX:
            return
        told_offset_ms = told_ms - (asked_ms + boot_ms) // 2
        self._offsets.append(told_offset_ms)
        offset_ms = median_low(list(self._offsets))
        # If two threads learn at once, one answer may be lost; the next one makes up for it.
        before = self._slew
        if before is None:
            now_ms = boot_ms + offset_ms
        else:
            now_ms = before.at(boot_ms)
            if boot_ms + offset_ms - now_ms >= STEP_MS:
                now_ms = boot_ms + offset_ms
        self._slew = _Slew(boot_ms, now_ms, offset_ms)
        self._note_ahead(now_ms - boot_ms - offset_ms)
        is_odd = abs(told_offset_ms - offset_ms) >= STEP_MS
        self._ask_at_ms = boot_ms + (ASK_SOON_MS if is_odd else ASK_EVERY_MS)

    def _note_ahead(self, ahead_ms: int) -> None:
        """Log it once if the time is ahead of the servers' by `AHEAD_MS` or more."""
        was_ahead, self._is_ahead = self._is_ahead, ahead_ms >= AHEAD_MS
        if self._is_ahead and not was_ahead:
            logger.warning(
                "the servers' clocks were set back by about %d s; the time of this client goes on a"
                " twentieth slower until they agree, or until it is started anew",
                ahead_ms // 1000,
            )
