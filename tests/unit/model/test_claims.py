"""What can become of a claim: each move covers the same seqs, keeps every ack, counts right."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs, Version
from cassq.model.rows import Claim, ClaimState, Cursor

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE
NOW_MS = 50_000
SPAN = 40

each_case = settings(max_examples=200)


def versions() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"v{next(numbers)}"


def a_claim(start: int = 10, end: int = 20, **changes: object) -> Claim:
    row = Claim("group", "pipe", start, end, 4096, HELD, NOW_MS, 1, holder="me", version="v0")
    return replace(row, **changes)  # type: ignore[arg-type]


def whole(claim: Claim) -> RangeSet:
    return RangeSet([(claim.start, claim.end)])


def settled(pieces: Sequence[Claim]) -> RangeSet:
    """The seqs acked in any of the rows."""
    found = EMPTY
    for piece in pieces:
        found |= whole(piece) if piece.state is DONE else piece.acked
    return found


def left(piece: Claim) -> RangeSet:
    """The seqs of a row that are not acked."""
    return whole(piece) - piece.acked


def in_state(pieces: Sequence[Claim], state: ClaimState) -> RangeSet:
    """The seqs that are not acked of the rows in a state; of done ones all."""
    found = EMPTY
    for piece in pieces:
        if piece.state is state:
            found |= left(piece)
    return found


def take(rows: Sequence[Claim], limit: int, version: Version) -> tuple[Claim, list[Claim]]:
    """Take `limit` messages of the first free row; it, and all rows that result."""
    at = next(number for number, row in enumerate(rows) if row.state is FREE)
    middle = list(left(rows[at]))[:limit][-1] + 1
    mine, pieces = claims.taken(rows[at], Place(middle, rows[at].pos), "you", NOW_MS + 30, version)
    return mine, [*rows[:at], *pieces, *rows[at + 1 :]]


def assert_covers_exactly(pieces: Sequence[Claim], claim: Claim) -> None:
    """Rows in order without a gap or an overlap, of the same group and pipe, each a new version."""
    at = claim.start
    for piece in pieces:
        assert piece.start == at < piece.end
        assert not piece.acked - whole(piece), "acks outside the row"
        assert (piece.group_id, piece.pipe_id, piece.pos) == ("group", "pipe", claim.pos)
        at = piece.end
    assert at == claim.end
    names = [piece.version for piece in pieces]
    assert len({*names, claim.version}) == len(names) + 1, "each write needs a version of its own"


@st.composite
def held_claims(draw: st.DrawFn) -> Claim:
    start = draw(st.integers(0, 20))
    end = draw(st.integers(start + 1, start + SPAN))
    acked = RangeSet.of(draw(st.lists(st.integers(start, end - 1), max_size=12)))
    assume(not acked.covers(start, end))
    return a_claim(
        start,
        end,
        acked=acked,
        deliveries=draw(st.integers(1, 12)),
        losses=draw(st.integers(0, 3)),
        failure=draw(st.sampled_from(["", '{"error":"before"}'])),
    )


seq_sets = st.lists(st.integers(0, 60), max_size=15).map(RangeSet.of)


@st.composite
def gives(draw: st.DrawFn) -> ReturnedSeqs:
    return ReturnedSeqs(
        draw(seq_sets),
        draw(st.integers(0, 100_000)),
        draw(st.integers(0, 12)),
        draw(st.sampled_from(["", '{"error":"now"}'])),
    )


# --- the first claim --------------------------------------------------------------------------


def test_the_first_claim_begins_where_the_chain_ends_and_counts_its_delivery() -> None:
    cursor = Cursor("group", "pipe", ack=Place(3, 4100), chain=Place(7, 5000), epoch=2)
    row = claims.first(cursor, Place(19, 9000), "me", NOW_MS, versions())
    assert row == Claim(
        "group", "pipe", 7, 19, 5000, HELD, NOW_MS, deliveries=1, holder="me", version="v1"
    )
    assert row.count == 12


# --- acked and given back ---------------------------------------------------------------------


@each_case
@given(held_claims(), seq_sets, st.lists(gives(), max_size=3))
def test_a_resolved_claim_covers_the_same_and_forgets_no_ack(
    claim: Claim, acks: RangeSet, given_back: list[ReturnedSeqs]
) -> None:
    pieces = claims.resolved(claim, acks, given_back, versions())
    assert_covers_exactly(pieces, claim)
    assert settled(pieces) == (claim.acked | acks) & whole(claim)


@each_case
@given(held_claims(), seq_sets, st.lists(gives(), min_size=1, max_size=3))
def test_what_is_given_back_is_free_and_the_rest_stays_held(
    claim: Claim, acks: RangeSet, given_back: list[ReturnedSeqs]
) -> None:
    acked = (claim.acked | acks) & whole(claim)
    assume(acked != whole(claim))
    named = EMPTY
    for give in given_back:
        named |= give.seqs & whole(claim)
    pieces = claims.resolved(claim, acks, given_back, versions())
    assert in_state(pieces, FREE) == named - acked
    assert whole(claim) - named - acked == in_state(pieces, HELD)
    for piece in pieces:
        assert piece.holder == ("me" if piece.state is HELD else "")
        if piece.state is FREE:
            give = next(g for g in given_back if piece.start in g.seqs)
            assert left(piece) == left(piece) & give.seqs
            assert (piece.due_ms, piece.deliveries) == (give.due_ms, give.deliveries)
            assert piece.failure == (give.failure or claim.failure)
            assert piece.losses == claim.losses
        if piece.state is HELD:
            assert (piece.due_ms, piece.deliveries) == (claim.due_ms, claim.deliveries)


@each_case
@given(held_claims(), st.lists(seq_sets, max_size=4))
def test_acks_accumulate_in_any_portions(claim: Claim, portions: list[RangeSet]) -> None:
    version = versions()
    rows = [claim]
    total = claim.acked
    for acks in portions:
        rows = [
            piece
            for row in rows
            for piece in ([row] if row.state is DONE else claims.resolved(row, acks, [], version))
        ]
        total |= acks & whole(claim)
        assert settled(rows) == total
    assert len(rows) == 1, "without gives a claim stays one row, so acks cost one write"


def test_acking_the_last_message_makes_the_row_done() -> None:
    claim = a_claim(10, 13, acked=RangeSet([(10, 12)]), failure="{}")
    (row,) = claims.resolved(claim, RangeSet([(12, 13)]), [], versions())
    assert (row.state, row.holder, row.acked, row.failure) == (DONE, "", EMPTY, "")


def test_acks_of_one_before_the_last_leave_it_held() -> None:
    (row,) = claims.resolved(a_claim(10, 13), RangeSet([(10, 12)]), [], versions())
    assert (row.state, row.acked) == (HELD, RangeSet([(10, 12)]))


@each_case
@given(held_claims(), seq_sets, st.lists(gives(), min_size=1, max_size=3))
def test_cut_gives_come_back_in_small_pieces_of_the_same_seqs(
    claim: Claim, acks: RangeSet, given_back: list[ReturnedSeqs]
) -> None:
    cut = [give._replace(cut=True) for give in given_back]
    plain = claims.resolved(claim, acks, given_back, versions())
    pieces = claims.resolved(claim, acks, cut, versions())
    assert_covers_exactly(pieces, claim)
    assert in_state(pieces, FREE) == in_state(plain, FREE)
    assert settled(pieces) == settled(plain)
    given_to = [EMPTY] * len(cut)
    free = in_state(pieces, FREE)
    for number, give in enumerate(cut):
        given_to[number] = give.seqs & free
        free -= give.seqs
    largest = max(map(len, given_to))
    assert max((len(left(row)) for row in pieces if row.state is FREE), default=0) <= max(
        1, -(-largest // claims.CUT_INTO)
    )


@pytest.mark.parametrize(
    ("size", "deliveries", "allowed", "cut", "counted"),
    [
        (5, 1, 10, False, 1),  # the first failure
        (5, 2, 10, True, 2),  # not the first
        (5, 9, 10, True, 9),
        (5, 10, 10, True, 9),  # spent together: once more in pieces
        (5, 11, 10, True, 9),
        (5, 1, 1, True, 0),
        (2, 10, 10, True, 9),
        (1, 1, 10, False, 1),  # alone: it counts as it stands
        (1, 10, 10, False, 10),
    ],
)
def test_messages_that_failed_together_are_cut_up_from_the_second_failure_on(
    size: int, deliveries: int, allowed: int, cut: bool, counted: int
) -> None:
    give = ReturnedSeqs(RangeSet([(10, 10 + size)]), NOW_MS, deliveries, "{}")
    found = claims.cut_up(give, allowed)
    assert found == ReturnedSeqs(give.seqs, NOW_MS, counted, "{}", cut)


def test_giving_everything_back_leaves_one_free_row() -> None:
    give = ReturnedSeqs(RangeSet([(0, 99)]), NOW_MS + 5, 0)
    (row,) = claims.resolved(a_claim(10, 20), EMPTY, [give], versions())
    assert (row.start, row.end, row.state, row.deliveries) == (10, 20, FREE, 0)


def test_a_message_acked_and_given_back_at_once_stays_acked() -> None:
    give = ReturnedSeqs(RangeSet([(10, 12)]), NOW_MS, 1)
    rows = claims.resolved(a_claim(10, 13), RangeSet([(11, 12)]), [give], versions())
    assert [(r.start, r.end, r.state) for r in rows] == [
        (10, 11, FREE), (11, 12, DONE), (12, 13, HELD),
    ]  # fmt: skip
    assert 11 in settled(rows)


def test_a_longer_deadline_changes_nothing_else() -> None:
    claim = a_claim(acked=RangeSet([(12, 14)]))
    (row,) = claims.extended(claim, NOW_MS + 9, versions())
    assert row == replace(claim, due_ms=NOW_MS + 9, version="v1")


# --- due and spent ----------------------------------------------------------------------------


@pytest.mark.parametrize(("deliveries", "spent"), [(9, False), (10, True), (11, True)])
def test_one_message_is_spent_when_delivered_as_often_as_allowed(
    deliveries: int, spent: bool
) -> None:
    assert claims.is_spent(a_claim(5, 6, deliveries=deliveries), 10) is spent
    two_but_one_acked = a_claim(5, 7, acked=RangeSet([(6, 7)]), deliveries=deliveries)
    assert claims.is_spent(two_but_one_acked, 10) is spent


def test_several_messages_are_never_spent_together() -> None:
    assert not claims.is_spent(a_claim(5, 7, deliveries=1000), 10)


# --- taken away -------------------------------------------------------------------------------


@each_case
@given(held_claims(), st.integers(1, 12))
def test_a_freed_claim_covers_the_same_and_forgets_no_ack(claim: Claim, allowed: int) -> None:
    pieces = claims.freed(claim, NOW_MS, NOW_MS, allowed, versions())
    assert_covers_exactly(pieces, claim)
    assert settled(pieces) == claim.acked
    assert in_state(pieces, FREE) == whole(claim) - claim.acked
    assert in_state(pieces, HELD) == EMPTY
    for piece in pieces:
        assert piece.holder == ""
        if piece.state is FREE:
            assert (piece.due_ms, piece.losses) == (NOW_MS, claim.losses + 1)
            assert json.loads(piece.failure)["reason"] == "expired"
            assert piece.deliveries == counted(claim, allowed)


def counted(claim: Claim, allowed: int) -> int:
    """The deliveries that count for what is left of a lost claim: several messages lost together
    have one more before any of them is given up."""
    several = claim.count - len(claim.acked) > 1
    return min(claim.deliveries, allowed - 1) if several else claim.deliveries


@each_case
@given(held_claims(), st.integers(1, 12))
def test_no_message_is_given_up_for_a_claim_it_shared(claim: Claim, allowed: int) -> None:
    several = claim.count - len(claim.acked) > 1
    for piece in claims.freed(claim, NOW_MS, NOW_MS, allowed, versions()):
        if several and piece.state is FREE:
            assert not claims.is_spent(piece, allowed)


@pytest.mark.parametrize("allowed", [1, 2, 3, 10])
@pytest.mark.parametrize("size", [2, 16, 100, 300])
def test_a_poisonous_message_ends_up_alone_and_its_neighbours_do_not_pay(
    size: int, allowed: int
) -> None:
    """The consumer dies on one message, every time. What is given up in the end is that one."""
    version, poison = versions(), size // 2
    rows, given_up = [a_claim(0, size, deliveries=1)], None
    for _ in range(200):
        held = next((row for row in rows if row.state is HELD), None)
        if held is not None:
            rows.remove(held)
            done = held.acked | RangeSet([(held.start, poison)])
            if held.start <= poison < held.end:
                rows += claims.freed(
                    replace(held, acked=done & whole(held)), 0, 0, allowed, version
                )
            else:
                rows += claims.resolved(held, whole(held), [], version)
            rows.sort(key=lambda row: row.start)
        free = [row for row in rows if row.state is FREE]
        given_up = next((row for row in free if claims.is_spent(row, allowed)), None)
        if given_up:
            break
        _, rows = take(rows, 1000, version)
    assert given_up is not None
    assert list(left(given_up)) == [poison]


def free_sizes(claim: Claim, allowed: int = 10) -> list[int]:
    return [
        p.count for p in claims.freed(claim, NOW_MS, NOW_MS, allowed, versions()) if p.state is FREE
    ]


def test_a_claim_lost_once_stays_whole() -> None:
    assert free_sizes(a_claim(0, 100, losses=0)) == [100]


def test_a_claim_lost_twice_is_cut_up() -> None:
    sizes = free_sizes(a_claim(0, 100, losses=1))
    assert len(sizes) <= claims.CUT_INTO
    assert sizes == [7] * 14 + [2]


@pytest.mark.parametrize(("deliveries", "parts"), [(9, 1), (10, 15), (11, 15)])
def test_a_claim_whose_deliveries_are_spent_is_cut_up_at_once(deliveries: int, parts: int) -> None:
    assert len(free_sizes(a_claim(0, 100, deliveries=deliveries), allowed=10)) == parts


@pytest.mark.parametrize("size", [1, 2, 15, 16, 17, 255, 256, 10_000, 1_000_000])
def test_cutting_goes_down_to_single_messages_in_a_few_rounds(size: int) -> None:
    row, rounds = a_claim(0, size), 0
    while len(left(row)) > 1:
        row = max(
            claims.freed(row, NOW_MS, NOW_MS, 10, versions()), key=lambda piece: len(left(piece))
        )
        row, rounds = replace(row, state=HELD, holder="me"), rounds + 1
        assert rounds <= 7, "1,000,000 is 16 ** 5, and the first loss does not cut"
    again = claims.freed(row, NOW_MS, NOW_MS, 10, versions())
    assert [(piece.start, piece.end) for piece in again] == [(row.start, row.end)]


def test_cutting_leaves_out_what_is_acked() -> None:
    claim = a_claim(0, 6, acked=RangeSet([(1, 3)]), losses=5)
    rows = claims.freed(claim, NOW_MS, NOW_MS, 10, versions())
    assert [(r.start, r.end, r.state) for r in rows] == [
        (0, 1, FREE), (1, 3, DONE), (3, 4, FREE), (4, 5, FREE), (5, 6, FREE),
    ]  # fmt: skip


# --- taken ------------------------------------------------------------------------------------


@each_case
@given(held_claims(), st.integers(1, 60))
def test_taking_a_free_claim_covers_the_same_and_counts_one_delivery_more(
    claim: Claim, limit: int
) -> None:
    version = versions()
    before = claims.freed(claim, NOW_MS, NOW_MS, 99, version)
    mine, rows = take(before, limit, version)
    assert_covers_exactly(rows, claim)
    assert settled(rows) == claim.acked
    first_free = next(piece for piece in before if piece.state is FREE)
    assert mine in rows
    wanted = list(left(first_free))[:limit]
    assert list(left(mine)) == wanted
    assert (mine.state, mine.holder, mine.due_ms) == (HELD, "you", NOW_MS + 30)
    assert (mine.deliveries, mine.losses) == (claim.deliveries + 1, claim.losses + 1)
    rest = [row for row in rows if row.state is FREE]
    assert all(row.deliveries == claim.deliveries for row in rest), "only what is handed out counts"


@each_case
@given(st.integers(1, 30), st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_deliveries_count_every_hand_over_and_nothing_else(size: int, limits: list[int]) -> None:
    """Claimed, lost and taken over again and again: each message's count is how often it was
    in a popper's hands."""
    version = versions()
    rows: list[Claim] = [a_claim(0, size)]
    handed = [1] * size
    for limit in limits:
        rows = [
            piece
            for row in rows
            for piece in (
                claims.freed(row, NOW_MS, NOW_MS, 99, version) if row.state is HELD else [row]
            )
        ]
        mine, rows = take(rows, limit, version)
        for seq in range(mine.start, mine.end):
            handed[seq] += 1
    assert [row.deliveries for row in rows for _ in range(row.count)] == handed


