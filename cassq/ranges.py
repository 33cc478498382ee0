"""Range sets: which seqs of a pipe are done, as sorted, disjoint, half-open ranges."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
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
    def run(cls, start: int, end: int) -> RangeSet:
        """`[start, end)`; empty when there is nothing between."""
        return _made(((start, end),)) if start < end else EMPTY

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

    @property
    def single(self) -> int | None:
        """The seq, when there is but one."""
        if len(self.ranges) == 1 and self.ranges[0][0] + 1 == self.ranges[0][1]:
            return self.ranges[0][0]
        return None

    def __or__(self, other: RangeSet) -> RangeSet:
        if not self.ranges or not other.ranges:
            return self if self.ranges else other
        if self.ranges[-1][1] < other.ranges[0][0]:
            return _made((*self.ranges, *other.ranges))
        return RangeSet((*self.ranges, *other.ranges))

    def __sub__(self, other: RangeSet) -> RangeSet:
        cuts = other.ranges
        if not cuts or not self.ranges:
            return self
        if self.single is not None:
            return EMPTY if self.single in other else self
        if cuts[0][0] >= self.ranges[-1][1] or cuts[-1][1] <= self.ranges[0][0]:
            return self
        if len(self.ranges) == 1:
            cuts = other.within(*self.ranges[0]).ranges
        left: list[tuple[int, int]] = []
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
        return _made(tuple(left))

    def __and__(self, other: RangeSet) -> RangeSet:
        return self - (self - other)

    def within(self, start: int, end: int) -> RangeSet:
        """What lies in `[start, end)`. Cost: a binary search, and the ranges found."""
        ranges = self.ranges
        at = bisect_right(ranges, (start,))
        if at and ranges[at - 1][1] > start:
            at -= 1
        last = bisect_left(ranges, (end,), lo=at)
        found = ranges[at:last]
        if found and found[0][0] < start:
            found = ((start, found[0][1]), *found[1:])
        if found and found[-1][1] > end:
            found = (*found[:-1], (found[-1][0], end))
        return _made(found)

    def __contains__(self, seq: object) -> bool:
        return isinstance(seq, int) and bool(self.within(seq, seq + 1))

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
        return _made(tuple(_PAIR.iter_unpack(raw))) if raw else EMPTY


def _made(ranges: tuple[tuple[int, int], ...]) -> RangeSet:
    """A set of ranges known to be sorted, disjoint and apart."""
    result = RangeSet.__new__(RangeSet)
    result.ranges = ranges
    return result


EMPTY = RangeSet()
