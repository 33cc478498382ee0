"""The Catalog port: cursors, claims, acks and moves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import GiveBack
from cassq.model.rows import Claim, ClaimState
from tests.contract.rows import (
    DUE_MS,
    Desk,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
    version,
)

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE


@pytest.fixture
def desk(catalog: Catalog) -> Desk:
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    return Desk(catalog)


@pytest.fixture
def theirs(desk: Desk, other: Catalog) -> Desk:
    """The same group and pipe, as another process works on it."""
    return Desk(other)


# --- cursors ----------------------------------------------------------------------------------


def test_a_cursor_is_made_at_0_when_it_is_first_asked_for(desk: Desk, theirs: Desk) -> None:
    assert desk.catalog.claims.cursors("q/default") == []
    cursor = desk.cursor
    assert (cursor.group_id, cursor.pipe_id) == ("q/default", "p")
    assert (cursor.ack.seq, cursor.chain.seq, cursor.epoch, cursor.owner) == (0, 0, 0, "")
    assert theirs.cursor == cursor
    assert theirs.catalog.claims.cursors("q/default") == [cursor]


def test_there_is_no_cursor_where_there_is_no_pipe_or_group(desk: Desk) -> None:
    make_queue(desk.catalog, "r")
    for group, pipe_id in (("q/default", "unknown"), ("unknown", "p"), ("r/default", "p")):
        assert desk.catalog.claims.cursor(group, pipe_id) is None
        assert desk.catalog.claims.cursors(group) == []


def test_cursors_of_a_group_are_one_a_pipe(desk: Desk) -> None:
    assert desk.catalog.pipes.add(pipe_row("p2"))
    make_group(desk.catalog, "other")
    first, second = desk.cursor, Desk(desk.catalog, pipe_id="p2").cursor
    found = desk.catalog.claims.cursors("q/default")
    assert sorted(found, key=lambda cursor: cursor.pipe_id) == [first, second]


# --- claiming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
def test_a_claim_moves_the_chain_and_leaves_its_row(desk: Desk, theirs: Desk, synced: bool) -> None:
    cursor = desk.cursor
    row = claims.first(cursor, place(5), "me", DUE_MS, version)
    assert desk.catalog.claims.claim(cursor, place(5), [row], synced=synced)
    assert theirs.rows == [row]
    assert theirs.cursor == replace(cursor, chain=place(5))


def test_of_two_claims_from_the_same_place_one_succeeds(desk: Desk, theirs: Desk) -> None:
    cursor = desk.cursor
    mine = desk.claim(5)
    late = claims.first(cursor, place(9), "you", DUE_MS, version)
    assert not theirs.catalog.claims.claim(cursor, place(9), [late])
    assert theirs.rows == [mine]
    assert theirs.cursor.chain == place(5)


def test_claims_form_a_chain(desk: Desk, theirs: Desk) -> None:
    rows = [desk.claim(5), theirs.claim(1), desk.claim(20)]
    assert [(row.start, row.end) for row in rows] == [(0, 5), (5, 6), (6, 26)]
    assert [row.pos for row in rows[1:]] == [place(5).pos, place(6).pos]
    assert theirs.rows == rows
    theirs.assert_covered()


def test_the_claims_of_each_group_and_pipe_are_apart(desk: Desk) -> None:
    assert desk.catalog.pipes.add(pipe_row("p2"))
    make_group(desk.catalog, "b")
    desks = [desk, Desk(desk.catalog, "q/b"), Desk(desk.catalog, pipe_id="p2")]
    rows = [each.claim(number) for number, each in enumerate(desks, 1)]
    assert [each.rows for each in desks] == [[row] for row in rows]
    assert desks[0].finish(rows[0])
    assert [each.cursor.ack.seq for each in desks] == [1, 0, 0]


def test_every_field_of_a_claim_comes_back(desk: Desk) -> None:
    held = desk.claim(9)
    row = Claim(
        "q/default", "p", 0, 9, 77, FREE, due_ms=1 << 50, deliveries=3, losses=2, holder="x",
        version=version(), acked=RangeSet([(1, 3), (5, 6)]), failure='{"error":"é"}',
    )  # fmt: skip
    assert desk.catalog.claims.replace(held, [row])
    assert desk.rows == [row]


# --- fencing ----------------------------------------------------------------------------------


def test_a_fence_raises_the_epoch_and_names_the_owner(desk: Desk, theirs: Desk) -> None:
    before = desk.cursor
    fenced = desk.catalog.claims.fence(before, "me")
    assert fenced == replace(before, epoch=1, owner="me") == theirs.cursor
    assert theirs.catalog.claims.fence(before, "you") is None, "a race that was lost"
    again = theirs.catalog.claims.fence(theirs.cursor, "you")
    assert again == replace(before, epoch=2, owner="you") == desk.cursor


def test_a_fenced_popper_claims_nothing(desk: Desk, theirs: Desk) -> None:
    mine = desk.catalog.claims.fence(desk.cursor, "me")
    assert mine is not None
    assert theirs.catalog.claims.fence(theirs.cursor, "you") is not None
    row = claims.first(mine, place(5), "me", DUE_MS, version)
    assert not desk.catalog.claims.claim(mine, place(5), [row])
    assert desk.rows == []


def test_a_fenced_popper_s_acks_are_refused(desk: Desk, theirs: Desk) -> None:
    mine = desk.catalog.claims.fence(desk.cursor, "me")
    assert mine is not None
    row = desk.claim(5)
    assert theirs.catalog.claims.fence(theirs.cursor, "you") is not None
    assert not desk.finish(row, epoch=mine.epoch)
    assert desk.catalog.claims.replace_many([(row, desk.acked(row, 0, 5))], epoch=mine.epoch) == [
        False
    ]
    assert desk.rows == [row]
    assert theirs.finish(row, epoch=mine.epoch + 1)
    assert theirs.cursor.ack == place(5)


def test_a_fence_needs_a_cursor(desk: Desk) -> None:
    assert desk.catalog.claims.fence(replace(desk.cursor, pipe_id="unknown"), "me") is None


# --- replacing --------------------------------------------------------------------------------


def test_of_two_replacements_of_a_claim_one_succeeds(desk: Desk, theirs: Desk) -> None:
    desk.claim(1)
    row = desk.claim(5)
    mine, yours = desk.freed(row), theirs.acked(row, 5, 6)
    assert desk.catalog.claims.replace(row, mine)
    assert not theirs.catalog.claims.replace(row, yours)
    assert theirs.rows[1:] == mine
    assert not desk.catalog.claims.replace(row, mine), "the same once more changes nothing"


def test_a_claim_in_a_pipe_that_is_gone_is_lost(desk: Desk, theirs: Desk) -> None:
    held = desk.claim(4)
    theirs.catalog.pipes.forget(theirs.catalog.queues.delete("id of q"))
    done = claims.as_dead(held, version)
    assert desk.catalog.claims.replace_many([(held, done)]) == [False]
    assert not desk.catalog.claims.replace(held, done)


def test_acks_accumulate_in_a_row(desk: Desk) -> None:
    row = desk.claim(10)
    for acks in (RangeSet([(2, 4)]), RangeSet([(8, 9)]), RangeSet([(4, 5)])):
        (new,) = claims.resolved(row, acks, [], version)
        assert desk.catalog.claims.replace(row, [new])
        row = new
    (found,) = desk.rows
    assert found.acked == RangeSet([(2, 5), (8, 9)])
    assert desk.cursor.ack.seq == 0


@pytest.mark.parametrize("in_front", [True, False])
def test_a_stale_holder_undoes_no_ack(desk: Desk, theirs: Desk, in_front: bool) -> None:
    """The pass that frees expired claims may have read the row before it was acked."""
    if not in_front:
        desk.claim(3)
    row = desk.claim(5)
    assert desk.finish(row)
    before = desk.states
    assert not theirs.catalog.claims.replace(row, theirs.freed(row))
    assert theirs.catalog.claims.replace_many([(row, theirs.freed(row))]) == [False]
    assert not theirs.finish(row)
    assert theirs.states == before
    assert set(range(row.start, row.end)) <= set(theirs.assert_covered())


def test_a_stale_holder_undoes_no_ack_of_a_row_that_grew(desk: Desk, theirs: Desk) -> None:
    desk.claim(3)
    first, second, third = desk.claim(5), desk.claim(5), desk.claim(5)
    for row in (second, first, third):
        assert desk.finish(row)
    for row in (first, second, third):
        assert not theirs.catalog.claims.replace(row, theirs.freed(row))
    assert theirs.states == [(0, 3, HELD), (3, 18, DONE)]


def test_a_claim_is_cut_up_and_each_piece_replaced_for_itself(desk: Desk, theirs: Desk) -> None:
    row = replace(desk.claim(40), losses=1)
    pieces = desk.freed(row)
    assert len(pieces) > 10
    assert desk.catalog.claims.replace(row, pieces)
    until = Place(pieces[0].start + 2, pieces[0].pos)
    mine, rows = claims.taken(pieces[0], until, "me", DUE_MS, version)
    assert theirs.catalog.claims.replace(pieces[0], rows)
    assert desk.rows == [*rows, *pieces[1:]]
    assert desk.finish(mine)
    assert desk.cursor.ack.seq == 2
    assert desk.assert_covered() == RangeSet([(0, 2)])


def test_rows_that_are_given_back_in_part_cover_what_they_covered(desk: Desk) -> None:
    row = desk.claim(10)
    give = GiveBack(RangeSet([(2, 5)]), DUE_MS + 9, 1, '{"error":"no"}')
    pieces = claims.resolved(row, RangeSet([(0, 2), (7, 8)]), [give], version)
    assert desk.catalog.claims.replace(row, pieces)
    assert desk.states == [(2, 5, FREE), (5, 10, HELD)]
    assert desk.cursor.ack.seq == 2
    assert desk.rows[0].failure == '{"error":"no"}'
    desk.assert_covered()


def test_many_claims_are_replaced_at_once_and_each_answers_for_itself(
    desk: Desk, theirs: Desk
) -> None:
    assert desk.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Desk(desk.catalog, pipe_id="p2")
    rows = [desk.claim(5), desk.claim(5), desk.claim(5), elsewhere.claim(5)]
    assert theirs.catalog.claims.replace(rows[1], theirs.freed(rows[1]))
    changes = [(row, desk.acked(row, row.start, row.end)) for row in rows]
    assert desk.catalog.claims.replace_many(changes) == [True, False, True, True]
    assert desk.states == [(5, 10, FREE), (10, 15, DONE)]
    assert desk.cursor.ack.seq == 5
    assert elsewhere.cursor.ack.seq == 5
    assert desk.catalog.claims.replace_many(changes) == [False] * 4
    assert desk.catalog.claims.replace_many([]) == []
    assert desk.states == [(5, 10, FREE), (10, 15, DONE)]


# --- the ack offset ---------------------------------------------------------------------------


def test_the_ack_offset_moves_over_what_is_done_in_front(desk: Desk, theirs: Desk) -> None:
    rows = [desk.claim(5), desk.claim(5), desk.claim(5)]
    assert desk.finish(rows[1])
    assert desk.cursor.ack.seq == 0, "the first is not done"
    assert desk.states == [(0, 5, HELD), (5, 10, DONE), (10, 15, HELD)]
    assert desk.finish(rows[0])
    assert theirs.cursor.ack == place(10), "to where the first open claim stands"
    assert theirs.states == [(10, 15, HELD)]
    assert desk.finish(rows[2])
    assert theirs.cursor.ack == theirs.cursor.chain == place(15)
    assert theirs.rows == []


@pytest.mark.parametrize(
    "order", [(1, 2, 3), (3, 2, 1), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2)]
)
def test_done_rows_merge_in_whatever_order_they_come(desk: Desk, order: tuple[int, ...]) -> None:
    rows = [desk.claim(5) for _ in range(5)]
    for number in order:
        assert desk.finish(rows[number])
        desk.assert_covered()
    assert desk.states == [(0, 5, HELD), (5, 20, DONE), (20, 25, HELD)]
    assert desk.finish(rows[0])
    assert desk.cursor.ack == place(20)
    assert desk.states == [(20, 25, HELD)]


def test_done_pieces_of_a_claim_in_the_middle_stay_until_the_front_is_done(desk: Desk) -> None:
    row = desk.claim(9)
    acked = replace(row, acked=RangeSet([(3, 6)]), version=version())
    assert desk.catalog.claims.replace(row, [acked])
    gives = [GiveBack(RangeSet([(0, 3)]), 1, 1), GiveBack(RangeSet([(6, 9)]), 2, 1)]
    assert desk.catalog.claims.replace(acked, claims.resolved(acked, EMPTY, gives, version))
    assert desk.states == [(0, 3, FREE), (3, 6, DONE), (6, 9, FREE)]
    first = desk.rows[0]
    assert desk.catalog.claims.replace(first, claims.as_dead(first, version))
    assert desk.states == [(6, 9, FREE)]
    assert desk.cursor.ack.seq == 6


@pytest.mark.parametrize("seed", range(6))
def test_whatever_poppers_do_the_rows_cover_and_no_ack_is_lost(
    desk: Desk, theirs: Desk, seed: int
) -> None:
    """Random moves of two poppers; after each, the rows are as they must be."""
    chance = random.Random(seed)
    done = EMPTY
    stale: list[Claim] = []
    for _ in range(150):
        at = chance.choice([desk, theirs])
        rows = [row for row in at.rows if row.state is not DONE]
        if not rows or chance.random() < 0.3:
            stale.append(at.claim(chance.randint(1, 12)))
        else:
            row = chance.choice(rows)
            start = chance.randint(row.start, row.end - 1)
            end = chance.randint(start + 1, row.end)
            part = RangeSet([(start, end)])
            if row.state is FREE:
                until = Place(row.start + chance.randint(1, 5), row.pos)
                _, new = claims.taken(row, until, "me", DUE_MS, version)
            elif chance.random() < 0.3:
                new = at.freed(row)
                done |= row.acked
            elif chance.random() < 0.3:
                acks = RangeSet([(row.start, start)])
                new = claims.resolved(row, acks, [GiveBack(part, DUE_MS, 1)], version)
                done |= acks | row.acked
            else:
                new = claims.resolved(row, part, [], version)
                done |= part | row.acked
            assert at.catalog.claims.replace(row, new)
            stale.append(row)
        old = chance.choice(stale)
        if old not in at.rows:
            assert not at.catalog.claims.replace(old, at.freed(old))
        found = desk.assert_covered()
        for row in desk.rows:
            found |= row.acked
        assert found == done


# --- what is due ------------------------------------------------------------------------------


def test_a_claim_is_due_from_its_deadline_on(desk: Desk, theirs: Desk) -> None:
    held = desk.claim(5, due_ms=1000)
    for now_ms, found in ((999, []), (1000, [held]), (1001, [held])):
        assert theirs.catalog.claims.due("q/default", now_ms, 10) == found
    (free,) = desk.freed(held, now_ms=2000)
    assert desk.catalog.claims.replace(held, [free])
    for now_ms, found in ((1999, []), (2000, [free]), (2001, [free])):
        assert theirs.catalog.claims.due("q/default", now_ms, 10) == found
    assert desk.finish(free)
    assert theirs.catalog.claims.due("q/default", 10**15, 10) == []


def test_what_is_due_comes_earliest_first_and_no_more_than_asked(desk: Desk) -> None:
    assert desk.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Desk(desk.catalog, pipe_id="p2")
    third, first, second = (
        desk.claim(1, due_ms=300), elsewhere.claim(1, due_ms=100), desk.claim(1, due_ms=200),
    )  # fmt: skip
    desk.claim(1, due_ms=99_999)
    due = desk.catalog.claims.due
    assert due("q/default", 1000, 10) == [first, second, third]
    assert due("q/default", 1000, 2) == [first, second]
    assert due("q/default", 200, 10) == [first, second]
    assert due("q/default", 1000, 1, without=["p2"]) == [second]
    assert due("q/default", 1000, 10, without=["p2", "p"]) == []
    assert due("unknown", 1000, 10) == []


def test_the_next_that_comes_due_is_reported(desk: Desk) -> None:
    assert desk.catalog.pipes.add(pipe_row("p2"))
    next_due = desk.catalog.claims.next_due_ms
    assert next_due("q/default") is None
    later = desk.claim(1, due_ms=500)
    assert next_due("q/default") == 500
    sooner = Desk(desk.catalog, pipe_id="p2").claim(1, due_ms=400)
    assert next_due("q/default") == 400
    assert next_due("q/default", without=["p2"]) == 500
    assert next_due("q/default", without=["p", "p2"]) is None
    assert desk.finish(sooner)
    assert next_due("q/default") == 500
    (moved,) = claims.extended(later, 900, version)
    assert desk.catalog.claims.replace(later, [moved])
    assert next_due("q/default") == 900
    assert desk.finish(moved)
    assert next_due("q/default") is None


# --- moves ------------------------------------------------------------------------------------


def test_the_first_intent_stands(desk: Desk, theirs: Desk) -> None:
    mine, yours = move_row(3, dest_seq=10), move_row(3, dest_seq=11, dest_pipe="elsewhere")
    assert desk.catalog.claims.intend(mine) == mine
    assert theirs.catalog.claims.intend(yours) == mine
    assert theirs.catalog.claims.intend(mine) == mine
    assert theirs.catalog.claims.moves("q/default", "p") == [mine]


def test_an_intent_is_replaced_only_by_a_writer_that_knows_the_current_one(
    desk: Desk, theirs: Desk
) -> None:
    first, second, third = (move_row(3, dest_seq=seq) for seq in (10, 11, 12))
    assert desk.catalog.claims.intend(first) == first
    assert desk.catalog.claims.intend(second, first) == second
    assert theirs.catalog.claims.intend(third, first) == second, "a race that was lost"
    assert theirs.catalog.claims.moves("q/default", "p") == [second]


def test_an_intent_is_written_only_by_the_holder_of_the_message(desk: Desk, theirs: Desk) -> None:
    """A mover that was stopped until its claim was another's moves nothing any more."""
    held = desk.claim(1)
    (taken,) = desk.freed(held)
    assert theirs.catalog.claims.replace(held, [taken])
    move = move_row(0, dest_seq=10)
    assert desk.catalog.claims.intend(move, held=held) is None
    assert desk.catalog.claims.moves("q/default", "p") == []
    assert theirs.catalog.claims.intend(move, held=taken) == move
    later = move_row(0, dest_seq=11)
    assert desk.catalog.claims.intend(later, move, held=held) is None
    assert theirs.catalog.claims.intend(later, move, held=taken) == later
    assert desk.catalog.claims.moves("q/default", "p") == [later]