def test_a_claim_whose_messages_became_dead_letters_is_done_as_a_whole() -> None:
    claim = a_claim(5, 8, acked=RangeSet([(5, 7)]), deliveries=10, failure="{}")
    (row,) = claims.as_dead(claim, versions())
    assert (row.start, row.end, row.state, row.holder, row.acked) == (5, 8, DONE, "", EMPTY)
    assert row.version != claim.version


def test_a_message_that_was_handed_out_with_others_is_not_spent_by_one_loss() -> None:
    """It is delivered alone once more: it may have been any of them."""
    row = a_claim(10, 11, deliveries=3, joint=True)
    (free,) = claims.freed(row, NOW_MS, 0, 3, versions())
    assert not claims.is_spent(free, 3)
    (alone,) = claims.freed(replace(row, joint=False), NOW_MS, 0, 3, versions())
    assert claims.is_spent(alone, 3)


def test_the_time_of_the_first_failure_is_kept() -> None:
    first = claims.failure_record("rejected", "a", "me", 100)
    second = claims.failure_record("expired", "b", "you", 200)
    record = json.loads(claims.failed_again(first, second))
    assert (record["first_ms"], record["at_ms"]) == (100, 200)
    assert (record["reason"], record["error"], record["consumer"]) == ("expired", "b", "you")


