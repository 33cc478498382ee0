"""Lanes of timer pipes: by how far away their messages are.

So that one message due in a year does not keep a file full of others, and so that a pipe can say
before which time nothing in it is due.
"""

from __future__ import annotations

# Lane 0 takes what is due sooner; lane n > 0 what waits at least `LANE_MS * 4 ** (n - 1)`.
LANE_MS = 600_000
LANES = 12


def lane_of(delay_ms: int) -> int:
    """The lane for messages due in so many milliseconds."""
    lane = 0
    while lane < LANES and delay_ms >= LANE_MS * 4**lane:
        lane += 1
    return lane


def lane_start_ms(lane: int, now_ms: int) -> int:
    """Before which time nothing is due in a pipe of a lane that is opened now. Half of what the
    lane's messages wait at least: one may have been on its way for a while."""
    return now_ms if lane == 0 else now_ms + LANE_MS * 4 ** (lane - 1) // 2