def test_moves_are_listed_by_seq_for_each_group_and_pipe(desk: Desk) -> None:
    for seq in (9, 1, 5):
        desk.catalog.claims.intend(move_row(seq, dest_seq=seq))
    desk.catalog.claims.intend(move_row(2, 2, pipe_id="p2"))
    desk.catalog.claims.intend(move_row(2, 2, group_id="q/b"))
    assert [move.seq for move in desk.catalog.claims.moves("q/default", "p")] == [1, 5, 9]
    for seqs, found in ((range(1, 9), [1, 5]), (range(5, 6), [5]), (range(6, 9), [])):
        assert [m.seq for m in desk.catalog.claims.moves("q/default", "p", seqs)] == found


def test_a_move_is_settled_by_the_write_that_marks_its_message_done(
    desk: Desk, theirs: Desk
) -> None:
    row = desk.claim(1)
    move = desk.catalog.claims.intend(move_row(0, dest_seq=4))
    assert not move.settled
    stale = replace(row, version="stale")
    assert not theirs.catalog.claims.replace(stale, claims.as_dead(row, version), settle=[move])
    assert theirs.catalog.claims.moves("q/default", "p") == [move]
    assert theirs.catalog.claims.replace(row, claims.as_dead(row, version), settle=[move])
    assert desk.catalog.claims.moves("q/default", "p") == [replace(move, settled=True)]
    assert desk.cursor.ack.seq == 1


