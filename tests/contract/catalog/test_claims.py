"""The Catalog port: cursors, claims, acks and moves."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

import pytest

from cassq.consumer.claiming.parts import LanePart
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.rows import Claim, ClaimState
from cassq.model.scaling import owner_of
from tests.contract.rows import (
    DUE_MS,
    Consumer,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
    version,
)

MORE_SEEDS = pytest.mark.long(reason="the same with other seeds")
HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE


# --- cursors ----------------------------------------------------------------------------------


def test_a_cursor_is_made_at_0_when_it_is_first_asked_for(
    consumer: Consumer, theirs: Consumer
) -> None:
    assert consumer.catalog.claims.cursors("q/default") == []
    cursor = consumer.cursor
    assert (cursor.group_id, cursor.pipe_id) == ("q/default", "p")
    assert (cursor.ack.seq, cursor.chain.seq, cursor.epoch, cursor.owner) == (0, 0, 0, "")
    assert theirs.cursor == cursor
    assert theirs.catalog.claims.cursors("q/default") == [cursor]


def test_there_is_no_cursor_where_there_is_no_pipe_or_group(consumer: Consumer) -> None:
    make_queue(consumer.catalog, "r")
    for group, pipe_id in (("q/default", "unknown"), ("unknown", "p"), ("r/default", "p")):
        assert consumer.catalog.claims.cursor(group, pipe_id) is None
        assert consumer.catalog.claims.cursors(group) == []


def test_cursors_of_a_group_are_one_a_pipe(consumer: Consumer) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    make_group(consumer.catalog, "other")
    first, second = consumer.cursor, Consumer(consumer.catalog, pipe_id="p2").cursor
    found = consumer.catalog.claims.cursors("q/default")
    assert sorted(found, key=lambda cursor: cursor.pipe_id) == [first, second]


def test_cursors_of_some_pipes_are_those_that_are_there(consumer: Consumer) -> None:
    claims = consumer.catalog.claims
    for pipe_id in ("p2", "p3"):
        assert consumer.catalog.pipes.add(pipe_row(pipe_id))
    assert claims.find_cursor("q/default", "p") is None
    first, second = consumer.cursor, Consumer(consumer.catalog, pipe_id="p2").cursor
    assert claims.cursors("q/default", ["p2", "p3", "unknown"]) == [second]
    assert claims.cursors("q/default", []) == []
    assert claims.find_cursor("q/default", "p3") is None, "looking makes none"
    assert claims.find_cursor("q/default", "p") == first


# --- claiming ---------------------------------------------------------------------------------


@pytest.mark.parametrize("synced", [False, True])
def test_a_claim_moves_the_chain_and_leaves_its_row(
    consumer: Consumer, theirs: Consumer, synced: bool
) -> None:
    cursor = consumer.cursor
    row = claims.first(cursor, place(5), "me", DUE_MS, version)
    assert consumer.catalog.claims.claim(cursor, place(5), [row], synced=synced)
    assert theirs.rows == [row]
    assert theirs.cursor == replace(cursor, chain=place(5))


def test_of_two_claims_from_the_same_place_one_succeeds(
    consumer: Consumer, theirs: Consumer
) -> None:
    cursor = consumer.cursor
    mine = consumer.claim(5)
    late = claims.first(cursor, place(9), "you", DUE_MS, version)
    assert not theirs.catalog.claims.claim(cursor, place(9), [late])
    assert theirs.rows == [mine]
    assert theirs.cursor.chain == place(5)


def test_claims_form_a_chain(consumer: Consumer, theirs: Consumer) -> None:
    rows = [consumer.claim(5), theirs.claim(1), consumer.claim(20)]
    assert [(row.start, row.end) for row in rows] == [(0, 5), (5, 6), (6, 26)]
    assert [row.pos for row in rows[1:]] == [place(5).pos, place(6).pos]
    assert theirs.rows == rows
    theirs.assert_covered()


def test_the_claims_of_each_group_and_pipe_are_apart(consumer: Consumer) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    make_group(consumer.catalog, "b")
    consumers = [
        consumer,
        Consumer(consumer.catalog, "q/b"),
        Consumer(consumer.catalog, pipe_id="p2"),
    ]
    rows = [each.claim(number) for number, each in enumerate(consumers, 1)]
    assert [each.rows for each in consumers] == [[row] for row in rows]
    assert consumers[0].finish(rows[0])
    assert [each.cursor.ack.seq for each in consumers] == [1, 0, 0]


def test_every_field_of_a_claim_comes_back(consumer: Consumer) -> None:
    held = consumer.claim(9)
    row = Claim(
        "q/default", "p", 0, 9, 77, FREE, due_ms=1 << 50, deliveries=3, losses=2, holder="x",
        version=version(), acked=RangeSet([(1, 3), (5, 6)]), failure='{"error":"é"}',
    )  # fmt: skip
    assert consumer.catalog.claims.replace(held, [row])
    assert consumer.rows == [row]


# --- fencing ----------------------------------------------------------------------------------


def test_a_fence_raises_the_epoch_and_names_the_owner(consumer: Consumer, theirs: Consumer) -> None:
    before = consumer.cursor
    fenced = consumer.catalog.claims.fence(before, "me")
    assert fenced == replace(before, epoch=1, owner="me") == theirs.cursor
    assert theirs.catalog.claims.fence(before, "you") is None, "a race that was lost"
    again = theirs.catalog.claims.fence(theirs.cursor, "you")
    assert again == replace(before, epoch=2, owner="you") == consumer.cursor


def test_a_fenced_popper_claims_nothing(consumer: Consumer, theirs: Consumer) -> None:
    mine = consumer.catalog.claims.fence(consumer.cursor, "me")
    assert mine is not None
    assert theirs.catalog.claims.fence(theirs.cursor, "you") is not None
    row = claims.first(mine, place(5), "me", DUE_MS, version)
    assert not consumer.catalog.claims.claim(mine, place(5), [row])
    assert consumer.rows == []


def test_a_fenced_popper_s_acks_are_refused(consumer: Consumer, theirs: Consumer) -> None:
    mine = consumer.catalog.claims.fence(consumer.cursor, "me")
    assert mine is not None
    row = consumer.claim(5)
    assert theirs.catalog.claims.fence(theirs.cursor, "you") is not None
    assert not consumer.finish(row, epoch=mine.epoch)
    assert consumer.catalog.claims.replace_many(
        [(row, consumer.acked(row, 0, 5))], epochs=[mine.epoch]
    ) == [False]
    assert consumer.rows == [row]
    assert theirs.finish(row, epoch=mine.epoch + 1)
    assert theirs.cursor.ack == place(5)


def test_a_fence_needs_a_cursor(consumer: Consumer) -> None:
    assert consumer.catalog.claims.fence(replace(consumer.cursor, pipe_id="unknown"), "me") is None


# --- replacing --------------------------------------------------------------------------------


def test_of_two_replacements_of_a_claim_one_succeeds(consumer: Consumer, theirs: Consumer) -> None:
    consumer.claim(1)
    row = consumer.claim(5)
    mine, yours = consumer.freed(row), theirs.acked(row, 5, 6)
    assert consumer.catalog.claims.replace(row, mine)
    assert not theirs.catalog.claims.replace(row, yours)
    assert theirs.rows[1:] == mine
    assert not consumer.catalog.claims.replace(row, mine), "the same once more changes nothing"


def test_a_claim_in_a_pipe_that_is_gone_is_lost(consumer: Consumer, theirs: Consumer) -> None:
    held = consumer.claim(4)
    theirs.catalog.pipes.forget(theirs.catalog.queues.delete("id of q"))
    done = claims.as_dead(held, version)
    assert consumer.catalog.claims.replace_many([(held, done)]) == [False]
    assert not consumer.catalog.claims.replace(held, done)


def test_acks_accumulate_in_a_row(consumer: Consumer) -> None:
    row = consumer.claim(10)
    for acks in (RangeSet([(2, 4)]), RangeSet([(8, 9)]), RangeSet([(4, 5)])):
        (new,) = claims.resolved(row, acks, [], version)
        assert consumer.catalog.claims.replace(row, [new])
        row = new
    (found,) = consumer.rows
    assert found.acked == RangeSet([(2, 5), (8, 9)])
    assert consumer.cursor.ack.seq == 0


@pytest.mark.parametrize("in_front", [True, False])
def test_a_stale_holder_undoes_no_ack(consumer: Consumer, theirs: Consumer, in_front: bool) -> None:
    """The pass that frees expired claims may have read the row before it was acked."""
    if not in_front:
        consumer.claim(3)
    row = consumer.claim(5)
    assert consumer.finish(row)
    before = consumer.states
    assert not theirs.catalog.claims.replace(row, theirs.freed(row))
    assert theirs.catalog.claims.replace_many([(row, theirs.freed(row))]) == [False]
    assert not theirs.finish(row)
    assert theirs.states == before
    assert set(range(row.start, row.end)) <= set(theirs.assert_covered())


def test_a_stale_holder_undoes_no_ack_of_a_row_that_grew(
    consumer: Consumer, theirs: Consumer
) -> None:
    consumer.claim(3)
    first, second, third = consumer.claim(5), consumer.claim(5), consumer.claim(5)
    for row in (second, first, third):
        assert consumer.finish(row)
    for row in (first, second, third):
        assert not theirs.catalog.claims.replace(row, theirs.freed(row))
    assert theirs.states == [(0, 3, HELD), (3, 18, DONE)]


def test_a_claim_is_cut_up_and_each_piece_replaced_for_itself(
    consumer: Consumer, theirs: Consumer
) -> None:
    row = replace(consumer.claim(40), losses=1)
    pieces = consumer.freed(row)
    assert len(pieces) > 10
    assert consumer.catalog.claims.replace(row, pieces)
    until = Place(pieces[0].start + 2, pieces[0].pos)
    mine, rows = claims.taken(pieces[0], until, "me", DUE_MS, version)
    assert theirs.catalog.claims.replace(pieces[0], rows)
    assert consumer.rows == [*rows, *pieces[1:]]
    assert consumer.finish(mine)
    assert consumer.cursor.ack.seq == 2
    assert consumer.assert_covered() == RangeSet([(0, 2)])


def test_rows_that_are_given_back_in_part_cover_what_they_covered(consumer: Consumer) -> None:
    row = consumer.claim(10)
    give = ReturnedSeqs(RangeSet([(2, 5)]), DUE_MS + 9, 1, '{"error":"no"}')
    pieces = claims.resolved(row, RangeSet([(0, 2), (7, 8)]), [give], version)
    assert consumer.catalog.claims.replace(row, pieces)
    assert consumer.states == [(2, 5, FREE), (5, 10, HELD)]
    assert consumer.cursor.ack.seq == 2
    assert consumer.rows[0].failure == '{"error":"no"}'
    consumer.assert_covered()


def test_pipes_are_fenced_together_and_each_for_itself(
    consumer: Consumer, theirs: Consumer
) -> None:
    pipe_ids = ["p", "p2", "p3"]
    for pipe_id in pipe_ids[1:]:
        assert consumer.catalog.pipes.add(pipe_row(pipe_id))
    before = consumer.catalog.claims.cursors_in(consumer.group, pipe_ids)
    known = [cursor for cursor in before if cursor is not None]
    assert theirs.catalog.claims.fence(known[1], "you") is not None
    mine, lost, other = consumer.catalog.claims.fence_all(known, "me")
    assert mine == replace(known[0], epoch=known[0].epoch + 1, owner="me")
    assert other == replace(known[2], epoch=known[2].epoch + 1, owner="me")
    assert lost is None, "a race that was lost"
    assert Consumer(theirs.catalog, pipe_id="p2").cursor.owner == "you"
    assert consumer.catalog.claims.fence_all([], "me") == []


def test_the_rows_of_several_pipes_are_those_of_each(consumer: Consumer) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), consumer.claim(5)], [elsewhere.claim(3)]
    found = consumer.catalog.claims.rows_in(consumer.group, ["p2", "p", "none"])
    assert found == [rows[1], rows[0], []]


def test_each_of_many_claims_is_replaced_only_in_its_own_epoch(
    consumer: Consumer, theirs: Consumer
) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    for _ in range(2):
        assert elsewhere.catalog.claims.fence(elsewhere.cursor, "me") is not None
    epochs = [consumer.cursor.epoch, elsewhere.cursor.epoch]
    rows = [consumer.claim(5), elsewhere.claim(5), consumer.claim(5), elsewhere.claim(5)]
    changes = [(row, consumer.acked(row, row.start, row.end)) for row in rows]
    assert theirs.catalog.claims.replace_many(changes, epochs=[*epochs, -1, epochs[0]]) == [
        *(True, True, False, False)
    ]
    assert consumer.states == elsewhere.states == [(5, 10, HELD)]
    assert consumer.catalog.claims.replace_many(changes[2:], epochs=epochs) == [True, True]
    assert consumer.cursor.ack == elsewhere.cursor.ack == place(10)


def test_messages_with_deadlines_of_their_own_are_replaced_only_in_their_epoch(
    consumer: Consumer, theirs: Consumer
) -> None:
    """Some of a claim get one, by a receipt that knows no epoch; then the popper of the lane cuts
    up, or takes, what is there, as long as nobody raised the epoch."""
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), elsewhere.claim(5)]
    seqs = RangeSet([(1, 2), (3, 4)])
    changes = [(row, claims.dated(row, seqs, 9_000, version)) for row in rows]
    assert theirs.catalog.claims.replace_many(changes, epochs=[None, None]) == [True, True]
    for each in (consumer, elsewhere):
        found = {row.start: row for row in each.rows}
        assert [start for start, row in found.items() if claims.is_dated(row)] == [1, 3]
        assert {row.due_ms for row in found.values() if claims.is_dated(row)} == {9_000}
        assert {row.due_ms for row in found.values() if not claims.is_dated(row)} == {DUE_MS}
        each.assert_covered()
    assert consumer.catalog.claims.replace_many(changes) == [False, False], "they were cut up"
    mine, lost = consumer.cursor.epoch, elsewhere.cursor.epoch
    assert theirs.catalog.claims.fence(elsewhere.cursor, "you") is not None
    own = [next(row for row in each.rows if row.start == 3) for each in (consumer, elsewhere)]
    freed = [(row, each.freed(row)) for row, each in zip(own, (consumer, elsewhere), strict=True)]
    assert consumer.catalog.claims.replace_many(freed, epochs=[mine, lost]) == [True, False]
    states = [(0, 1, HELD), (1, 2, HELD), (2, 3, HELD), (3, 4, FREE), (4, 5, HELD)]
    assert consumer.states == states
    assert elsewhere.states == [(start, end, HELD) for start, end, _ in states]
    acked = [(own[1], elsewhere.acked(own[1], 3, 4))]
    assert theirs.catalog.claims.replace_many(acked, epochs=[None]) == [True], "by its receipt"
    assert elsewhere.assert_covered() == RangeSet([(3, 4)])


def test_many_claims_are_replaced_at_once_and_each_answers_for_itself(
    consumer: Consumer, theirs: Consumer
) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), consumer.claim(5), consumer.claim(5), elsewhere.claim(5)]
    assert theirs.catalog.claims.replace(rows[1], theirs.freed(rows[1]))
    changes = [(row, consumer.acked(row, row.start, row.end)) for row in rows]
    assert consumer.catalog.claims.replace_many(changes) == [True, False, True, True]
    assert consumer.states == [(5, 10, FREE), (10, 15, DONE)]
    assert consumer.cursor.ack.seq == 5
    assert elsewhere.cursor.ack.seq == 5
    assert consumer.catalog.claims.replace_many(changes) == [False] * 4
    assert consumer.catalog.claims.replace_many([]) == []
    assert consumer.states == [(5, 10, FREE), (10, 15, DONE)]


# --- the ack offset ---------------------------------------------------------------------------


def test_the_ack_offset_moves_over_what_is_done_in_front(
    consumer: Consumer, theirs: Consumer
) -> None:
    rows = [consumer.claim(5), consumer.claim(5), consumer.claim(5)]
    assert consumer.finish(rows[1])
    assert consumer.cursor.ack.seq == 0, "the first is not done"
    assert consumer.states == [(0, 5, HELD), (5, 10, DONE), (10, 15, HELD)]
    assert consumer.finish(rows[0])
    assert theirs.cursor.ack == place(10), "to where the first open claim stands"
    assert theirs.states == [(10, 15, HELD)]
    assert consumer.finish(rows[2])
    assert theirs.cursor.ack == theirs.cursor.chain == place(15)
    assert theirs.rows == []


@pytest.mark.parametrize(
    "order", [(1, 2, 3), (3, 2, 1), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2)]
)
def test_done_rows_merge_in_whatever_order_they_come(
    consumer: Consumer, order: tuple[int, ...]
) -> None:
    rows = [consumer.claim(5) for _ in range(5)]
    for number in order:
        assert consumer.finish(rows[number])
        consumer.assert_covered()
    assert consumer.states == [(0, 5, HELD), (5, 20, DONE), (20, 25, HELD)]
    assert consumer.finish(rows[0])
    assert consumer.cursor.ack == place(20)
    assert consumer.states == [(20, 25, HELD)]


def test_done_pieces_of_a_claim_in_the_middle_stay_until_the_front_is_done(
    consumer: Consumer,
) -> None:
    row = consumer.claim(9)
    acked = replace(row, acked=RangeSet([(3, 6)]), version=version())
    assert consumer.catalog.claims.replace(row, [acked])
    gives = [ReturnedSeqs(RangeSet([(0, 3)]), 1, 1), ReturnedSeqs(RangeSet([(6, 9)]), 2, 1)]
    assert consumer.catalog.claims.replace(acked, claims.resolved(acked, EMPTY, gives, version))
    assert consumer.states == [(0, 3, FREE), (3, 6, DONE), (6, 9, FREE)]
    first = consumer.rows[0]
    assert consumer.catalog.claims.replace(first, claims.as_dead(first, version))
    assert consumer.states == [(6, 9, FREE)]
    assert consumer.cursor.ack.seq == 6


@pytest.mark.parametrize(
    "seed",
    [0, 1, *(pytest.param(seed, marks=MORE_SEEDS) for seed in range(2, 6))],
)
def test_whatever_poppers_do_the_rows_cover_and_no_ack_is_lost(
    consumer: Consumer, theirs: Consumer, seed: int
) -> None:
    """Random moves of two poppers; after each, the rows are as they must be."""
    chance = random.Random(seed)
    done = EMPTY
    stale: list[Claim] = []
    for _ in range(150):
        at = chance.choice([consumer, theirs])
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
                new = claims.resolved(row, acks, [ReturnedSeqs(part, DUE_MS, 1)], version)
                done |= acks | row.acked
            else:
                new = claims.resolved(row, part, [], version)
                done |= part | row.acked
            assert at.catalog.claims.replace(row, new)
            stale.append(row)
        old = chance.choice(stale)
        if old not in at.rows:
            assert not at.catalog.claims.replace(old, at.freed(old))
        found = consumer.assert_covered()
        for row in consumer.rows:
            found |= row.acked
        assert found == done


# --- what is due ------------------------------------------------------------------------------


def test_a_claim_is_due_from_its_deadline_on(consumer: Consumer, theirs: Consumer) -> None:
    held = consumer.claim(5, due_ms=1000)
    for now_ms, found in ((999, []), (1000, [held]), (1001, [held])):
        assert theirs.catalog.claims.due("q/default", now_ms, 10) == found
    (free,) = consumer.freed(held, now_ms=2000)
    assert consumer.catalog.claims.replace(held, [free])
    for now_ms, found in ((1999, []), (2000, [free]), (2001, [free])):
        assert theirs.catalog.claims.due("q/default", now_ms, 10) == found
    assert consumer.finish(free)
    assert theirs.catalog.claims.due("q/default", 10**15, 10) == []


def test_what_is_due_comes_earliest_first_and_no_more_than_asked(consumer: Consumer) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    third = consumer.claim(1, due_ms=300)
    first = elsewhere.claim(1, due_ms=100)
    second = consumer.claim(1, due_ms=200)
    consumer.claim(1, due_ms=99_999)
    due = consumer.catalog.claims.due
    assert due("q/default", 1000, 10) == [first, second, third]
    assert due("q/default", 1000, 2) == [first, second]
    assert due("q/default", 200, 10) == [first, second]
    assert due("q/default", 1000, 1, without=["p2"]) == [second]
    assert due("q/default", 1000, 10, without=["p2", "p"]) == []
    assert due("unknown", 1000, 10) == []


def test_what_is_due_in_a_key_lane_is_that_of_its_pipes(consumer: Consumer) -> None:
    """However much is due in others, and in whatever order their pipes come to be known."""
    catalog, lanes = consumer.catalog, 3
    pipe_ids = [f"lane{number % lanes}-{number}" for number in range(4 * lanes)]
    rows: dict[str, Claim] = {}
    for number, pipe_id in enumerate(pipe_ids):
        owner = owner_of("owner", number % lanes)
        assert catalog.pipes.add(pipe_row(pipe_id, owner=owner))
        rows[pipe_id] = Consumer(catalog, pipe_id=pipe_id).claim(1, due_ms=100 + number)
    parts = [LanePart(catalog, "me", number, lanes) for number in range(lanes)]
    for part in parts:
        mine = [rows[pipe_id] for pipe_id in pipe_ids if pipe_id.startswith(f"lane{part.number}")]
        assert due_of(part, 1000, 10) == mine
        assert due_of(part, 1000, 2) == mine[:2]
        assert due_of(part, mine[1].due_ms, 10) == mine[:2]
        assert due_of(part, 1000, 1, {mine[0].pipe_id}) == mine[1:2]
        assert due_of(part, 99, 10) == []
    assert due_of(LanePart(catalog, "me", 0, 1), 1000, 99) == list(rows.values())
    late = Consumer(catalog, pipe_id="lane0-0").claim(1, due_ms=1)
    assert due_of(parts[0], 1000, 1) == [late]
    assert due_of(parts[1], 1, 9) == []


def due_of(part: LanePart, now_ms: int, limit: int, without: Collection[str] = ()) -> list[Claim]:
    """The rows that are due, once it is seen that they are by pipe."""
    found = part.due("q/default", now_ms, limit, set(without))
    assert all(row.pipe_id == pipe_id for pipe_id, rows in found.items() for row in rows)
    return [row for rows in found.values() for row in rows]


def test_the_next_that_comes_due_is_reported(consumer: Consumer) -> None:
    assert consumer.catalog.pipes.add(pipe_row("p2"))
    next_due = consumer.catalog.claims.next_due_ms
    assert next_due("q/default") is None
    later = consumer.claim(1, due_ms=500)
    assert next_due("q/default") == 500
    sooner = Consumer(consumer.catalog, pipe_id="p2").claim(1, due_ms=400)
    assert next_due("q/default") == 400
    assert next_due("q/default", without=["p2"]) == 500
    assert next_due("q/default", without=["p", "p2"]) is None
    assert consumer.finish(sooner)
    assert next_due("q/default") == 500
    (moved,) = claims.extended(later, 900, version)
    assert consumer.catalog.claims.replace(later, [moved])
    assert next_due("q/default") == 900
    assert consumer.finish(moved)
    assert next_due("q/default") is None


# --- moves ------------------------------------------------------------------------------------


def test_the_first_intent_stands(consumer: Consumer, theirs: Consumer) -> None:
    mine, yours = move_row(3, dest_seq=10), move_row(3, dest_seq=11, dest_pipe="elsewhere")
    assert consumer.catalog.claims.intend(mine) == mine
    assert theirs.catalog.claims.intend(yours) == mine
    assert theirs.catalog.claims.intend(mine) == mine
    assert theirs.catalog.claims.moves("q/default", "p") == [mine]


def test_an_intent_is_replaced_only_by_a_writer_that_knows_the_current_one(
    consumer: Consumer, theirs: Consumer
) -> None:
    first, second, third = (move_row(3, dest_seq=seq) for seq in (10, 11, 12))
    assert consumer.catalog.claims.intend(first) == first
    assert consumer.catalog.claims.intend(second, first) == second
    assert theirs.catalog.claims.intend(third, first) == second, "a race that was lost"
    assert theirs.catalog.claims.moves("q/default", "p") == [second]


def test_an_intent_is_written_only_by_the_holder_of_the_message(
    consumer: Consumer, theirs: Consumer
) -> None:
    """A mover that was stopped until its claim was another's moves nothing any more."""
    held = consumer.claim(1)
    (taken,) = consumer.freed(held)
    assert theirs.catalog.claims.replace(held, [taken])
    move = move_row(0, dest_seq=10)
    assert consumer.catalog.claims.intend(move, held=held) is None
    assert consumer.catalog.claims.moves("q/default", "p") == []
    assert theirs.catalog.claims.intend(move, held=taken) == move
    later = move_row(0, dest_seq=11)
    assert consumer.catalog.claims.intend(later, move, held=held) is None
    assert theirs.catalog.claims.intend(later, move, held=taken) == later
    assert consumer.catalog.claims.moves("q/default", "p") == [later]


