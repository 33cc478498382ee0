"""Claims that do not cover what they must: how it is seen, and what is put in their place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import cast

import pytest

from cassq.catalog.cover import fault, fault_now, wedged
from cassq.catalog.port import Claims
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor
from cassq.reaper.mend import MendedClaims
from cassq.reaper.mend import mended as mended_rows

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE
_numbers = count()


def version() -> str:
    return f"v{next(_numbers)}"


def cursor(ack: int, chain: int) -> Cursor:
    return Cursor("g", "p", Place(ack, ack), Place(chain, chain))


def row(
    start: int, end: int, state: ClaimState = HELD, acked: RangeSet = EMPTY, deliveries: int = 1
) -> Claim:
    return Claim("g", "p", start, end, start, state, 0, deliveries, acked=acked, version=version())


def mended(where: Cursor, rows: Sequence[Claim], on_record: RangeSet = EMPTY) -> MendedClaims:
    return mended_rows(
        where, rows, on_record, {}, lambda a, b, pos: [(a, b, pos, 0)], version, 1000
    )


def done_in(where: Cursor, rows: Sequence[Claim]) -> RangeSet:
    spans = [(0, where.ack.seq)]
    for each in rows:
        spans += [(each.start, each.end)] if each.state is DONE else each.acked.ranges
    return RangeSet(spans)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([row(5, 10), row(10, 20)], ""),
        ([row(5, 10), row(12, 20)], "no claim row covers seq 10"),
        ([row(7, 20)], "no claim row covers seq 5"),
        ([row(5, 15)], "no claim row covers seq 15"),
        ([], "no claim row covers seq 5"),
        ([row(5, 12), row(10, 20)], "covers seq 10, which has another claim row"),
        ([row(3, 20)], "covers seq 3, which is done"),
        ([row(5, 25)], "covers seq 20, which was not claimed"),
        ([row(5, 5), row(5, 20)], "is empty"),
    ],
)
def test_what_is_wrong_with_claims_is_reported(rows: list[Claim], message: str) -> None:
    found = fault(cursor(5, 20), rows)
    assert message in found
    assert bool(found) == bool(message)


def test_the_error_says_what_to_do() -> None:
    error = wedged("p", "no claim row covers seq 3")
    assert "pipe p" in str(error)
    assert "cassq reap" in error.hint


def test_claims_that_are_whole_stay_as_they_are() -> None:
    rows = [row(5, 10), row(10, 20, acked=RangeSet.run(12, 14))]
    found = mended(cursor(5, 20), rows)
    assert (list(found.rows), found.chain, found.freed) == (rows, Place(20, 20), 0)


def test_of_what_two_rows_have_a_holder_keeps_it_and_the_other_the_rest() -> None:
    held, free = row(0, 10, HELD, RangeSet.run(2, 4)), row(6, 16, FREE, deliveries=3)
    found = mended(cursor(0, 16), [held, free])
    assert found.rows[0] is held
    assert [(each.start, each.end, each.state) for each in found.rows[1:]] == [(10, 16, FREE)]
    assert found.rows[1].version != free.version
    assert found.doubled == 4


def test_what_any_row_says_was_acked_is_acked_in_all() -> None:
    rows = [row(0, 10), row(5, 15, FREE, RangeSet.run(6, 8)), row(9, 12, DONE)]
    found = mended(cursor(0, 15), rows)
    assert done_in(cursor(0, 15), found.rows) == RangeSet([(6, 8), (9, 12)])
    assert found.rows[0].version != rows[0].version  # its holder must not undo that


def test_what_is_on_its_way_elsewhere_stands_alone() -> None:
    found = mended_rows(
        *(cursor(0, 6), [row(4, 6)], RangeSet.run(0, 1), {2: "leaving"}),
        *(lambda a, b, pos: [(a, b, pos, 0)], version, 6, 1),
    )
    reported = [(each.start, each.end, each.state, each.failure) for each in found.rows[:-1]]
    assert reported == [
        (0, 1, DONE, ""),
        (1, 2, FREE, ""),
        (2, 3, FREE, "leaving"),
        (3, 4, FREE, ""),
    ]
    assert [each.deliveries for each in found.rows[1:4]] == [1, 1, 1]


@pytest.mark.parametrize("seed", range(300))
def test_whatever_happened_to_rows_nothing_is_lost_and_nothing_acked_is_redelivered(
    seed: int,
) -> None:
    chance = random.Random(seed)
    ack, chain = sorted(chance.sample(range(60), 2))
    where = cursor(ack, chain)
    rows: dict[int, Claim] = {}
    for _ in range(chance.randint(0, 8)):
        start = chance.randrange(60)
        end = start + chance.randint(1, 20)
        state = chance.choice([HELD, FREE, DONE])
        singles = sorted(
            s for s in range(start, end) if state is not DONE and chance.random() < 0.2
        )
        rows[start] = row(start, end, state, RangeSet.of(singles), chance.randint(1, 3))
    before = [rows[start] for start in sorted(rows)]
    on_record = RangeSet.of(sorted(chance.sample(range(60), chance.randint(0, 5))))
    found = mended(where, before, on_record)
    assert fault(replace(where, chain=found.chain), found.rows) == ""
    within = RangeSet.run(0, found.chain.seq)
    known = (done_in(where, before) | on_record | RangeSet.run(0, ack)) & within
    assert done_in(where, found.rows) & within == known
    again = mended(replace(where, chain=found.chain), found.rows)
    assert list(again.rows) == list(found.rows)


class Busy:
    """A catalog's claims: others ack the first row of [0, 100) after each read, `acks` times."""

    def __init__(self, acks: int, gap: int | None = None) -> None:
        self._acks = acks
        self._ack = 0
        self._gap = gap
        self.reads = 0

    def cursor(self, group_id: str, pipe_id: str) -> Cursor:
        found = cursor(self._ack, 100)
        self._go_on()
        return found

    def rows(self, group_id: str, pipe_id: str) -> list[Claim]:
        found = [row(seq, seq + 1) for seq in range(self._ack, 100) if seq != self._gap]
        self._go_on()
        return found

    def _go_on(self) -> None:
        self.reads += 1
        if self._acks > 0:
            self._acks -= 1
            self._ack += 1


@pytest.mark.parametrize("acks", [0, 1, 2, 3, 7, 60])
def test_acks_between_the_reads_are_not_a_gap(acks: int) -> None:
    busy = Busy(acks)
    assert fault_now(cast("Claims", busy), "g", "p") is None
    assert busy.reads <= 20


@pytest.mark.parametrize("acks", [0, 1, 2, 3, 7])
def test_a_gap_is_found_though_others_ack(acks: int) -> None:
    found = fault_now(cast("Claims", Busy(acks, gap=90)), "g", "p")
    assert found == (cursor(acks, 100), "no claim row covers seq 90")