def test_positions_and_seqs_may_be_large(desk: Desk) -> None:
    cursor = desk.cursor
    far = Place((1 << 62) + 5, (1 << 62) + 9)
    row = claims.first(cursor, far, "me", (1 << 53), version)
    assert desk.catalog.claims.claim(cursor, far, [row])
    assert desk.finish(row)
    assert desk.cursor.ack == far


def test_the_rows_of_some_seqs_are_those_that_hold_one_of_them(desk: Desk) -> None:
    rows = [desk.claim(size) for size in (3, 5, 1, 4)]
    key = rows[0].group_id, rows[0].pipe_id
    for first in range(14):
        for last in range(first + 1, 15):
            found = desk.catalog.claims.rows(*key, range(first, last))
            assert found == [row for row in rows if row.start < last and first < row.end]
    assert desk.finish(rows[0])
    assert desk.catalog.claims.rows(*key, range(3)) == []
    assert desk.catalog.claims.rows(*key, range(2, 4)) == [rows[1]]


# --- mending ------------------------------------------------------------------------------------


def test_rows_are_mended_in_one_step_if_they_are_as_they_were_read(
    desk: Desk, theirs: Desk
) -> None:
    rows = [desk.claim(5) for _ in range(4)]
    assert desk.finish(rows[2])
    cursor, before = theirs.cursor, theirs.rows
    done = replace(rows[0], state=DONE, version=version())
    free = replace(rows[1], state=FREE, version=version())
    new = [done, free, *before[2:]]
    assert theirs.catalog.claims.mend(cursor, before, new, cursor.chain)
    assert not desk.catalog.claims.mend(cursor, before, before, cursor.chain)
    assert desk.states == [(5, 10, FREE), (10, 15, DONE), (15, 20, HELD)]
    assert desk.cursor.ack == Place(5, free.pos)
    assert desk.cursor.epoch == cursor.epoch + 1
    assert not desk.finish(rows[1])  # its holder has lost it
    assert desk.finish(rows[3])  # which was left as it was
    desk.assert_covered()