def test_moves_are_listed_by_seq_for_each_group_and_pipe(consumer: Consumer) -> None:
    for seq in (9, 1, 5):
        consumer.catalog.claims.intend(move_row(seq, dest_seq=seq))
    consumer.catalog.claims.intend(move_row(2, 2, pipe_id="p2"))
    consumer.catalog.claims.intend(move_row(2, 2, group_id="q/b"))
    assert [move.seq for move in consumer.catalog.claims.moves("q/default", "p")] == [1, 5, 9]
    for seqs, found in ((range(1, 9), [1, 5]), (range(5, 6), [5]), (range(6, 9), [])):
        assert [m.seq for m in consumer.catalog.claims.moves("q/default", "p", seqs)] == found


def test_a_move_is_settled_by_the_write_that_marks_its_message_done(
    consumer: Consumer, theirs: Consumer
) -> None:
    row = consumer.claim(1)
    move = consumer.catalog.claims.intend(move_row(0, dest_seq=4))
    assert not move.settled
    stale = replace(row, version="stale")
    assert not theirs.catalog.claims.replace(stale, claims.as_dead(row, version), settle=[move])
    assert theirs.catalog.claims.moves("q/default", "p") == [move]
    assert theirs.catalog.claims.replace(row, claims.as_dead(row, version), settle=[move])
    assert consumer.catalog.claims.moves("q/default", "p") == [replace(move, settled=True)]
    assert consumer.cursor.ack.seq == 1