# --- a deadline of one's own ------------------------------------------------------------------


@each_case
@given(acked=st.sets(st.integers(10, 19)), dated=st.sets(st.integers(10, 19), min_size=1))
def test_each_dated_message_has_a_row_of_its_own_and_nothing_else_changes(
    acked: set[int], dated: set[int]
) -> None:
    assume(dated.isdisjoint(acked))
    claim = a_claim(acked=RangeSet.of(sorted(acked)))
    rows = claims.dated(claim, RangeSet.of(sorted(dated)), NOW_MS + 7, versions())
    assert [row.start for row in rows] == [claim.start, *(row.end for row in rows[:-1])]
    assert rows[-1].end == claim.end
    assert settled(rows) == claim.acked
    own = [row for row in rows if row.holder == claim.holder + claims.DATED]
    assert sorted(row.start for row in own) == sorted(dated)
    assert all((row.count, row.due_ms, row.state) == (1, NOW_MS + 7, HELD) for row in own)
    for row in rows:
        if row.state is HELD and row not in own:
            assert (row.due_ms, row.holder) == (claim.due_ms, claim.holder)
        assert row.deliveries == claim.deliveries


def test_a_message_is_dated_again_under_the_same_holder() -> None:
    (once,) = claims.dated(a_claim(5, 6), RangeSet.run(5, 6), NOW_MS + 7, versions())
    (again,) = claims.dated(once, RangeSet.run(5, 6), NOW_MS + 9, versions())
    assert (again.holder, again.due_ms) == (once.holder, NOW_MS + 9)
    assert claims.is_delivery(again, 5, "me")
    assert not claims.is_delivery(again, 6, "me")
    assert not claims.is_delivery(again, 5, "you")
    assert [claims.is_dated(row) for row in (again, a_claim(5, 6))] == [True, False]


