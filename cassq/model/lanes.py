"""Lanes of timer pipes: by how far in the future their messages are due.

Lanes ensure that one message due in a year does not keep a file full of others, and that a pipe can
state a time before which nothing in it is due.
"""

from __future__ import annotations

from bisect import bisect_right

# Lane n > 0 takes messages that wait at least `LANE_MS * 4 ** (n - 1)`; lane 0 those due sooner.
LANE_MS = 600_000
LANES = 12
LANE_WAITS_MS: tuple[int, ...] = tuple(LANE_MS * 4**n for n in range(LANES))


def lane_of(delay_ms: int) -> int:
    """The lane for messages due in `delay_ms` milliseconds."""
    return bisect_right(LANE_WAITS_MS, delay_ms)


def lane_start_ms(lane: int, now_ms: int) -> int:
    """The time before which nothing is due in a pipe of a lane opened now. It is half of the lane's
    minimum wait away, as a message may have been on its way for a while."""
    return now_ms if lane == 0 else now_ms + LANE_MS * 4 ** (lane - 1) // 2
