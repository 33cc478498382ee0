"""Reading an extent from servers: one verified frame after another, cut to what was asked for.

Files have a loop of their own that works the same way: it steps from frame to frame by bytes, skips
frames in memory without opening them, and is the shortest way from a pop to its messages.
"""

from __future__ import annotations

from collections.abc import Callable

from cassq.extents.port import Slice
from cassq.message.frames import Frame, FrameError

# Takes a seq, the frame before it (None at first) and the number of messages still wanted; returns
# the verified frame that holds the seq. Raises FrameError for a damaged one.
FrameOf = Callable[[int, Frame | None, int], Frame]


def read_slices(
    frame_of: FrameOf, seq: int, end_seq: int, limit: int, bytes_max: int
) -> list[Slice]:
    """Messages from `seq` on, as `ExtentReader.read` returns them. Frames before damage are
    returned; the next read begins at the damage, and reports it."""
    slices: list[Slice] = []
    frame: Frame | None = None
    total = 0
    while seq < end_seq and limit > 0:
        try:
            frame = frame_of(seq, frame, limit)
        except FrameError:
            if slices:
                break
            raise
        if slices and total + frame.size > bytes_max:
            break
        first = seq - frame.base_seq
        last = min(frame.count, first + limit, end_seq - frame.base_seq)
        slices.append(Slice(frame, first, last))
        total += frame.size
        limit -= last - first
        seq += last - first
    return slices


def parted(slices: list[Slice]) -> list[Frame]:
    """The frames that were only partly read: the next reader will want the rest."""
    return [frame for frame, first, last in slices if last - first < frame.count]
