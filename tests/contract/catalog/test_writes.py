"""The Catalog port: writes, and the pipes that are staged in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from cassq.catalog.port import Catalog
from cassq.errors import BrokenInvariantError
from cassq.model.rows import Driver, PipeState, WriteRow, WriteState, begun
from tests.contract.rows import (
    Consumer,
    group_row,
    groups_version,
    make_group,
    make_queue,
    pipe_row,
    place,
)

QUEUE_ID = "id of q"
DEFAULT = group_row()
OPEN, PUBLISHED, ABORTED = WriteState.OPEN, WriteState.PUBLISHED, WriteState.ABORTED


def wanted(**changes: Any) -> WriteRow:
    row = WriteRow(QUEUE_ID, "w", 0, 0, OPEN, "driver", begun_ms=3)
    return replace(row, **changes)


def begin(catalog: Catalog, **changes: Any) -> WriteRow:
    row = catalog.writes.begin(wanted(**changes))
    assert row is not None
    return row


def stage(catalog: Catalog, write: WriteRow, pipe_id: str, count: int | None = 5) -> None:
    """Add a pipe to a write, with so many messages; None: it has no end yet."""
    row = pipe_row(pipe_id, state=PipeState.STAGED, stage=write.stage)
    assert catalog.pipes.add(row)
    if count is not None:
        assert catalog.pipes.record_end(pipe_id, place(count)) == place(count)


def state_of(catalog: Catalog, pipe_id: str) -> PipeState | None:
    row = catalog.pipes.by_id(pipe_id)
    return None if row is None else row.state


def listed(catalog: Catalog) -> list[str]:
    return [pipe.id for pipe in catalog.pipes.live(QUEUE_ID)]


# --- beginning --------------------------------------------------------------------------------


def test_a_write_is_open_once_it_is_begun(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    assert (row.epoch, row.state) == (1, OPEN)
    assert other.writes.by_id(QUEUE_ID, "w") == row
    assert other.writes.unfinished() == [row]
    assert other.writes.unfinished([QUEUE_ID]) == [row]
    assert other.writes.unfinished(["another"]) == []


def test_a_write_needs_a_queue(catalog: Catalog) -> None:
    assert catalog.writes.begin(wanted()) is None
    assert catalog.writes.by_id(QUEUE_ID, "w") is None


def test_beginning_the_same_write_again_joins_it(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    assert begin(other, begun_ms=99) == row


def test_a_younger_driver_takes_a_write_over_and_an_older_one_does_not(catalog: Catalog) -> None:
    make_queue(catalog)
    first = begin(catalog, driver="d1")
    second = begin(catalog, driver="d2")
    assert (second.epoch, second.driver) == (2, "d2")
    assert begin(catalog, driver="d1") == second
    assert not catalog.writes.publish(first, [])
    assert not catalog.writes.abort(first)
    assert catalog.writes.by_id(QUEUE_ID, "w") == second


def test_what_is_published_is_not_begun_again(catalog: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    assert catalog.writes.publish(row, [])
    done = replace(row, state=PUBLISHED)
    assert begin(catalog) == begin(catalog, driver="younger") == done


def test_the_next_number_is_begun_when_the_one_before_is_over(catalog: Catalog) -> None:
    make_queue(catalog)
    first = begin(catalog, number=7)
    assert catalog.writes.publish(first, [])
    second = begin(catalog, number=8)
    assert (second.number, second.epoch, second.state) == (8, 2, OPEN)
    assert begin(catalog, number=7) == second, "7 is over: it is told by 8"


def test_an_aborted_write_can_be_begun_again(catalog: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    assert catalog.writes.abort(row)
    assert not catalog.writes.abort(row)
    assert catalog.writes.by_id(QUEUE_ID, "w") == replace(row, state=ABORTED)
    again = begin(catalog)
    assert (again.epoch, again.state) == (2, OPEN)


@pytest.mark.parametrize("drivers", list(permutations("abc")))
def test_the_youngest_leads_whatever_the_order_of_arrival(drivers: tuple[str, ...]) -> None:
    row: WriteRow | None = None
    for driver in drivers:
        row = begun(row, wanted(driver=driver)) or row
    assert row is not None
    assert row.driver == "c"


# --- staged pipes -----------------------------------------------------------------------------


def test_a_staged_pipe_is_in_no_listing(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "open", None)
    stage(catalog, row, "ended")
    for each in (catalog, other):
        assert each.pipes.live(QUEUE_ID) == []
        assert each.pipes.unclaimed(DEFAULT, 10) == []
        assert each.pipes.unclaimed(DEFAULT, 10, unacked=True) == []
        assert each.pipes.unsealed() == each.pipes.finished() == each.pipes.consumed() == []
        assert each.queues.live() == []
        assert each.claims.cursor(DEFAULT.id, "ended") is None
        assert each.pipes.ids() == {"open", "ended"}
        assert not each.pipes.retire(["ended"], groups_version(each))


def test_a_staged_pipe_stays_staged_with_its_end(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    stage(catalog, begin(catalog), "p", 5)
    found = other.pipes.by_id("p")
    assert found is not None
    assert (found.state, found.end, found.stage) == (PipeState.STAGED, place(5), "1:w")
    assert catalog.pipes.record_end("p", place(9)) == place(5), "one end for ever"


def test_pipes_are_staged_in_open_writes_only(catalog: Catalog) -> None:
    make_queue(catalog)
    first = begin(catalog, driver="d1")
    begin(catalog, driver="d2")
    late = pipe_row("p", state=PipeState.STAGED, stage=first.stage)
    assert not catalog.pipes.add(late)
    never = pipe_row("p", state=PipeState.STAGED, stage="1:another")
    assert not catalog.pipes.add(never)
    assert catalog.pipes.by_id("p") is None


# --- publishing -------------------------------------------------------------------------------


def test_winners_are_listed_in_order_behind_all_others(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    for pipe_id in ("a", "b", "c", "loser"):
        stage(catalog, row, pipe_id)
    assert catalog.pipes.add(pipe_row("later"))
    assert catalog.writes.publish(row, ["c", "a", "b"])
    assert listed(other) == ["later", "c", "a", "b"]
    assert [pipe.id for pipe in other.pipes.unclaimed(DEFAULT, 10)] == ["later", "c", "a", "b"]
    assert {state_of(other, pipe_id) for pipe_id in "abc"} == {PipeState.SEALED}
    assert state_of(other, "loser") is PipeState.CONSUMED
    assert [pipe.id for pipe in other.pipes.consumed()] == ["loser"]
    assert other.writes.unfinished() == []
    consumer = Consumer(other, pipe_id="c")
    assert consumer.finish(consumer.claim(5))
    assert [pipe.id for pipe in other.pipes.finished()] == ["c"]


def test_what_is_published_is_as_old_as_its_publishing(catalog: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "p")
    before_ms = catalog.now_ms()
    assert catalog.writes.publish(row, ["p"])
    found = catalog.pipes.by_id("p")
    assert found is not None
    assert found.created_ms >= before_ms
    assert found.stage == ""


def test_many_winners_are_published_at_once(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    names = [f"p{n:03}" for n in range(150)]
    for name in names:
        stage(catalog, row, name, 1)
    assert catalog.writes.publish(row, names)
    assert listed(other) == names


def test_a_write_is_published_once(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "mine")
    stage(catalog, row, "yours")
    assert catalog.writes.publish(row, ["mine"])
    assert not other.writes.publish(row, ["yours"])
    assert not other.writes.abort(row)
    assert listed(other) == ["mine"]
    assert not other.pipes.add(pipe_row("late", state=PipeState.STAGED, stage=row.stage))


@pytest.mark.parametrize("wrong", ["absent", "without an end", "of another write"])
def test_anything_but_a_sealed_pipe_of_the_write_is_not_published(
    catalog: Catalog, wrong: str
) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "good")
    if wrong == "without an end":
        stage(catalog, row, wrong, None)
    if wrong == "of another write":
        stage(catalog, begin(catalog, id="v"), wrong)
    with pytest.raises(BrokenInvariantError):
        catalog.writes.publish(row, ["good", wrong])
    assert listed(catalog) == []
    assert catalog.writes.by_id(QUEUE_ID, "w") == row


def test_a_group_made_before_publishing_gets_all_of_it(catalog: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "p")
    group = make_group(catalog, "late")
    assert catalog.writes.publish(row, ["p"])
    for each in (group, DEFAULT):
        cursor = catalog.claims.cursor(each.id, "p")
        assert cursor is not None
        assert (cursor.start, cursor.chain.seq) == (0, 0)
    consumer = Consumer(catalog, pipe_id="p")
    assert consumer.finish(consumer.claim(5))
    assert not catalog.pipes.retire(["p"], groups_version(catalog)), "the other group has it still"


# --- aborting ---------------------------------------------------------------------------------


def test_pipes_of_an_aborted_write_are_removed(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "a")
    stage(catalog, row, "b", None)
    assert catalog.writes.abort(row)
    other.writes.finish(row)
    assert {state_of(other, pipe_id) for pipe_id in "ab"} == {PipeState.CONSUMED}
    assert other.writes.unfinished() == []
    other.pipes.forget(["a", "b"])
    assert catalog.pipes.ids() == set()
    assert catalog.writes.finish(row) == 0


def test_an_open_write_keeps_its_pipes(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "p")
    assert other.writes.finish(row) == 0
    assert state_of(other, "p") is PipeState.STAGED
    assert other.writes.unfinished() == [row]


def test_pipes_of_an_older_epoch_are_removed_and_those_of_the_new_one_stay(
    catalog: Catalog, other: Catalog
) -> None:
    make_queue(catalog)
    first = begin(catalog, driver="d1")
    stage(catalog, first, "old")
    second = begin(other, driver="d2")
    stage(other, second, "new")
    other.writes.finish(second)
    assert state_of(catalog, "old") is PipeState.CONSUMED
    assert state_of(catalog, "new") is PipeState.STAGED
    assert other.writes.publish(second, ["new"])
    assert listed(catalog) == ["new"]


def test_the_next_number_removes_what_the_one_before_has_left(catalog: Catalog) -> None:
    make_queue(catalog)
    first = begin(catalog, number=1)
    stage(catalog, first, "half", None)
    second = begin(catalog, number=2)
    stage(catalog, second, "whole")
    assert catalog.writes.publish(second, ["whole"])
    assert listed(catalog) == ["whole"]
    assert state_of(catalog, "half") in (PipeState.CONSUMED, None)


# --- with the queue ---------------------------------------------------------------------------


def test_a_deleted_queue_takes_its_writes_along(catalog: Catalog, other: Catalog) -> None:
    make_queue(catalog)
    row = begin(catalog)
    stage(catalog, row, "p")
    done = begin(catalog, id="done")
    stage(catalog, done, "listed")
    assert catalog.writes.publish(done, ["listed"])
    assert set(other.queues.delete(QUEUE_ID)) == {"p", "listed"}
    assert not catalog.writes.publish(row, ["p"])
    assert not catalog.pipes.add(pipe_row("more", state=PipeState.STAGED, stage=row.stage))
    other.pipes.forget(["p", "listed"])
    other.queues.forget(QUEUE_ID)
    assert other.queues.by_id(QUEUE_ID) is None
    assert other.pipes.ids() == set()
    assert other.writes.unfinished([QUEUE_ID]) == []
    assert other.writes.by_id(QUEUE_ID, "done") is None


def test_a_queue_is_not_forgotten_before_its_staged_pipes_are(catalog: Catalog) -> None:
    make_queue(catalog)
    stage(catalog, begin(catalog), "p")
    catalog.queues.delete(QUEUE_ID)
    catalog.queues.forget(QUEUE_ID)
    assert catalog.queues.by_id(QUEUE_ID) is not None
    catalog.pipes.forget(["p"])
    catalog.queues.forget(QUEUE_ID)
    assert catalog.queues.by_id(QUEUE_ID) is None


# --- drivers ----------------------------------------------------------------------------------


def test_a_driver_shows_that_it_is_alive(catalog: Catalog, other: Catalog) -> None:
    assert catalog.writes.drivers(["d"]) == []
    catalog.writes.beat_driver("d", 60_000)
    assert other.writes.drivers(["d", "none"]) == [Driver("d", 1, 60_000)]
    other.writes.beat_driver("d", 30_000)
    catalog.writes.beat_driver("e", 1_000)
    assert catalog.writes.drivers(["d", "e"]) == [Driver("d", 2, 30_000), Driver("e", 1, 1_000)]
