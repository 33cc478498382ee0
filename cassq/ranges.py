"""Range sets: which seqs of a pipe are done, as sorted, disjoint, half-open ranges."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_PAIR = struct.Struct("<QQ")


class RangeSet:
    """An immutable set of seqs kept as ranges `[start, end)`.

    Two ranges never touch: neighbours are merged, so equal sets have equal representations.
    Cost of each operation: linear in the number of ranges, not of seqs.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(r for r in ranges if r[0] < r[1]):
            if merged and start <= merged[-1][1]:
                if end > merged[-1][1]:
                    merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self.ranges: tuple[tuple[int, int], ...] = tuple(merged)

    @classmethod
    def of(cls, seqs: Iterable[int]) -> RangeSet:
        """The set of single seqs; in ascending order it costs one pass."""
        ranges: list[tuple[int, int]] = []
        start = end = -1
        for seq in seqs:
            if seq == end:
                end += 1
            else:
                if end > start:
                    ranges.append((start, end))
                start, end = seq, seq + 1
        if end > start:
            ranges.append((start, end))
        return cls(ranges)

    def __or__(self, other: RangeSet) -> RangeSet:
        return RangeSet((*self.ranges, *other.ranges))

    def __sub__(self, other: RangeSet) -> RangeSet:
        left: list[tuple[int, int]] = []
        cuts = other.ranges
        first = 0
        for start, end in self.ranges:
            while first < len(cuts) and cuts[first][1] <= start:
                first += 1
            at = first
            while start < end and at < len(cuts) and cuts[at][0] < end:
                if cuts[at][0] > start:
                    left.append((start, cuts[at][0]))
                start = cuts[at][1]
                at += 1
            if start < end:
                left.append((start, end))
        return RangeSet(left)

    def __and__(self, other: RangeSet) -> RangeSet:
        return self - (self - other)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and any(start <= seq < end for start, end in self.ranges)

    def __len__(self) -> int:
        """How many seqs."""
        return sum(end - start for start, end in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        for start, end in self.ranges:
            yield from range(start, end)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"RangeSet({list(self.ranges)})"

    def covers(self, start: int, end: int) -> bool:
        """Whether every seq of `[start, end)` is in the set."""
        return start >= end or any(s <= start and end <= e for s, e in self.ranges)

    def to_bytes(self) -> bytes:
        """16 bytes a range, little-endian."""
        return b"".join(_PAIR.pack(start, end) for start, end in self.ranges)

    @classmethod
    def from_bytes(cls, raw: bytes) -> RangeSet:
        """The inverse of `to_bytes`."""
        return cls(_PAIR.iter_unpack(raw)) if raw else EMPTY


EMPTY = RangeSet()
