"""The Catalog port: intents of many, what withdraws them, and pipes that change their queue."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.errors import OwnershipError
from cassq.lifecycle.moves import Intents
from cassq.model import claims
from cassq.model.rows import ClaimState, PipeState, Reason, Removed, Retired, RetiredSum
from tests.contract.rows import (
    DUE_MS,
    Consumer,
    groups_version,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
    version,
)

LETTERS = "q~default~dead"


@pytest.fixture
def letters(consumer: Consumer) -> Consumer:
    """The dead letters of `q`: a sealed pipe of ten."""
    make_queue(consumer.catalog, LETTERS)
    row = pipe_row("dead", LETTERS, state=PipeState.SEALED, end=place(10))
    assert consumer.catalog.pipes.add(row)
    return Consumer(consumer.catalog, f"{LETTERS}/default", "dead")


# --- intents ----------------------------------------------------------------------------------


def test_many_intents_are_written_only_by_the_holder_of_their_messages(
    consumer: Consumer, other: Catalog
) -> None:
    held = consumer.claim(5)
    moves = [move_row(1, 10), move_row(3, 11)]
    assert consumer.catalog.claims.intend_many(moves, held)
    assert other.claims.moves("q/default", "p") == moves


def test_an_intent_takes_the_place_of_an_earlier_one(consumer: Consumer) -> None:
    held = consumer.claim(5)
    assert consumer.catalog.claims.intend_many([move_row(1, 10), move_row(3, 11)], held)
    again = move_row(3, 0, dest_pipe="another")
    assert consumer.catalog.claims.intend_many([again], held)
    assert consumer.catalog.claims.moves("q/default", "p") == [move_row(1, 10), again]


def test_a_mover_whose_claim_was_lost_writes_no_intent(consumer: Consumer, other: Catalog) -> None:
    held = consumer.claim(5)
    assert other.claims.replace(held, consumer.freed(held))
    assert not consumer.catalog.claims.intend_many([move_row(1, 10)], held)
    assert consumer.catalog.claims.moves("q/default", "p") == []


def test_a_mover_that_was_taken_for_dead_is_stopped_before_it_pushes(
    consumer: Consumer, other: Catalog
) -> None:
    held = consumer.claim(5)
    intents = Intents(consumer.catalog, held, [1, 3], Reason.MERGED)
    intents("dead", 10, range(1))
    assert other.claims.replace(held, consumer.freed(held))
    with pytest.raises(OwnershipError):
        intents("dead", 11, range(1, 2))
    assert [move.seq for move in consumer.catalog.claims.moves("q/default", "p")] == [1]


def test_intents_are_withdrawn_by_the_write_that_ends_the_claim(consumer: Consumer) -> None:
    held = consumer.claim(5)
    moves = [move_row(1, 10), move_row(3, 11)]
    assert consumer.catalog.claims.intend_many(moves, held)
    assert not consumer.catalog.claims.replace(replace(held, version="x"), [held], withdraw=moves)
    assert consumer.catalog.claims.moves("q/default", "p") == moves
    removed = [Removed("q/default", "p", 1, 2, Reason.MERGED, 7)]
    rows = consumer.acked(held, 1, 2)
    assert consumer.catalog.claims.replace(held, rows, withdraw=moves, removed=removed)
    assert consumer.catalog.claims.moves("q/default", "p") == []
    assert consumer.catalog.claims.removed("q/default", "p") == removed


def test_the_moves_and_removals_of_several_pipes_are_those_of_each(consumer: Consumer) -> None:
    held, claims = consumer.claim(5), consumer.catalog.claims
    removed = [Removed("q/default", "p", 1, 2, Reason.MERGED, 7)]
    assert claims.replace(held, consumer.acked(held, 1, 2), removed=removed)
    (held,) = consumer.rows
    moves = [move_row(3, 10), move_row(4, 11)]
    assert claims.intend_many(moves, held)
    assert claims.moves_in("q/default", ["none", "p"]) == [[], moves]
    assert claims.removed_in("q/default", ["p", "none"]) == [removed, []]


def test_what_is_settled_is_not_withdrawn(consumer: Consumer) -> None:
    held = consumer.claim(1)
    move = move_row(0, 10)
    assert consumer.catalog.claims.intend_many([move], held)
    settled = replace(move, settled=True)
    done = claims.as_dead(held, version)
    assert consumer.catalog.claims.replace(held, done, settle=[move], withdraw=[move])
    assert consumer.catalog.claims.moves("q/default", "p") == [settled]


# --- pipes that change their queue --------------------------------------------------------------


def test_a_sealed_pipe_goes_to_one_group_of_another_queue(
    consumer: Consumer, letters: Consumer, other: Catalog
) -> None:
    make_group(consumer.catalog, "archive")
    assert letters.catalog.pipes.repoint("dead", "id of q", "q/default")
    assert other.pipes.live(f"id of {LETTERS}") == []
    row = other.pipes.by_id("dead")
    assert row is not None
    assert (row.queue_id, row.group_id, row.end) == ("id of q", "q/default", place(10))
    assert other.pipes.retired(f"id of {LETTERS}") == [
        Retired("dead", f"{LETTERS}/default", f"id of {LETTERS}", 0, 10, 0, merged=10)
    ]
    assert set(other.pipes.retired_sums(f"id of {LETTERS}")) == {
        RetiredSum("", 1, 0, 10, 0),
        RetiredSum(f"{LETTERS}/default", 1, 0, 10, 0, merged=10),
    }
    group, archive = {g.name: g for g in other.queues.groups("id of q")}.values()
    if group.name != "default":
        group, archive = archive, group
    assert [p.id for p in other.pipes.unclaimed(group, 9)] == ["p", "dead"]
    assert [p.id for p in other.pipes.unclaimed(archive, 9)] == ["p"]


def test_a_pipe_that_goes_is_found_behind_all_that_the_group_has_done(
    consumer: Consumer, letters: Consumer
) -> None:
    catalog = consumer.catalog
    for number in range(100):
        done = pipe_row(f"done{number}", state=PipeState.SEALED, end=place(0))
        assert catalog.pipes.add(done)
    assert catalog.pipes.add(pipe_row("last"))
    (group,) = catalog.queues.groups("id of q")
    assert catalog.pipes.record_end("p", place(0))
    assert [p.id for p in catalog.pipes.unclaimed(group, 9)] == ["last"]
    assert catalog.pipes.repoint("dead", "id of q", group.id)
    assert [p.id for p in catalog.pipes.unclaimed(group, 9)] == ["last", "dead"]


def test_a_pipe_that_goes_is_as_young_as_if_it_were_made_now(
    consumer: Consumer, letters: Consumer, other: Catalog
) -> None:
    before = other.pipes.by_id("dead")
    assert before is not None
    now_ms = consumer.catalog.now_ms()
    assert before.created_ms < now_ms
    assert letters.catalog.pipes.repoint("dead", "id of q", "q/default")
    after = other.pipes.by_id("dead")
    assert after is not None
    assert now_ms <= after.created_ms <= consumer.catalog.now_ms()


def test_both_queues_see_that_their_pipes_changed(consumer: Consumer, letters: Consumer) -> None:
    before = [groups_version(consumer.catalog, name) for name in ("q", LETTERS)]
    assert consumer.catalog.pipes.repoint("dead", "id of q", "q/default")
    after = [groups_version(consumer.catalog, name) for name in ("q", LETTERS)]
    assert all(new > old for new, old in zip(after, before, strict=True))


def test_a_pipe_that_anybody_claimed_from_stays(consumer: Consumer, letters: Consumer) -> None:
    letters.claim(1)
    assert not consumer.catalog.pipes.repoint("dead", "id of q", "q/default")
    assert [p.id for p in consumer.catalog.pipes.live(f"id of {LETTERS}")] == ["dead"]


def test_claiming_from_a_pipe_and_repointing_it_exclude_each_other(
    consumer: Consumer, letters: Consumer, other: Catalog
) -> None:
    cursor = letters.cursor
    assert other.pipes.repoint("dead", "id of q", "q/default")
    row = claims.first(cursor, place(5), "me", DUE_MS, version)
    assert not letters.catalog.claims.claim(cursor, place(5), [row])
    assert letters.catalog.claims.cursor(letters.group, "dead") is None


def test_a_pipe_that_a_message_may_be_moving_into_stays(
    consumer: Consumer, letters: Consumer
) -> None:
    held = consumer.claim(1)
    assert consumer.catalog.claims.intend_many([move_row(0, 9)], held)
    assert not consumer.catalog.pipes.repoint("dead", "id of q", "q/default")
    done = claims.as_dead(held, version)
    assert consumer.catalog.claims.replace(held, done, settle=[move_row(0, 9)])
    assert consumer.catalog.pipes.repoint("dead", "id of q", "q/default")


@pytest.mark.parametrize(
    ("pipe_id", "queue_id", "group_id"),
    [
        ("unknown", "id of q", "q/default"),
        ("dead", "unknown", "q/default"),
        ("dead", "id of q", "unknown"),
        ("dead", f"id of {LETTERS}", f"{LETTERS}/default"),
        ("p", f"id of {LETTERS}", f"{LETTERS}/default"),
    ],
)
def test_what_cannot_be_given_stays(
    consumer: Consumer, letters: Consumer, pipe_id: str, queue_id: str, group_id: str
) -> None:
    assert not consumer.catalog.pipes.repoint(pipe_id, queue_id, group_id)
    assert [p.id for p in consumer.catalog.pipes.live("id of q")] == ["p"]
    assert [p.id for p in consumer.catalog.pipes.live(f"id of {LETTERS}")] == ["dead"]


def test_a_pipe_given_away_is_read_by_its_new_group_and_retired(
    consumer: Consumer, letters: Consumer, other: Catalog
) -> None:
    assert letters.catalog.pipes.repoint("dead", "id of q", "q/default")
    theirs = Consumer(other, "q/default", "dead")
    row = theirs.claim(10)
    assert theirs.finish(row)
    assert theirs.states == []
    assert ClaimState.DONE not in [r.state for r in theirs.rows]
    assert other.pipes.retire(["dead"], groups_version(other))