def test_a_mend_may_move_the_chain(desk: Desk, theirs: Desk) -> None:
    row = desk.claim(5)
    cursor, rows = theirs.cursor, theirs.rows
    beyond = replace(row, start=5, end=8, state=FREE, holder="", version=version())
    assert theirs.catalog.claims.mend(cursor, rows, [*rows, beyond], place(8))
    assert desk.cursor.chain == place(8)
    assert desk.claim(2).start == 8
    assert theirs.states == [(0, 5, HELD), (5, 8, FREE), (8, 10, HELD)]
    desk.assert_covered()


def test_a_mend_of_what_changed_since_has_no_effect(desk: Desk, theirs: Desk) -> None:
    rows = [desk.claim(5) for _ in range(2)]
    cursor, before = theirs.cursor, theirs.rows
    assert desk.finish(rows[0])
    for change in (cursor, theirs.cursor):
        assert not theirs.catalog.claims.mend(change, before, before, cursor.chain)
    assert theirs.states == [(5, 10, HELD)]
    assert theirs.cursor.epoch == 0


def test_claims_that_are_whole_are_not_wedged(desk: Desk, theirs: Desk) -> None:
    assert theirs.catalog.claims.wedged() == []
    rows = [desk.claim(5) for _ in range(4)]
    assert desk.finish(rows[1])
    assert desk.finish(rows[3])
    assert theirs.catalog.claims.wedged() == []
    assert theirs.catalog.claims.wedged(["id of q"]) == []
    assert theirs.catalog.claims.wedged([]) == []
