"""What is written to a partition of claims in Cassandra: the conditions that each batch bears."""

from __future__ import annotations

from dataclasses import replace

from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.claim_plans import (
    CHANGES_MAX,
    in_rounds,
    plan_claim,
    plan_fence,
    plan_replace,
)
from cassq.catalog.cassandra.partition.partition_cache import PartitionCache
from cassq.message.frames import Place
from cassq.model.claims import as_owner, reservation, reserved
from cassq.model.rows import Claim, ClaimState, Cursor

KEY = ("g", "p")
CURSOR = Cursor(*KEY, ack=Place(0, 0), chain=Place(30, 300), epoch=7, owner="me")


def a_claim(start: int, end: int, state: ClaimState = ClaimState.HELD) -> Claim:
    version = f"v{start}"
    return Claim(*KEY, start, end, 10 * start, state, due_ms=9, deliveries=1, version=version)


def known(*rows: Claim) -> PartitionCache:
    found = PartitionCache(KEY)
    found.load(CURSOR, rows, 1)
    return found


def done(row: Claim) -> list[Claim]:
    return [replace(row, state=ClaimState.DONE, version="new")]


def test_a_claim_is_conditional_on_the_chain_s_end_and_on_the_epoch() -> None:
    row = a_claim(30, 40)
    step = plan_claim(known(), CURSOR, Place(40, 400), [row], [], fresh=True)
    assert step is not None
    assert step.batch is not None
    assert ("chain_seq =", 30) in step.batch.conditions
    assert ("epoch =", 7) in step.batch.conditions
    assert ("chain_seq", 40) in step.batch.sets


def test_an_ack_of_a_reserved_message_moves_chain_and_ack_and_reserves_without_a_row() -> None:
    cursor = replace(CURSOR, ack=CURSOR.chain, owner="")
    here = PartitionCache(KEY)
    here.load(cursor, [], 1)
    mine = reservation(cursor, cursor.chain, "me/1", 99, lambda: "v", 0)
    following = reservation(cursor, Place(31, 310), "me/2", 99, lambda: "w", 0)
    step = plan_claim(here, cursor, Place(31, 310), done(mine), [], following, fresh=False)
    assert step is not None
    assert step.batch is not None
    assert dict(step.batch.conditions) == {"chain_seq =": 30, "epoch =": 7, "ack_seq =": 30}
    assert dict(step.batch.sets) == {
        "chain_seq": 31, "chain_pos": 310, "ack_seq": 31, "ack_pos": 310,
        "epoch": 8, "owner": as_owner(following),
    }  # fmt: skip
    assert step.batch.rows == [], "neither a row nor a tombstone"
    assert step.cursor is not None
    assert reserved(step.cursor) == following


def test_a_claim_behind_one_that_is_known_is_not_written() -> None:
    older = replace(CURSOR, chain=Place(20, 200))
    step = plan_claim(known(), older, Place(40, 400), [a_claim(20, 40)], [], fresh=False)
    assert step is not None
    assert (step.batch, step.results) == (None, [False])


def test_a_fence_is_conditional_on_all_that_it_relies_on() -> None:
    step = plan_fence(known(), CURSOR, "other")
    assert step.batch is not None
    assert dict(step.batch.conditions) == {"epoch =": 7, "chain_seq =": 30, "ack_seq =": 0}
    assert ("epoch", 8) in step.batch.sets


def test_an_ack_of_an_exclusive_group_is_conditional_on_the_epoch() -> None:
    first, second = a_claim(0, 10), a_claim(10, 30)
    step = plan_replace(known(first, second), [(second, done(second))], 7)
    assert step is not None
    assert step.batch is not None
    assert ("epoch =", 7) in step.batch.conditions
    assert plan_replace(known(first, second), [(second, done(second))], 6).results == [False]  # type: ignore[union-attr]


def test_a_row_that_another_has_changed_is_not_replaced() -> None:
    row = a_claim(0, 30)
    stale = replace(row, version="before")
    step = plan_replace(known(row), [(stale, done(stale))], None)
    assert step is not None
    assert (step.batch, step.results, step.sure) == (None, [False], False)


def test_every_row_that_goes_is_named_with_its_version() -> None:
    first, second = a_claim(0, 10), a_claim(10, 30)
    step = plan_replace(known(first, second), [(second, done(second))], None)
    assert step is not None
    assert step.batch is not None
    changed = [values for text, values in step.batch.rows if text == cql.CHANGE_CLAIM]
    assert [values[-2:] for values in changed] == [(10, "v10")]
    assert ("ack_seq <", 10) in step.batch.conditions, "it is not in front"


def test_done_rows_are_not_joined_over_what_lies_between_them() -> None:
    rows = [
        a_claim(0, 5),
        a_claim(5, 10, ClaimState.DONE),
        a_claim(10, 20),
        a_claim(20, 30),
    ]
    step = plan_replace(known(*rows), [(rows[3], done(rows[3]))], None)
    assert step is not None
    assert [(row.start, row.end) for row in step.put] == [(20, 30)]
    joined = plan_replace(known(*rows), [(rows[2], done(rows[2]))], None)
    assert joined is not None
    assert [(row.start, row.end) for row in joined.put] == [(5, 20)]


def test_changes_are_made_a_batch_an_epoch_and_one_at_a_time_in_each_pipe() -> None:
    here = [a_claim(seq, seq + 1) for seq in range(4)]
    there = [replace(row, pipe_id="other") for row in here[:2]]
    rows, epochs = [*here, *there], [1, 2, None, 1, 7, 7]
    rounds = list(in_rounds([(row, done(row)) for row in rows], epochs))
    assert [[(part.key[1], part.epoch, part.numbers) for part in parts] for parts in rounds] == [
        [("p", 1, [0, 3]), ("other", 7, [4, 5])],
        [("p", 2, [1])],
        [("p", None, [2])],
    ]
    assert all(
        [rows[number] for number in part.numbers] == [old for old, _ in part.changes]
        for parts in rounds
        for part in parts
    )


def test_no_batch_has_more_changes_than_a_server_takes() -> None:
    rows = [a_claim(seq, seq + 1) for seq in range(CHANGES_MAX + 1)]
    rounds = list(in_rounds([(row, done(row)) for row in rows], [None] * len(rows)))
    assert [len(part.changes) for parts in rounds for part in parts] == [CHANGES_MAX, 1]
    assert len(rounds) == 2
