"""The Catalog port: where something may be to do, over all queues and over some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import Catalog
from cassq.model.rows import ClaimState, Member, PipeRow, PipeState
from tests.contract.rows import (
    DUE_MS,
    Desk,
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
    assert catalog.add_pipe(pipe_row(pipe_id, queue))
    if end is not None:
        assert catalog.record_end(pipe_id, place(end)) == place(end)


def finish(catalog: Catalog, pipe_id: str, count: int, group: str = "q/default") -> None:
    desk = Desk(catalog, group, pipe_id)
    assert desk.finish(desk.claim(count))


@pytest.fixture
def queues(catalog: Catalog) -> Catalog:
    """Two queues."""
    make_queue(catalog, "q")
    make_queue(catalog, "r")
    return catalog


# --- pipes that may be abandoned --------------------------------------------------------------


@scopes
def test_pipes_that_may_be_written_are_found_over_all_queues(
    queues: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    add(queues, "of q")
    add(queues, "done", end=3)
    add(queues, "of r", "r")
    found = other.unsealed_pipes(scope)
    assert ids(found) == ["of q"] * has_q + ["of r"] * has_r
    assert all(pipe == queues.pipe(pipe.id) for pipe in found)


def test_a_pipe_opened_ahead_may_be_abandoned_too(queues: Catalog) -> None:
    assert queues.add_pipe(pipe_row("p", state=PipeState.READY))
    assert ids(queues.unsealed_pipes()) == ["p"]
    queues.record_end("p", place(0))
    assert queues.unsealed_pipes() == []


# --- pipes that may be retired ----------------------------------------------------------------


@scopes
def test_pipes_that_every_group_has_acked_are_found_over_all_queues(
    queues: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    for queue in ("q", "r"):
        add(queues, f"of {queue}", queue, end=3)
        finish(queues, f"of {queue}", 3, f"{queue}/default")
        add(queues, f"left of {queue}", queue, end=3)
    found = other.finished_pipes(scope)
    assert ids(found) == ["of q"] * has_q + ["of r"] * has_r
    assert all(pipe == queues.pipe(pipe.id) for pipe in found)


def test_a_pipe_is_finished_when_the_last_group_has_acked_its_last_message(
    queues: Catalog,
) -> None:
    late = make_group(queues, "late")
    add(queues, "p", end=3)
    finish(queues, "p", 3)
    finish(queues, "p", 2, late.id)
    assert queues.finished_pipes() == []
    row = Desk(queues, late.id).claim(1)
    assert queues.finished_pipes() == [], "it is claimed, not acked"
    assert Desk(queues, late.id).finish(row)
    assert ids(queues.finished_pipes()) == ids(queues.finished_pipes((Q,))) == ["p"]
    assert queues.retire("p", groups_version(queues))
    assert queues.finished_pipes() == []


def test_an_empty_pipe_is_finished_and_an_open_one_is_not(queues: Catalog) -> None:
    add(queues, "open")
    finish(queues, "open", 5)
    add(queues, "empty", end=0)
    assert ids(queues.finished_pipes()) == ["empty"]


def test_without_groups_nothing_is_finished(queues: Catalog) -> None:
    add(queues, "p", end=0)
    assert queues.delete_group("q/default")
    assert queues.finished_pipes() == []


def test_a_pipe_for_one_group_needs_that_one_s_acks_alone(queues: Catalog) -> None:
    late = make_group(queues, "late")
    assert queues.add_pipe(pipe_row("p", group_id=late.id))
    assert queues.record_end("p", place(2)) == place(2)
    assert queues.finished_pipes() == []
    finish(queues, "p", 2, late.id)
    assert ids(queues.finished_pipes()) == ["p"]


def test_finished_pipes_come_in_order_from_among_very_many(queues: Catalog) -> None:
    """More than what a catalog may look at in one step."""
    names = [f"p{number:05}" for number in range(2500)]
    for number, name in enumerate(names):
        end = place(0 if number % 500 == 499 else 1)
        assert queues.add_pipe(pipe_row(name, state=PipeState.SEALED, end=end))
    assert ids(queues.finished_pipes()) == ids(queues.finished_pipes((Q,))) == names[499::500]


# --- claims that may be overdue ---------------------------------------------------------------


@scopes
def test_groups_with_something_due_are_found_over_all_queues(
    queues: Catalog, other: Catalog, scope: tuple[str, ...] | None, has_q: bool, has_r: bool
) -> None:
    make_group(queues, "idle")
    for queue in ("q", "r"):
        add(queues, f"of {queue}", queue, end=3)
        Desk(queues, f"{queue}/default", f"of {queue}").claim(3)
    assert other.due_groups(DUE_MS - 1, scope) == []
    found = [(group.queue_id, group.name) for group in other.due_groups(DUE_MS, scope)]
    assert found == [(Q, "default")] * has_q + [(R, "default")] * has_r


def test_a_group_is_found_by_the_earliest_of_its_claims(queues: Catalog) -> None:
    add(queues, "p", end=9)
    desk = Desk(queues)
    desk.claim(1, due_ms=900)
    first = desk.claim(1, due_ms=100)
    assert [group.id for group in queues.due_groups(100)] == ["q/default"]
    assert desk.finish(first)
    assert queues.due_groups(899) == []


def test_held_claims_are_overdue_and_free_ones_when_their_deliveries_are_spent(
    queues: Catalog,
) -> None:
    add(queues, "p", end=99)
    desk = Desk(queues)
    free = [desk.claim(1, due_ms=100) for _ in range(3)]
    held, later = desk.claim(1, due_ms=200), desk.claim(1, due_ms=201)
    for row in free:
        assert queues.replace(row, desk.freed(row, 50))
    assert [row.start for row in queues.due("q/default", 200, 9)] == [0, 1, 2, 3]
    assert queues.overdue("q/default", 200, 2, 9) == [held]
    assert queues.overdue("q/default", 201, 2, 9) == [held, later]
    spent = queues.overdue("q/default", 200, 1, 9)
    assert [(row.start, row.state) for row in spent] == [
        (3, ClaimState.HELD), (0, ClaimState.FREE), (1, ClaimState.FREE), (2, ClaimState.FREE),
    ]  # fmt: skip
    assert queues.overdue("q/default", 200, 1, 2) == spent[:2]


@pytest.mark.parametrize("mark", ["doomed", "moving"])
def test_a_free_claim_that_is_marked_is_overdue_whatever_its_deliveries(
    queues: Catalog, mark: str
) -> None:
    add(queues, "p", end=9)
    desk = Desk(queues)
    row = desk.claim(1, due_ms=100)
    (free,) = desk.freed(row, 50)
    assert queues.replace(row, [replace(free, failure=f'{{"{mark}": 1}}')])
    assert [row.start for row in queues.overdue("q/default", 100, 5, 9)] == [0]


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
    assert [found.name for found in catalog.limited_queues()] == ["limited"]
    assert catalog.update_queue(later.id, 1, replace(later.policy, **limit))  # type: ignore[arg-type]
    assert {found.name for found in catalog.limited_queues()} == {"limited", "later"}
    assert catalog.limited_queues((row.id,)) == [catalog.queue_by_id(row.id)]
    catalog.delete_queue(row.id)
    assert [found.name for found in catalog.limited_queues()] == ["later"]


def test_queues_with_live_pipes_are_found(queues: Catalog, other: Catalog) -> None:
    make_queue(queues, "empty")
    assert other.live_queues() == []
    for number in range(3):
        add(queues, f"p{number}")
    add(queues, "x", "r", end=0)
    assert other.live_queues() == [Q, R]
    assert queues.retire("x", groups_version(queues, "r"))
    assert other.live_queues() == [Q]


def test_queues_that_are_pushed_to_are_found(queues: Catalog, other: Catalog) -> None:
    make_queue(queues, "idle")
    for queue in ("q", "r", "idle"):
        add(queues, f"of {queue}", queue)
    for pipe_id in ("of q", "of r"):
        assert queues.beat(pipe_id, "owner", PipeState.OPEN, 7)
    found = other.pipe("of q")
    assert found is not None
    assert (found.rate, found.beat) == (7, 1)
    assert sorted(other.busy_queues()) == [Q, R]
    assert other.busy_queues((R,)) == [R]
    assert queues.beat("of q", "owner", PipeState.OPEN)
    queues.record_end("of r", place(3))
    assert other.busy_queues() == []


def test_a_pipe_is_added_with_its_rate(queues: Catalog) -> None:
    assert queues.add_pipe(pipe_row("p", rate=9))
    assert queues.busy_queues() == [Q]


def test_a_wish_is_made_by_compare_and_set(queues: Catalog, other: Catalog) -> None:
    before = queues.queue_by_id(Q)
    assert before is not None
    assert (before.wished_pipes, before.wished_ms) == (1, 0)
    assert queues.wish_pipes(before, 4, 100)
    assert not other.wish_pipes(before, 9, 100)
    after = other.queue_by_id(Q)
    assert after == replace(before, wished_pipes=4, wished_ms=100)
    assert other.busy_queues() == [Q], "it is to be looked at though nobody pushes"
    assert other.wish_pipes(after, 4, 200)
    assert not queues.wish_pipes(after, 4, 300), "the time counts too"
    again = queues.queue_by_id(Q)
    assert again is not None
    assert queues.wish_pipes(again, 1, 300)
    assert queues.busy_queues() == []


def test_nothing_is_wished_for_a_deleted_queue(queues: Catalog) -> None:
    row = queues.queue_by_id(Q)
    assert row is not None
    queues.delete_queue(Q)
    assert not queues.wish_pipes(row, 4, 100)
    assert queues.busy_queues() == []


def test_a_popper_of_a_group_that_is_gone_is_not_noted(queues: Catalog) -> None:
    queues.attend(Member("q/default", "here", 100, waiting=True))
    queues.attend(Member("gone", "here", 100, waiting=True))
    assert [member.name for member in queues.members("q/default", 0)] == ["here"]
    assert queues.members("gone", 0) == []
