"""Range sets behave like Python's sets of the same seqs, in whatever order they are built."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cassq.message.ranges import EMPTY, RangeSet

FAR = 1 << 60

ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)
range_sets = ranges.map(RangeSet)
seqs = st.lists(st.integers(0, 40), max_size=30)

each_case = settings(max_examples=200)


def as_set(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {seq for start, end in pairs for seq in range(start, end)}


def assert_is(found: RangeSet, expected: set[int]) -> None:
    """The same seqs, and the one way there is to write them down."""
    assert set(found) == expected
    assert len(found) == len(expected)
    assert list(found) == sorted(expected)
    assert bool(found) == bool(expected)
    for start, end in found.ranges:
        assert start < end
    for (_, end), (start, _) in pairwise(found.ranges):
        assert end < start, "neighbours that touch must be one range"


@each_case
@given(ranges)
def test_ranges_in_any_order_make_the_set_of_their_seqs(pairs: list[tuple[int, int]]) -> None:
    assert_is(RangeSet(pairs), as_set(pairs))


@each_case
@given(seqs)
def test_single_seqs_in_any_order_make_the_same_set(found: list[int]) -> None:
    assert_is(RangeSet.of(found), set(found))
    assert_is(RangeSet.of(sorted(found)), set(found))


@each_case
@given(range_sets, range_sets)
def test_union_difference_and_intersection_are_those_of_sets(a: RangeSet, b: RangeSet) -> None:
    assert_is(a | b, set(a) | set(b))
    assert_is(a - b, set(a) - set(b))
    assert_is(a & b, set(a) & set(b))


@each_case
@given(range_sets, range_sets)
def test_equal_sets_are_equal_and_hash_alike(a: RangeSet, b: RangeSet) -> None:
    assert (a == b) == (set(a) == set(b))
    again = RangeSet.of(a)
    assert (again, hash(again)) == (a, hash(a))
    assert a != set(a)


@each_case
@given(range_sets, st.integers(-2, 42))
def test_membership_is_that_of_the_set(a: RangeSet, seq: int) -> None:
    assert (seq in a) == (seq in set(a))


@each_case
@given(range_sets, st.integers(0, 40), st.integers(0, 40))
def test_covers_means_that_every_seq_is_there(a: RangeSet, start: int, end: int) -> None:
    assert a.covers(start, end) == set(range(start, end)).issubset(set(a))


@each_case
@given(range_sets, st.integers(0, FAR))
def test_bytes_give_the_set_back(a: RangeSet, shift: int) -> None:
    moved = RangeSet((start + shift, end + shift) for start, end in a.ranges)
    assert RangeSet.from_bytes(moved.to_bytes()) == moved


def test_bytes_are_the_first_seq_and_the_steps_between_edges() -> None:
    small, wide, huge = 1 << 8, 1 << 16, 1 << 32
    for code, step, width in (("H", small, 2), ("I", wide, 4), ("Q", huge, 8)):
        raw = code.encode() + b"".join(
            number.to_bytes(size, "little")
            for number, size in ((7, 8), (2, width), (step, width), (3, width))
        )
        found = RangeSet.from_bytes(raw)
        assert found.ranges == ((7, 9), (9 + step, 12 + step))
        assert found.to_bytes() == raw


@pytest.mark.parametrize("raw", [b"H", b"x" + bytes(10), b"\xff" + bytes(10), b"H" + bytes(8)])
def test_bytes_of_another_kind_are_reported(raw: bytes) -> None:
    with pytest.raises(ValueError):
        RangeSet.from_bytes(raw)


@each_case
@given(range_sets, st.integers(0, 40), st.integers(0, 40))
def test_a_part_is_that_slice_of_its_seqs(a: RangeSet, first: int, last: int) -> None:
    assert_is(a.part(first, last), set(list(a)[first:last]))


@each_case
@given(st.lists(range_sets, min_size=1, max_size=4))
def test_joined_is_the_union_of_all(sets: list[RangeSet]) -> None:
    assert_is(RangeSet.joined(sets), {seq for each in sets for seq in each})


@each_case
@given(range_sets, st.integers(0, 41))
def test_in_means_that_the_seq_is_there(a: RangeSet, seq: int) -> None:
    assert (seq in a) == (seq in set(a))


def test_nothing_is_the_empty_set() -> None:
    for empty in (
        RangeSet(),
        RangeSet([(3, 3), (5, 2)]),
        RangeSet.of([]),
        RangeSet.from_bytes(b""),
    ):
        assert_is(empty, set())
        assert empty == EMPTY
        assert empty.to_bytes() == b""
        assert empty.covers(7, 7)
        assert not empty.covers(7, 8)


def test_a_huge_range_costs_no_more_than_a_small_one() -> None:
    huge = RangeSet([(0, FAR)])
    assert len(huge - RangeSet([(5, 6)])) == FAR - 1
    assert FAR - 1 in huge
    assert FAR not in huge
    assert (huge & RangeSet([(FAR - 2, FAR + 2)])).ranges == ((FAR - 2, FAR),)
    assert huge.covers(1, FAR)


def test_a_range_set_says_what_it_holds() -> None:
    assert repr(RangeSet([(5, 7), (1, 2)])) == "RangeSet([(1, 2), (5, 7)])"


@pytest.mark.parametrize("other", ["5", 5.5, None])
def test_values_that_are_not_seqs_are_not_in_it(other: object) -> None:
    assert other not in RangeSet([(0, 10)])


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 10, [(2, 5), (7, 9)]),
        (2, 9, [(2, 5), (7, 9)]),
        (3, 8, [(3, 5), (7, 8)]),
        (2, 4, [(2, 4)]),
        (3, 4, [(3, 4)]),
        (5, 7, []),
        (4, 7, [(4, 5)]),
        (9, 20, []),
        (3, 3, []),
        (4, 3, []),
        (8, 2, []),
    ],
)
def test_what_lies_within_some_bounds_is_cut_at_both(
    start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    assert RangeSet([(2, 5), (7, 9)]).within(start, end) == RangeSet(expected)


@pytest.mark.parametrize(
    ("start", "end", "covered"),
    [
        (2, 5, True),
        (3, 5, True),
        (2, 6, False),
        (1, 5, False),
        (4, 8, False),
        (7, 9, True),
        (7, 10, False),
        (5, 5, True),
    ],
)
def test_a_set_covers_what_lies_in_one_of_its_ranges(start: int, end: int, covered: bool) -> None:
    assert RangeSet([(2, 5), (7, 9)]).covers(start, end) is covered
