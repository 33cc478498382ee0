"""The Catalog port: where something may be to do, over all queues and over some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.model.rows import ClaimState, Member, PipeRow, PipeState
from tests.contract.rows import (
    DUE_MS,
    Consumer,
    groups_version,
    make_group,
    make_queue,
    pipe_row,
    place,
)

Q, R = "id of q", "id of r"
SCOPES = [(None, True, True), ((Q,), True, False), ((R,), False, True), ((Q, R), True, True)]
scopes = pytest.mark.parametrize(("scope", "has_q", "has_r"), [*SCOPES, ((), False, False)])


def ids(pipes: list[PipeRow]) -> list[str]:
    return [pipe.id for pipe in pipes]


def add(catalog: Catalog, pipe_id: str, queue: str = "q", end: int | None = None) -> None:
    assert catalog.pipes.add(pipe_row(pipe_id, queue))
    if end is not None:
        assert catalog.pipes.record_end(pipe_id, place(end)) == place(end)


def finish(catalog: Catalog, pipe_id: str, count: int, group: str = "q/default") -> None:
    consumer = Consumer(catalog, group, pipe_id)
    assert consumer.finish(consumer.claim(count))


@pytest.fixture
def two(catalog: Catalog) -> Catalog:
    """Two queues."""
    make_queue(catalog, "q")
    make_queue(catalog, "r")
    return catalog


# --- pipes that may be abandoned --------------------------------------------------------------


@scopes
def test_pipes_that_may_be_written_are_found_over_all_queues(
    two: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    add(two, "of q")
    add(two, "done", end=3)
    add(two, "of r", "r")
    found = other.pipes.unsealed(scope)
    assert ids(found) == ["of q"] * has_q + ["of r"] * has_r
    assert all(pipe == two.pipes.by_id(pipe.id) for pipe in found)


def test_a_pipe_opened_ahead_may_be_abandoned_too(two: Catalog) -> None:
    assert two.pipes.add(pipe_row("p", state=PipeState.READY))
    assert ids(two.pipes.unsealed()) == ["p"]
    two.pipes.record_end("p", place(0))
    assert two.pipes.unsealed() == []


# --- pipes that may be retired ----------------------------------------------------------------


@scopes
def test_pipes_that_every_group_has_acked_are_found_over_all_queues(
    two: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    for queue in ("q", "r"):
        add(two, f"of {queue}", queue, end=3)
        finish(two, f"of {queue}", 3, f"{queue}/default")
        add(two, f"left of {queue}", queue, end=3)
    found = other.pipes.finished(scope)
    assert ids(found) == ["of q"] * has_q + ["of r"] * has_r
    assert all(pipe == two.pipes.by_id(pipe.id) for pipe in found)


def test_a_pipe_is_finished_when_the_last_group_has_acked_its_last_message(
    two: Catalog,
) -> None:
    late = make_group(two, "late")
    add(two, "p", end=3)
    finish(two, "p", 3)
    finish(two, "p", 2, late.id)
    assert two.pipes.finished() == []
    row = Consumer(two, late.id).claim(1)
    assert two.pipes.finished() == [], "it is claimed, not acked"
    assert Consumer(two, late.id).finish(row)
    assert ids(two.pipes.finished()) == ids(two.pipes.finished((Q,))) == ["p"]
    assert two.pipes.retire(["p"], groups_version(two))
    assert two.pipes.finished() == []


def test_an_empty_pipe_is_finished_and_an_open_one_is_not(two: Catalog) -> None:
    add(two, "open")
    finish(two, "open", 5)
    add(two, "empty", end=0)
    assert ids(two.pipes.finished()) == ["empty"]


def test_without_groups_nothing_is_finished(two: Catalog) -> None:
    add(two, "p", end=0)
    assert two.queues.delete_group("q/default")
    assert two.pipes.finished() == []


def test_a_pipe_for_one_group_needs_that_one_s_acks_alone(two: Catalog) -> None:
    late = make_group(two, "late")
    assert two.pipes.add(pipe_row("p", group_id=late.id))
    assert two.pipes.record_end("p", place(2)) == place(2)
    assert two.pipes.finished() == []
    finish(two, "p", 2, late.id)
    assert ids(two.pipes.finished()) == ["p"]


@pytest.mark.long(reason="2,500 pipes, each made by conditional writes")
def test_finished_pipes_come_in_order_from_among_very_many(two: Catalog) -> None:
    """More than what a catalog may look at in one step."""
    names = [f"p{number:05}" for number in range(2500)]
    for number, name in enumerate(names):
        end = place(0 if number % 500 == 499 else 1)
        assert two.pipes.add(pipe_row(name, state=PipeState.SEALED, end=end))
    assert ids(two.pipes.finished()) == ids(two.pipes.finished((Q,))) == names[499::500]


# --- claims that may be overdue ---------------------------------------------------------------


@scopes
def test_groups_with_something_due_are_found_over_all_queues(
    two: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    make_group(two, "idle")
    for queue in ("q", "r"):
        add(two, f"of {queue}", queue, end=3)
        Consumer(two, f"{queue}/default", f"of {queue}").claim(3)
    assert other.claims.due_groups(DUE_MS - 1, scope) == []
    found = [(group.queue_id, group.name) for group in other.claims.due_groups(DUE_MS, scope)]
    assert found == [(Q, "default")] * has_q + [(R, "default")] * has_r


def test_a_group_is_found_by_the_earliest_of_its_claims(two: Catalog) -> None:
    add(two, "p", end=9)
    consumer = Consumer(two)
    consumer.claim(1, due_ms=900)
    first = consumer.claim(1, due_ms=100)
    assert [group.id for group in two.claims.due_groups(100)] == ["q/default"]
    assert consumer.finish(first)
    assert two.claims.due_groups(899) == []


def test_held_claims_are_overdue_and_free_ones_when_their_deliveries_are_spent(
    two: Catalog,
) -> None:
    add(two, "p", end=99)
    consumer = Consumer(two)
    free = [consumer.claim(1, due_ms=100) for _ in range(3)]
    held, later = consumer.claim(1, due_ms=200), consumer.claim(1, due_ms=201)
    for row in free:
        assert two.claims.replace(row, consumer.freed(row, 50))
    assert [row.start for row in two.claims.due("q/default", 200, 9)] == [0, 1, 2, 3]
    assert two.claims.overdue("q/default", 200, 2, 9) == [held]
    assert two.claims.overdue("q/default", 201, 2, 9) == [held, later]
    spent = two.claims.overdue("q/default", 200, 1, 9)
    assert [(row.start, row.state) for row in spent] == [
        (3, ClaimState.HELD), (0, ClaimState.FREE), (1, ClaimState.FREE), (2, ClaimState.FREE),
    ]  # fmt: skip
    assert two.claims.overdue("q/default", 200, 1, 2) == spent[:2]


@pytest.mark.parametrize("mark", ["doomed", "moving"])
def test_a_free_claim_that_is_marked_is_overdue_whatever_its_deliveries(
    two: Catalog, mark: str
) -> None:
    add(two, "p", end=9)
    consumer = Consumer(two)
    row = consumer.claim(1, due_ms=100)
    (free,) = consumer.freed(row, 50)
    assert two.claims.replace(row, [replace(free, failure=f'{{"{mark}": 1}}')])
    assert [row.start for row in two.claims.overdue("q/default", 100, 5, 9)] == [0]


# --- queues that may have something to do -----------------------------------------------------

LIMITS: list[dict[str, object]] = [
    {"message_ttl": 5.0},
    {"retain_unconsumed": 5.0},
    {"max_length": 5},
    {"dedup_window": 5.0},
]


@pytest.mark.parametrize("limit", LIMITS)
def test_queues_with_limits_are_found(catalog: Catalog, limit: dict[str, object]) -> None:
    make_queue(catalog, "free", owner="me", retain_consumed=5.0)
    row = make_queue(catalog, "limited", **limit)
    later = make_queue(catalog, "later")
    assert [found.name for found in catalog.queues.limited()] == ["limited"]
    assert catalog.queues.update(later.id, 1, replace(later.policy, **limit))  # type: ignore[arg-type]
    assert {found.name for found in catalog.queues.limited()} == {"limited", "later"}
    assert catalog.queues.limited((row.id,)) == [catalog.queues.by_id(row.id)]
    catalog.queues.delete(row.id)
    assert [found.name for found in catalog.queues.limited()] == ["later"]


def test_queues_with_live_pipes_are_found(two: Catalog, other: Catalog) -> None:
    make_queue(two, "empty")
    assert other.queues.live() == []
    for number in range(3):
        add(two, f"p{number}")
    add(two, "x", "r", end=0)
    assert other.queues.live() == [Q, R]
    assert two.pipes.retire(["x"], groups_version(two, "r"))
    assert other.queues.live() == [Q]


def test_queues_that_are_pushed_to_are_found(two: Catalog, other: Catalog) -> None:
    make_queue(two, "idle")
    for queue in ("q", "r", "idle"):
        add(two, f"of {queue}", queue)
    for pipe_id in ("of q", "of r"):
        assert two.pipes.beat(pipe_id, "owner", PipeState.OPEN, 7)
    found = other.pipes.by_id("of q")
    assert found is not None
    assert (found.rate, found.beat) == (7, 1)
    assert {q: [p.id for p in pipes] for q, pipes in other.queues.busy().items()} == {
        Q: ["of q"],
        R: ["of r"],
    }
    assert [*other.queues.busy((R,))] == [R]
    assert two.pipes.beat("of q", "owner", PipeState.OPEN)
    two.pipes.record_end("of r", place(3))
    assert other.queues.busy() == {}


def test_a_pipe_is_added_with_its_rate(two: Catalog) -> None:
    assert two.pipes.add(pipe_row("p", rate=9))
    assert [*two.queues.busy()] == [Q]


def test_the_desired_pipes_are_set_by_compare_and_set(two: Catalog, other: Catalog) -> None:
    before = two.queues.by_id(Q)
    assert before is not None
    assert (before.desired_pipes, before.desired_ms) == (1, 0)
    assert two.queues.set_desired_pipes(before, 4, 100)
    assert not other.queues.set_desired_pipes(before, 9, 100)
    after = other.queues.by_id(Q)
    assert after == replace(before, desired_pipes=4, desired_ms=100)
    assert [*other.queues.busy()] == [Q], "it is to be looked at though nobody pushes"
    assert other.queues.set_desired_pipes(after, 4, 200)
    assert not two.queues.set_desired_pipes(after, 4, 300), "the time counts too"
    again = two.queues.by_id(Q)
    assert again is not None
    assert two.queues.set_desired_pipes(again, 1, 300)
    assert two.queues.busy() == {}


def test_nothing_is_set_for_a_deleted_queue(two: Catalog) -> None:
    row = two.queues.by_id(Q)
    assert row is not None
    two.queues.delete(Q)
    assert not two.queues.set_desired_pipes(row, 4, 100)
    assert two.queues.busy() == {}


def test_a_popper_of_a_group_that_is_gone_is_not_noted(two: Catalog) -> None:
    two.records.attend(Member("q/default", "here", 100, waiting=True))
    two.records.attend(Member("gone", "here", 100, waiting=True))
    assert [member.name for member in two.records.members("q/default", 0)] == ["here"]
    assert two.records.members("gone", 0) == []
