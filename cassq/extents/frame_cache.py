"""Frames that a process keeps for its next reader of the same pipe.

Poppers that share a pipe each take a part of a frame, so one read serves all. A frame below a
pipe's end never changes, so a cached frame cannot be stale.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from cassq.message.frames import Frame

KEPT_BYTES_MAX = 8 * 1024 * 1024

Key = tuple[str, int]  # extent, base seq


class FrameCache:
    """The most recently used verified frames and their positions, `KEPT_BYTES_MAX` in total.
    Thread-safe."""

    def __init__(self) -> None:
        self._frames: OrderedDict[Key, tuple[int, Frame]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def put(self, extent: str, where: int, frame: Frame) -> None:
        key = (extent, frame.base_seq)
        with self._lock:
            if key in self._frames or frame.size > KEPT_BYTES_MAX:
                return
            self._frames[key] = (where, frame)
            self._size += frame.size
            while self._size > KEPT_BYTES_MAX:
                self._size -= self._frames.popitem(last=False)[1][1].size

    def get(self, extent: str, base_seq: int) -> tuple[int, Frame] | None:
        """A frame's position (a bucket, for example) and the frame; None if it is not cached."""
        with self._lock:
            found = self._frames.get((extent, base_seq))
            if found is not None:
                self._frames.move_to_end((extent, base_seq))
            return found