def test_positions_and_seqs_may_be_large(consumer: Consumer) -> None:
    cursor = consumer.cursor
    far = Place((1 << 62) + 5, (1 << 62) + 9)
    row = claims.first(cursor, far, "me", (1 << 53), version)
    assert consumer.catalog.claims.claim(cursor, far, [row])
    assert consumer.finish(row)
    assert consumer.cursor.ack == far


def test_the_rows_of_some_seqs_are_those_that_hold_one_of_them(consumer: Consumer) -> None:
    rows = [consumer.claim(size) for size in (3, 5, 1, 4)]
    key = rows[0].group_id, rows[0].pipe_id
    for first in range(14):
        for last in range(first + 1, 15):
            found = consumer.catalog.claims.rows(*key, range(first, last))
            assert found == [row for row in rows if row.start < last and first < row.end]
    assert consumer.finish(rows[0])
    assert consumer.catalog.claims.rows(*key, range(3)) == []
    assert consumer.catalog.claims.rows(*key, range(2, 4)) == [rows[1]]


# --- mending ------------------------------------------------------------------------------------


def test_rows_are_mended_in_one_step_if_they_are_as_they_were_read(
    consumer: Consumer, theirs: Consumer
) -> None:
    rows = [consumer.claim(5) for _ in range(4)]
    assert consumer.finish(rows[2])
    cursor, before = theirs.cursor, theirs.rows
    done = replace(rows[0], state=DONE, version=version())
    free = replace(rows[1], state=FREE, version=version())
    new = [done, free, *before[2:]]
    assert theirs.catalog.claims.mend(cursor, before, new, cursor.chain)
    assert not consumer.catalog.claims.mend(cursor, before, before, cursor.chain)
    assert consumer.states == [(5, 10, FREE), (10, 15, DONE), (15, 20, HELD)]
    assert consumer.cursor.ack == Place(5, free.pos)
    assert consumer.cursor.epoch == cursor.epoch + 1
    assert not consumer.finish(rows[1])  # its holder has lost it
    assert consumer.finish(rows[3])  # which was left as it was
    consumer.assert_covered()