def test_what_a_keyed_group_has_not_handed_out_was_not_delivered() -> None:
    claim = replace(a_claim(5, 8), tried=RangeSet.run(6, 7))
    assert [claims.is_delivery(claim, seq, "me") for seq in (5, 6, 7)] == [False, True, False]
    own, *_ = (row for row in claims.dated(claim, RangeSet.run(6, 7), 9, versions()) if row.tried)
    assert (own.start, own.end, own.tried) == (6, 7, RangeSet.run(6, 7))


@each_case
@given(claim=held_claims(), below=st.integers(1, 61))
def test_what_is_taken_from_a_holder_is_in_no_row_that_it_still_has(
    claim: Claim, below: int
) -> None:
    assume(below > claim.start)
    rows = claims.taken_from(claim, below, versions())
    assert_covers_exactly(rows, claim)
    gone = claim.left.within(claim.start, below)
    kept = [row for row in rows if row.state is HELD]
    assert settled(rows) == claim.acked | gone
    assert in_state(rows, HELD) == claim.left - gone
    assert all(not whole(row) & gone for row in kept)
    assert all((row.holder, row.due_ms) == (claim.holder, claim.due_ms) for row in kept)


def test_a_claim_s_holder_shows_its_popper() -> None:
    holder = claims.holder_name("popper.1", 7)
    assert claims.consumer_of(holder) == claims.consumer_of(holder + claims.DATED) == "popper.1"
    assert holder != claims.holder_name("popper.1", 8)
