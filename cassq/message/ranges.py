"""Range sets: which seqs of a pipe are done, as sorted, disjoint, half-open ranges."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import accumulate, chain, islice, starmap
from operator import itemgetter, or_, sub

from cassq.message.columns import from_little, to_little

_FIRST = struct.Struct("<cQ")
_WIDTHS = {"H": 2, "I": 4, "Q": 8}
BITS = b"B"  # the first byte of a stored `cassq.message.bitsets.BitSet`
_BEYOND = (1 << 64, 1 << 64)  # after all seqs
_START, _END = itemgetter(0), itemgetter(1)


class RangeSet:
    """An immutable set of seqs kept as ranges `[start, end)`.

    Two ranges never touch: neighbours are merged, so equal sets have equal representations.
    Cost of each operation: linear in the number of ranges, not of seqs.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        merged: list[tuple[int, int]] = []
        last = -1
        for pair in sorted(ranges):
            start, end = pair
            if start > last:
                if start < end:
                    merged.append(pair)
                    last = end
            elif end > last:
                merged[-1] = (merged[-1][0], end)
                last = end
        self.ranges: tuple[tuple[int, int], ...] = tuple(merged)

    @classmethod
    def run(cls, start: int, end: int) -> RangeSet:
        """`[start, end)`; empty if `start` is not below `end`."""
        return _made(((start, end),)) if start < end else EMPTY

    @classmethod
    def of(cls, seqs: Iterable[int]) -> RangeSet:
        """The set of single seqs. Cost: one pass, if they are in ascending order."""
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

    @classmethod
    def joined(cls, sets: Iterable[RangeSet]) -> RangeSet:
        """The union of several sets. Cost: linear in the number of all their ranges."""
        found = list(sets)
        if len(found) == 1:
            return found[0]
        if any(type(each) is not RangeSet for each in found):
            return reduce(or_, found)
        return RangeSet([r for each in found for r in each.ranges])

    @property
    def single(self) -> int | None:
        """The seq, if there is exactly one."""
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
            return _gaps(*self.ranges[0], other.within(*self.ranges[0]).ranges)
        if cuts == self.ranges:
            return EMPTY
        left: list[tuple[int, int]] = []
        following = iter(cuts)
        first, last = next(following)
        for pair in self.ranges:
            start, end = pair
            while last <= start:
                first, last = next(following, _BEYOND)
            if first >= end:
                left.append(pair)
                continue
            while first < end:
                if first > start:
                    left.append((start, first))
                start = last
                if last >= end:
                    break
                first, last = next(following, _BEYOND)
            if start < end:
                left.append((start, end))
        return _made(tuple(left))

    def __and__(self, other: RangeSet) -> RangeSet:
        few, many = sorted((self, other), key=lambda each: len(each.ranges))
        if len(few.ranges) == 1:
            return many.within(*few.ranges[0])
        return self - (self - other)

    def within(self, start: int, end: int) -> RangeSet:
        """The part in `[start, end)`. Cost: a binary search, and the ranges found."""
        if start >= end:
            return EMPTY
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

    def part(self, first: int, last: int) -> RangeSet:
        """The seqs at positions `first` to `last` (excluded), counted from 0."""
        if len(self.ranges) == 1:
            start, end = self.ranges[0]
            return RangeSet.run(start + first, min(end, start + last))
        if first == 0 and last >= len(self):
            return self
        return RangeSet.of(islice(self, first, last))

    def __contains__(self, seq: object) -> bool:
        if not isinstance(seq, int):
            return False
        at = bisect_left(self.ranges, (seq + 1,))
        return at > 0 and seq < self.ranges[at - 1][1]

    def __len__(self) -> int:
        """How many seqs."""
        count: int = sum(map(_END, self.ranges)) - sum(map(_START, self.ranges))
        return count

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(starmap(range, self.ranges))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"RangeSet({list(self.ranges)})"

    def covers(self, start: int, end: int) -> bool:
        """Whether every seq of `[start, end)` is in the set."""
        if start >= end:
            return True
        at = bisect_left(self.ranges, (start + 1,))
        return at > 0 and end <= self.ranges[at - 1][1]

    def to_bytes(self) -> bytes:
        """A letter, the first seq in eight bytes, and the steps from each edge of a range to the
        next in two, four or eight bytes each, as the letter says; all little-endian."""
        if not self.ranges:
            return b""
        edges = list(chain.from_iterable(self.ranges))
        steps = list(map(sub, edges[1:], edges))
        largest = max(steps)
        code = "H" if largest < 1 << 16 else "I" if largest < 1 << 32 else "Q"
        return _FIRST.pack(code.encode(), edges[0]) + to_little(array(code, steps))

    @classmethod
    def from_bytes(cls, raw: bytes) -> RangeSet:
        """The inverse of `to_bytes`. Raises ValueError for any other bytes."""
        if not raw:
            return EMPTY
        try:
            letter, first = _FIRST.unpack_from(raw)
            code = letter.decode("ascii")
            steps = from_little(code, raw[_FIRST.size :], (len(raw) - _FIRST.size) // _WIDTHS[code])
        except (struct.error, KeyError) as exc:
            raise ValueError("these bytes are not a range set") from exc
        edges = accumulate(steps, initial=first)
        return _made(tuple(zip(edges, edges, strict=True)))


def _made(ranges: tuple[tuple[int, int], ...]) -> RangeSet:
    """A set of ranges known to be sorted, disjoint and apart."""
    result = RangeSet.__new__(RangeSet)
    result.ranges = ranges
    return result


def _gaps(start: int, end: int, cuts: tuple[tuple[int, int], ...]) -> RangeSet:
    """`[start, end)` without the ranges `cuts`, which lie in it."""
    edges = [start, *chain.from_iterable(cuts), end]
    gaps = list(zip(edges[::2], edges[1::2], strict=True))
    # Only the first and last gap can be empty: ranges never touch.
    if gaps[-1][0] == end:
        gaps.pop()
    if gaps and gaps[0][1] == start:
        del gaps[0]
    return _made(tuple(gaps))


EMPTY = RangeSet()
