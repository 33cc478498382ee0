"""What a group has of a pipe: each message has one fate, counted or named, or it is a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.ledger import (
    GONE,
    Account,
    Fate,
    GroupView,
    done_of,
    fates,
    faults,
    is_held,
    named,
    tally,
    tally_retired,
    unfinished,
)
from cassq.model.rows import Claim, ClaimState, Cursor, Move, Reason, Removed, Retired

HELD, FREE, DONE = ClaimState
NOW_MS = 50
CURSOR = Cursor("g", "p", ack=Place(10, 0), chain=Place(30, 7), start=2)


def claim(start: int, end: int, state: ClaimState, *acked: int, due_ms: int = 0) -> Claim:
    return Claim("g", "p", start, end, 0, state, due_ms, 1, acked=RangeSet.of(acked))


def removed(start: int, end: int, reason: Reason = Reason.PURGED) -> Removed:
    return Removed("g", "p", start, end, reason, 0)


def dead(seq: int, *, settled: bool = True) -> Move:
    return Move("g", "p", seq, "rejected", "d", seq, 0, settled)


ROWS = (
    claim(10, 15, HELD, 11, 12),
    claim(15, 20, DONE),
    claim(20, 24, FREE, 23, due_ms=99),
    claim(24, 30, FREE),
)
MOVES = (dead(3), dead(11), dead(21, settled=False))
REMOVED = (removed(4, 6), removed(16, 18, Reason.EXPIRED))
VIEW = GroupView(CURSOR, ROWS, MOVES, REMOVED)
FATES = {
    Fate.SKIPPED: [0, 1],
    Fate.COMMITTED: [2, 6, 7, 8, 9, 12, 15, 18, 19, 23],
    Fate.DEAD: [3, 11],
    Fate.EXPIRED: [16, 17],
    Fate.PURGED: [4, 5],
    Fate.MERGED: [],
    Fate.LOST: [],
    Fate.PENDING: [10, 13, 14],
    Fate.WAITING: [*range(24, 40)],
    Fate.DELAYED: [20, 21, 22],
}


# --- counted and named ----------------------------------------------------------------------------


def test_each_message_has_the_fate_that_its_rows_say() -> None:
    assert {fate: list(seqs) for fate, seqs in fates(VIEW, 40, NOW_MS).items()} == FATES
    assert faults(VIEW, NOW_MS) == []


def test_they_are_counted_as_they_are_named() -> None:
    account = tally(VIEW, NOW_MS).up_to(40, timed=False)
    assert Counter(account.counts) == Counter({fate: len(seqs) for fate, seqs in FATES.items()})
    assert (account.pushed, account.deliveries) == (40, {1: 3 + 3 + 6, 0: 10})


def test_what_was_claimed_is_counted_before_the_end_is_known() -> None:
    account = tally(VIEW, NOW_MS)
    assert (account.claimed, account.pushed, sum(account.counts.values())) == (30, 30, 30)


def test_of_a_pipe_that_a_group_has_not_begun_all_is_waiting() -> None:
    view = GroupView(None)
    assert fates(view, 40, NOW_MS)[Fate.WAITING] == RangeSet.run(0, 40)
    assert tally(view, NOW_MS).up_to(40, timed=False).counts[Fate.WAITING] == 40
    assert (tally(view, NOW_MS), faults(view, NOW_MS)) == (Account(), [])


def test_of_a_timer_pipe_what_was_not_claimed_is_delayed() -> None:
    assert list(fates(VIEW, 40, NOW_MS, timed=True)[Fate.DELAYED]) == [20, 21, 22, *range(30, 40)]
    account = tally(VIEW, NOW_MS).up_to(40, timed=True)
    assert (account.counts[Fate.DELAYED], account.counts[Fate.WAITING]) == (13, 6)


def test_an_end_that_lags_behind_what_was_claimed_adds_nothing() -> None:
    account = tally(VIEW, NOW_MS).up_to(28, timed=False)
    assert (account.pushed, sum(account.counts.values())) == (28, 30)
    assert unfinished(CURSOR, (), 28, NOW_MS) == []


def test_a_retired_pipe_has_the_totals_it_was_left_with() -> None:
    row = Retired("p", "g", "q", start=2, pushed=30, dead=3, expired=4, purged=5, merged=6, lost=7)
    account = tally_retired(row)
    assert [account.counts[fate] for fate in GONE] == [3, 4, 5, 6, 7]
    assert (account.counts[Fate.SKIPPED], account.counts[Fate.COMMITTED]) == (2, 3)
    assert account.pushed == sum(account.counts.values()) == 30


# --- what is not done -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "fate"),
    [
        (claim(10, 12, HELD, due_ms=51), Fate.PENDING),
        (claim(10, 12, HELD, due_ms=49), Fate.PENDING),
        (claim(10, 12, FREE, due_ms=50), Fate.WAITING),
        (claim(10, 12, FREE, due_ms=51), Fate.DELAYED),
    ],
)
def test_what_is_left_of_a_claim_stands_as_its_state_and_time_say(row: Claim, fate: Fate) -> None:
    (part,) = unfinished(CURSOR, [row], 30, NOW_MS)
    assert (part.fate, part.messages, part.row, list(part.seqs)) == (fate, 2, row, [10, 11])


def test_parts_say_from_where_their_messages_can_be_read() -> None:
    first, *_, last = unfinished(CURSOR, ROWS, 40, NOW_MS)
    assert first.runs == [(Place(10, 0), 11), (Place(13, 0), 15)]
    assert last.runs == [(Place(30, 7), 40)]
    assert (last.row, last.messages) == (None, 10)


def test_a_claim_with_nothing_left_is_not_a_part() -> None:
    assert unfinished(CURSOR, [claim(10, 12, FREE, 10, 11), claim(12, 30, DONE)], 30, 0) == []


@pytest.mark.parametrize(("due_ms", "held"), [(49, False), (50, False), (51, True)])
def test_a_claim_is_held_until_its_deadline(due_ms: int, held: bool) -> None:
    assert is_held(claim(0, 1, HELD, due_ms=due_ms), NOW_MS) is held
    assert not is_held(claim(0, 1, FREE, due_ms=due_ms), NOW_MS)


def test_what_is_done_is_so_in_whatever_way() -> None:
    assert list(done_of(CURSOR, ROWS)) == [*range(10), 11, 12, *range(15, 20), 23]


# --- what does not fit ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"rows": ROWS[:-1]}, "seqs 24-29 have no fate: no claim row covers them"),
        ({"rows": (*ROWS[:1], *ROWS[2:]), "removed": ()}, "seqs 15-19 have no fate"),
        ({"rows": (*ROWS, claim(28, 30, HELD))}, "seqs 28-29 are both waiting and pending"),
        ({"rows": (*ROWS, claim(24, 26, FREE))}, "2 messages are waiting twice"),
        ({"rows": (*ROWS, claim(9, 10, DONE))}, "1 message is done twice"),
        ({"rows": (claim(10, 15, HELD, 11, 36), *ROWS[1:])}, "seqs 36 are acked outside the claim"),
        ({"rows": (*ROWS, claim(30, 31, DONE))}, "seqs 30 are settled, but were never claimed"),
        ({"moves": (*MOVES, dead(5))}, "seqs 5 are both dead and purged"),
        ({"moves": (*MOVES, dead(24))}, "seqs 24 are both dead and waiting"),
        ({"moves": (*MOVES, dead(33))}, "seqs 33 are settled, but were never claimed"),
        ({"moves": (*MOVES, dead(1))}, "seqs 1 are both skipped and dead"),
        ({"removed": (*REMOVED, removed(5, 7))}, "1 message is purged twice"),
        ({"removed": (*REMOVED, removed(13, 14))}, "seqs 13 are both pending and purged"),
        ({"rows": (*ROWS[:1], *ROWS[2:])}, "seqs 16-17 are expired, but are not done"),
    ],
)
def test_contradictions_are_reported_with_their_seqs(
    change: dict[str, object], finding: str
) -> None:
    found = faults(VIEW._replace(**change), NOW_MS)
    reported = [set(each.split(" are both ")[-1].split(" and ")) for each in found]
    both = finding.split(" are both ")
    if len(both) == 2:  # in either order
        assert any(each.startswith(both[0]) for each in found)
        assert set(both[1].split(" and ")) in reported
    else:
        assert any(each.startswith(finding) for each in found), found


def test_of_many_seqs_that_are_amiss_the_first_are_named() -> None:
    assert named(RangeSet.of([1, 2, 3, 7])) == "seqs 1-3, 7"
    assert named(RangeSet.of(range(0, 20, 2))) == "seqs 0, 2, 4, 6, 8 and 5 runs more"


# --- for whatever rows there may be ---------------------------------------------------------------

each_case = settings(max_examples=100)


@st.composite
def views(draw: st.DrawFn) -> tuple[GroupView, int]:
    """A group in a pipe as it may be, and how many messages the pipe has."""
    cuts = st.integers(0, 12)
    start, below, width, behind = draw(st.tuples(cuts, cuts, cuts, cuts))
    ack, rows = start + below, list[Claim]()
    at = chain = ack + width
    at = ack
    while at < chain:
        end = draw(st.integers(at + 1, chain))
        state = draw(st.sampled_from((HELD, FREE, DONE)))
        acked = [] if state is DONE else draw(st.lists(st.integers(at, end - 1), unique=True))
        due_ms = draw(st.sampled_from((NOW_MS - 1, NOW_MS, NOW_MS + 1)))
        rows.append(claim(at, end, state, *sorted(acked), due_ms=due_ms))
        at = end
    cursor = Cursor("g", "p", Place(ack, 0), Place(chain, 0), start=start)
    done = done_of(cursor, rows) - RangeSet.run(0, start)
    reasons = draw(
        st.lists(st.sampled_from((None, "dead", *Reason)), min_size=len(done), max_size=len(done))
    )
    gone = [(seq, reason) for seq, reason in zip(done, reasons, strict=True) if reason]
    moves = [dead(seq) for seq, reason in gone if reason == "dead"]
    facts = [removed(s, s + 1, Reason(reason)) for s, reason in gone if reason != "dead"]
    return GroupView(cursor, rows, moves, facts), chain + behind


@each_case
@given(views(), st.booleans())
def test_the_fates_are_a_partition_of_the_pipe(case: tuple[GroupView, int], timed: bool) -> None:
    view, end_seq = case
    found = fates(view, end_seq, NOW_MS, timed=timed)
    together = RangeSet.joined(found.values())
    assert together == RangeSet.run(0, end_seq)
    assert sum(map(len, found.values())) == end_seq, "some have two"
    assert faults(view, NOW_MS) == []


@each_case
@given(views(), st.booleans())
def test_counts_are_those_of_the_fates(case: tuple[GroupView, int], timed: bool) -> None:
    view, end_seq = case
    account = tally(view, NOW_MS).up_to(end_seq, timed=timed)
    found = fates(view, end_seq, NOW_MS, timed=timed)
    assert Counter(account.counts) == Counter({fate: len(seqs) for fate, seqs in found.items()})
    assert account.pushed == sum(account.counts.values()) == end_seq


@each_case
@given(views())
def test_what_is_done_and_what_is_not_are_a_partition_too(case: tuple[GroupView, int]) -> None:
    view, end_seq = case
    assert view.cursor is not None
    parts = unfinished(view.cursor, view.rows, end_seq, NOW_MS)
    left = RangeSet.joined([EMPTY, *(part.seqs for part in parts)])
    done = done_of(view.cursor, view.rows)
    assert done & left == EMPTY
    assert done | left == RangeSet.run(0, end_seq)
    assert sum(part.messages for part in parts) == len(left)


@each_case
@given(views(), st.data())
def test_a_row_too_few_is_a_fault(case: tuple[GroupView, int], data: st.DataObject) -> None:
    """So a look at rows that were not read at one moment is seen to be none."""
    view, _ = case
    assert view.cursor is not None
    if view.rows:
        lost = data.draw(st.sampled_from(list(view.rows)))
        rows: Sequence[Claim] = [row for row in view.rows if row is not lost]
        assert faults(view._replace(rows=rows), NOW_MS)
    if view.cursor.start < view.cursor.ack.seq:
        ack = replace(view.cursor, ack=Place(view.cursor.start, 0))
        assert faults(view._replace(cursor=ack), NOW_MS)