def test_a_mend_may_move_the_chain(consumer: Consumer, theirs: Consumer) -> None:
    row = consumer.claim(5)
    cursor, rows = theirs.cursor, theirs.rows
    beyond = replace(row, start=5, end=8, state=FREE, holder="", version=version())
    assert theirs.catalog.claims.mend(cursor, rows, [*rows, beyond], place(8))
    assert consumer.cursor.chain == place(8)
    assert consumer.claim(2).start == 8
    assert theirs.states == [(0, 5, HELD), (5, 8, FREE), (8, 10, HELD)]
    consumer.assert_covered()


def test_a_mend_of_what_changed_since_has_no_effect(consumer: Consumer, theirs: Consumer) -> None:
    rows = [consumer.claim(5) for _ in range(2)]
    cursor, before = theirs.cursor, theirs.rows
    assert consumer.finish(rows[0])
    for change in (cursor, theirs.cursor):
        assert not theirs.catalog.claims.mend(change, before, before, cursor.chain)
    assert theirs.states == [(5, 10, HELD)]
    assert theirs.cursor.epoch == 0


def test_claims_that_are_whole_are_not_wedged(consumer: Consumer, theirs: Consumer) -> None:
    assert theirs.catalog.claims.wedged() == []
    rows = [consumer.claim(5) for _ in range(4)]
    assert consumer.finish(rows[1])
    assert consumer.finish(rows[3])
    assert theirs.catalog.claims.wedged() == []
    assert theirs.catalog.claims.wedged(["id of q"]) == []
    assert theirs.catalog.claims.wedged([]) == []
