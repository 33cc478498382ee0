"""Gaps in listings: what is removed from them with one tombstone, and what must stay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("cassandra")

from cassq.catalog.cassandra.partition.tombstones import ALL_MOST, SETTLED_US, TombstoneCompactor
from cassq.errors import BackendUnavailableError

DROP = "DELETE FROM listing USING TIMESTAMP ? WHERE owner = ? AND name > ? AND name < ?"
LAST = "\U0010ffff"
Range = tuple[str, str]


class Written:
    """A session that takes note of what is written. failing: it is not."""

    def __init__(self) -> None:
        self.ranges: list[Range] = []
        self.before_us: set[int] = set()
        self.failing = False
        self.behind_us = 0  # by how much the servers' time is behind this client's

    def not_ahead(self, stamp_us: int) -> int:
        return stamp_us - self.behind_us

    def write_many(self, statements: Iterable[tuple[str, Any]]) -> None:
        if self.failing:
            raise BackendUnavailableError("nobody is there")
        for text, (before_us, owner, low, high) in statements:
            assert (text, owner) == (DROP, "me")
            self.before_us.add(before_us)
            self.ranges.append((low, high))


class Reader:
    """Lists from time to time."""

    def __init__(self) -> None:
        self.cql = Written()
        self._gaps = TombstoneCompactor(self.cql)  # type: ignore[arg-type]

    def covered(self, at_us: int, names: str) -> list[Range]:
        """The ranges that are covered when these names, of a letter each, are listed."""
        self.cql.ranges.clear()
        self.cql.before_us.clear()
        self._gaps.read(DROP, ("me",), list(names), at_us)
        assert self.cql.before_us <= {at_us - self.cql.behind_us - SETTLED_US}
        return sorted(self.cql.ranges)


@pytest.fixture
def reader() -> Reader:
    """One that has looked after what others left before it came."""
    reader = Reader()
    reader.covered(0, "bdf")
    reader.covered(SETTLED_US + 1, "bdf")
    return reader


def later(number: int) -> int:
    return (number + 1) * SETTLED_US + number + 1


def test_where_nothing_goes_nothing_is_covered(reader: Reader) -> None:
    assert [reader.covered(later(n), "bdf") for n in range(1, 5)] == [[]] * 4
    assert reader.covered(later(6), "bdfg") == []


def test_what_went_is_covered_a_while_later_from_neighbour_to_neighbour(reader: Reader) -> None:
    assert reader.covered(later(1), "bf") == []
    assert reader.covered(later(1) + SETTLED_US, "bf") == [], "its tombstone is younger"
    assert reader.covered(later(2), "bf") == [("b", "f")]
    assert reader.covered(later(3), "bf") == [], "once"


def test_a_gap_is_as_wide_as_it_is_by_then(reader: Reader) -> None:
    reader.covered(later(1), "bf")
    assert reader.covered(later(2), "bcf") == [("c", "f")]


@pytest.mark.parametrize(
    ("left", "gap"), [("df", ("", "d")), ("bd", ("d", LAST)), ("", ("", LAST)), ("b", ("b", LAST))]
)
def test_gaps_reach_to_the_ends(reader: Reader, left: str, gap: Range) -> None:
    reader.covered(later(1), left)
    assert reader.covered(later(2), left) == [gap]


def test_what_others_left_before_the_first_look_is_covered_once() -> None:
    reader = Reader()
    assert reader.covered(5, "bd") == []
    assert reader.covered(5 + SETTLED_US, "bd") == []
    assert reader.covered(6 + SETTLED_US, "bd") == [("", "b"), ("b", "d"), ("d", LAST)]
    assert reader.covered(later(5), "bd") == []


def test_of_a_long_listing_only_its_ends_are_covered_unseen() -> None:
    reader = Reader()
    names = "".join(chr(ord("a") + number) for number in range(ALL_MOST))
    reader.covered(5, names)
    assert reader.covered(6 + SETTLED_US, names) == [("", "a"), (names[-1], LAST)]


def test_an_observer_that_cannot_write_goes_on(reader: Reader) -> None:
    reader.covered(later(1), "b")
    reader.cql.failing = True
    assert reader.covered(later(2), "b") == []


def test_after_the_servers_clocks_were_set_back_what_new_clients_write_stays(
    reader: Reader,
) -> None:
    reader.cql.behind_us = 100 * SETTLED_US
    reader.covered(later(1), "bf")
    assert reader.covered(later(2), "bf") == [("b", "f")]
    assert reader.cql.before_us == {later(2) - 101 * SETTLED_US}
