"""Column batches: messages whose columns are in memory as a frame stores them. So making a frame
takes a few slices and one join, however many messages it has.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from cassq.message.batches import FRAME_BYTES_TARGET, FRAME_MESSAGES_MAX
from cassq.message.frames import DUES, HEADERS, KEYS, TIME_ONE, UNIFORM, framed

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Strings:
    """Byte strings, one after another in `data`.

    offsets: where each begins, and where the last one ends. lengths: of each, as little-endian
    32-bit numbers; `columns.ABSENT` for an absent one.
    """

    offsets: Sequence[int]
    lengths: memoryview
    data: memoryview

    def bytes_of(self, first: int, last: int) -> memoryview:
        return self.data[self.offsets[first] : self.offsets[last]]

    def lengths_of(self, first: int, last: int) -> memoryview:
        return self.lengths[4 * first : 4 * last]


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """Messages to append (see `batches.Appendable`). time_ms: wall milliseconds, for all.

    length: that of each payload, if all are known to have the same. dues: the due time of each
    message, in catalog milliseconds, as little-endian 64-bit numbers.
    """

    payloads: Strings
    time_ms: int
    headers: Strings | None = None
    keys: Strings | None = None
    length: int | None = None
    dues: memoryview | None = None

    @property
    def count(self) -> int:
        return len(self.payloads.offsets) - 1

    def frame_end(self, at: int, stop: int) -> int:
        """Cost: a binary search in each column."""
        last = min(stop, at + FRAME_MESSAGES_MAX)
        for column in (self.payloads, self.headers, self.keys):
            if column is not None:
                offsets = column.offsets
                most = offsets[at] + FRAME_BYTES_TARGET
                last = min(last, max(at + 1, bisect_right(offsets, most, at, last + 1) - 1))
        return last

    def frame(
        self, seq: int, at: int, last: int, pipe_key: int, compression: str
    ) -> tuple[bytes, bytes]:
        flags = TIME_ONE
        parts: list[bytes | memoryview]
        if self.length is not None:
            flags |= UNIFORM
            parts = [_U32.pack(self.length)]
        else:
            parts = [self.payloads.lengths_of(at, last)]
        parts.append(_U64.pack(self.time_ms))
        if self.dues is not None:
            flags |= DUES
            parts.append(self.dues[8 * at : 8 * last])
        for flag, column in ((HEADERS, self.headers), (KEYS, self.keys)):
            if column is not None:
                flags |= flag
                parts += (column.lengths_of(at, last), column.bytes_of(at, last))
        parts.append(self.payloads.bytes_of(at, last))
        return framed(seq, last - at, flags, b"".join(parts), pipe_key, compression)
