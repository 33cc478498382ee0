"""Bit sets behave as range sets do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.message.bitsets import BitSet, as_bits
from cassq.message.ranges import EMPTY, RangeSet

SEQS = st.sets(st.integers(0, 200)).map(sorted)
OFFSETS = st.integers(0, 1 << 40)


def both(seqs: list[int], offset: int) -> tuple[RangeSet, RangeSet]:
    """The same set as ranges and as bits."""
    moved = [offset + seq for seq in seqs]
    return RangeSet.of(moved), BitSet.of(reversed(moved))


@given(SEQS, SEQS, OFFSETS)
def test_each_operation_gives_what_it_gives_on_ranges(
    left: list[int], right: list[int], offset: int
) -> None:
    ranges, bits = both(left, offset)
    other_ranges, other_bits = both(right, offset)
    for wanted, verb in (
        (ranges | other_ranges, RangeSet.__or__),
        (ranges - other_ranges, RangeSet.__sub__),
        (ranges & other_ranges, RangeSet.__and__),
    ):
        name = verb.__name__.strip("_")
        for one, two in ((bits, other_bits), (bits, other_ranges), (ranges, other_bits)):
            found = {"or": one | two, "sub": one - two, "and": one & two}[name]
            assert found == wanted
            assert wanted == found
            assert found.ranges == wanted.ranges
    assert RangeSet.joined([ranges, other_bits]) == ranges | other_ranges


@given(SEQS, OFFSETS)
def test_ranges_as_bits_are_the_same_set(seqs: list[int], offset: int) -> None:
    ranges, bits = both(seqs, offset)
    assert as_bits(ranges) == ranges
    assert not seqs or isinstance(as_bits(ranges), BitSet)
    assert as_bits(bits) is bits


@given(SEQS, SEQS, OFFSETS, st.integers(0, 30))
def test_sets_of_the_same_seqs_are_equal_whatever_their_bases(
    left: list[int], right: list[int], offset: int, before: int
) -> None:
    _, bits = both(left, offset)
    for seqs in (left, right):
        moved, same = [offset + seq for seq in seqs], set(seqs) == set(left)
        others = [RangeSet.of(sorted(moved)), BitSet.of(moved)]
        if moved:
            others.append(BitSet.of(moved, max(0, min(moved) - before)))
        for other in others:
            assert (bits == other) == same
            assert (other == bits) == same
    assert bits != left


def test_ranges_too_far_apart_for_bits_stay_ranges() -> None:
    wide = RangeSet.of([0, 1 << 40])
    assert as_bits(wide) is wide


@given(SEQS, st.integers(0, 210), st.integers(0, 210), OFFSETS)
def test_each_question_has_the_same_answer(
    seqs: list[int], start: int, end: int, offset: int
) -> None:
    ranges, bits = both(seqs, offset)
    start, end = start + offset, end + offset
    assert list(bits) == list(ranges)
    assert len(bits) == len(ranges)
    assert bool(bits) == bool(ranges)
    assert bits.single == ranges.single
    assert hash(bits) == hash(ranges)
    assert bits.within(start, end) == ranges.within(start, end)
    assert bits.covers(start, end) == ranges.covers(start, end)
    assert (start in bits) == (start in ranges)
    assert bits.part(2, 5) == ranges.part(2, 5)
    assert "1" not in bits


@given(SEQS, OFFSETS)
def test_a_stored_set_comes_back(seqs: list[int], offset: int) -> None:
    _, bits = both(seqs, offset)
    assert BitSet.from_bytes(bits.to_bytes()) == bits
    assert len(bits.to_bytes()) <= 9 + 26


def test_the_bytes_of_the_empty_set_are_empty() -> None:
    assert BitSet().to_bytes() == b""
    assert BitSet.from_bytes(b"") == EMPTY


@pytest.mark.parametrize("raw", [b"H", b"B1234567", b"X12345678\x01"])
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="bit set"):
        BitSet.from_bytes(raw)


def test_it_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError):
        BitSet().bits  # noqa: B018


def test_sets_that_lie_far_apart_take_little_memory() -> None:
    bits, far = BitSet.of([3, 7]), RangeSet([(0, 5), (1 << 50, 1 << 51)])
    assert (bits | far) == (far | bits) == RangeSet([(0, 5), (7, 8), (1 << 50, 1 << 51)])
    assert (bits - far) == RangeSet([(7, 8)])
    assert (far - bits) == RangeSet([(0, 3), (4, 5), (1 << 50, 1 << 51)])
    assert (bits & far) == (far & bits) == RangeSet([(3, 4)])
    assert bits.within(0, 1 << 60) == bits
    assert not bits.covers(0, 1 << 60)
    assert (BitSet.of([1 << 50]) | bits) == RangeSet([(3, 4), (7, 8), (1 << 50, (1 << 50) + 1)])
