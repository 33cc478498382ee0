"""The Catalog port: pipes and claims with priorities."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.rows import ClaimState
from tests.contract.rows import (
    Consumer,
    group_row,
    make_group,
    make_queue,
    pipe_row,
    place,
    queue_row,
    version,
)

DEFAULT = group_row()
NOW_MS = 10_000


@pytest.fixture
def queue(catalog: Catalog) -> Catalog:
    make_queue(catalog)
    return catalog


def add(catalog: Catalog, **priorities: int) -> None:
    """Pipes by name, each with its priority."""
    for pipe_id, priority in priorities.items():
        assert catalog.pipes.add(pipe_row(pipe_id, priority=priority))


def free(catalog: Catalog, pipe_id: str, *dues_ms: int) -> None:
    """A free row of one message for each of these times."""
    consumer = Consumer(catalog, pipe_id=pipe_id)
    pipe = catalog.pipes.by_id(pipe_id)
    assert pipe is not None
    cursor, seq = consumer.cursor, consumer.cursor.chain.seq
    runs = [(seq + n, seq + n + 1, 4096, due_ms) for n, due_ms in enumerate(dues_ms)]
    rows = claims.scheduled(cursor, runs, version, pipe.priority)
    assert catalog.claims.claim(cursor, place(seq + len(dues_ms)), rows)


def unclaimed(catalog: Catalog, limit: int = 100) -> list[str]:
    return [row.id for row in catalog.pipes.unclaimed(DEFAULT, limit)]


def due(
    catalog: Catalog, limit: int = 100, *, upward: bool = False, without: tuple[str, ...] = ()
) -> list[tuple[str, int]]:
    rows = catalog.claims.due(DEFAULT.id, NOW_MS, limit, upward=upward, without=without)
    return [(row.pipe_id, row.start) for row in rows]


def test_a_pipe_keeps_its_priority(queue: Catalog, other: Catalog) -> None:
    add(queue, p0=0, p7=7)
    assert queue.pipes.record_end("p7", place(3)) == place(3)
    for catalog in (queue, other):
        found = {row.id: row.priority for row in catalog.pipes.live("id of q")}
        assert found == {"p0": 0, "p7": 7}
    assert [row.priority for row in other.pipes.unsealed(["id of q"])] == [0]


def test_a_pipe_given_to_a_group_keeps_its_priority(queue: Catalog) -> None:
    assert queue.queues.create(queue_row("dead"), group_row("default", "dead"))
    assert queue.pipes.add(pipe_row("p", "dead", priority=4))
    assert queue.pipes.record_end("p", place(2)) == place(2)
    assert queue.pipes.repoint("p", "id of q", DEFAULT.id)
    (row,) = queue.pipes.unclaimed(DEFAULT, 10)
    assert (row.id, row.priority, row.group_id) == ("p", 4, DEFAULT.id)


def test_the_greatest_priority_is_listed_first_and_then_the_oldest(queue: Catalog) -> None:
    add(queue, a=0, b=3, c=9, d=0, e=9, f=3)
    assert unclaimed(queue) == ["c", "e", "b", "f", "a", "d"]


def test_of_each_priority_as_many_as_the_limit_are_listed(queue: Catalog) -> None:
    add(queue, a=0, b=0, c=0, d=5, e=5, f=5, g=9)
    assert unclaimed(queue, 2) == ["g", "d", "e", "a", "b"]
    assert unclaimed(queue, 1) == ["g", "d", "a"]


def test_a_pipe_claimed_to_its_end_hides_no_other(queue: Catalog) -> None:
    add(queue, a=0, b=5, c=5)
    assert queue.pipes.record_end("b", place(2)) == place(2)
    Consumer(queue, pipe_id="b").claim(2)
    assert unclaimed(queue, 1) == ["c", "a"]


def test_an_old_pipe_stays_listed_behind_many_urgent_ones(queue: Catalog) -> None:
    """However often they are listed, and however many are claimed to their ends."""
    add(queue, old=0)
    for n in range(70):
        add(queue, **{f"p{n}": 5})
        assert queue.pipes.record_end(f"p{n}", place(1)) == place(1)
        Consumer(queue, pipe_id=f"p{n}").claim(1)
    add(queue, last=5)
    for _ in range(2):
        assert unclaimed(queue) == ["last", "old"]


def test_pipes_of_priorities_count_as_added_here(queue: Catalog, other: Catalog) -> None:
    before = queue.pipes.urgent_added, other.pipes.urgent_added
    add(queue, a=0, b=1)
    assert (queue.pipes.urgent_added, other.pipes.urgent_added) == (before[0] + 1, before[1])


def test_the_newest_pipe_of_a_priority_is_known_or_not_looked_for(queue: Catalog) -> None:
    assert queue.pipes.newest_urgent("id of q") == 0
    add(queue, a=0, b=9, c=1, d=0)
    row = queue.pipes.by_id("c")
    assert row is not None
    assert queue.pipes.newest_urgent("id of q") in (row.ordinal, 0)
    assert queue.pipes.newest_urgent("another") == 0


def test_what_is_due_comes_by_priority_and_then_by_time(queue: Catalog) -> None:
    add(queue, low=0, mid=4, top=9)
    free(queue, "low", 1, 5)
    free(queue, "top", 4, 20_000)
    free(queue, "mid", 3, 2)
    assert due(queue) == [("top", 0), ("mid", 1), ("mid", 0), ("low", 0), ("low", 1)]
    assert due(queue, upward=True) == [
        ("low", 0), ("low", 1), ("mid", 1), ("mid", 0), ("top", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_leaves_out_what_comes_last(queue: Catalog, limit: int) -> None:
    add(queue, low=0, mid=4, top=9)
    free(queue, "low", 1, 1, 1, 1)
    free(queue, "mid", 2, 2, 2, 2)
    free(queue, "top", 3)
    in_order = [("top", 0), ("mid", 0), ("mid", 1)]
    assert due(queue, limit) == in_order[:limit]
    assert due(queue, limit, upward=True) == [("low", 0), ("low", 1), ("low", 2)][:limit]
    assert due(queue, limit, without=("top",)) == [("mid", 0), ("mid", 1), ("mid", 2)][:limit]


def test_a_claim_keeps_its_priority_however_it_is_written_again(queue: Catalog) -> None:
    add(queue, p=6)
    consumer = Consumer(queue)
    cursor = consumer.cursor
    row = claims.first(cursor, place(4), "me", 50, version, priority=6)
    assert queue.claims.claim(cursor, place(4), [row])
    freed = consumer.freed(row)
    assert queue.claims.replace(row, freed)
    (found,) = consumer.rows
    assert (found.state, found.priority) == (ClaimState.FREE, 6)
    _, rows = claims.taken(found, place(2), "you", 90, version)
    assert queue.claims.replace(found, rows)
    assert [each.priority for each in consumer.rows] == [6, 6]
    mine = consumer.rows[0]
    back = claims.resolved(mine, mine.left.part(0, 1), [_back(mine.left.part(1, 2))], version)
    assert queue.claims.replace_many([(mine, back)]) == [True]
    assert {each.priority for each in consumer.rows} == {6}


def _back(seqs: object) -> ReturnedSeqs:
    return ReturnedSeqs(seqs, 70, 1)  # type: ignore[arg-type]


def test_groups_have_the_same_order(queue: Catalog) -> None:
    group = make_group(queue, "other")
    add(queue, a=0, b=2)
    assert [row.id for row in queue.pipes.unclaimed(group, 10)] == ["b", "a"]
    theirs = Consumer(queue, group.id, "b")
    row = claims.first(theirs.cursor, place(1), "me", 5, version, priority=2)
    assert queue.claims.claim(theirs.cursor, place(1), [row])
    assert due(queue) == []
    assert [each.priority for each in queue.claims.due(group.id, NOW_MS, 10)] == [2]
    assert replace(row, priority=0) != row
