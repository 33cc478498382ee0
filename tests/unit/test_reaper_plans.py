"""What the reaper's passes decide, from rows just before, at and after each threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.catalog.port import GroupRow, PipeRow, PipeState
from cassq.frames import Place
from cassq.queues import GroupPolicy
from cassq.reaper import Action, Sightings, plan_retires, plan_seals, unsealed

LEASE_MS = 10_000
SEEN_MS = 500_000


def a_pipe(pipe_id: str = "p", state: PipeState = PipeState.OPEN, beat: int = 3) -> PipeRow:
    return PipeRow(pipe_id, "queue", state, "owner", created_ms=0, lease_ms=LEASE_MS, beat=beat)


def sealed(pipe_id: str, end_seq: int) -> PipeRow:
    return replace(a_pipe(pipe_id, PipeState.SEALED), end=Place(end_seq, 4096))


def a_group(group_id: str) -> GroupRow:
    return GroupRow(group_id, "queue", group_id, GroupPolicy())


def nobody_gone(pipe_id: str) -> bool:
    return False


def ids(pipes: list[PipeRow]) -> list[str]:
    return [pipe.id for pipe in pipes]


# --- sealing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed_ms", "planned"),
    [(0, []), (LEASE_MS - 1, []), (LEASE_MS, ["p"]), (LEASE_MS + 1, ["p"])],
)
@pytest.mark.parametrize("state", [PipeState.READY, PipeState.OPEN])
def test_a_pipe_is_sealed_when_its_lease_stood_still_for_its_whole_length(
    state: PipeState, passed_ms: int, planned: list[str]
) -> None:
    pipe = a_pipe(state=state)
    seen = {"p": (pipe.beat, SEEN_MS)}
    assert ids(plan_seals([pipe], seen, nobody_gone, SEEN_MS + passed_ms)) == planned


def test_a_lease_that_moved_since_it_was_seen_counts_from_anew() -> None:
    seen = {"p": (2, SEEN_MS)}
    assert plan_seals([a_pipe(beat=3)], seen, nobody_gone, SEEN_MS + 10 * LEASE_MS) == []


def test_a_pipe_not_seen_before_is_left_alone() -> None:
    assert plan_seals([a_pipe()], {}, nobody_gone, SEEN_MS) == []


def test_each_pipe_has_a_lease_of_its_own_length() -> None:
    pipes = [a_pipe("short"), replace(a_pipe("long"), lease_ms=2 * LEASE_MS)]
    seen = {pipe.id: (pipe.beat, SEEN_MS) for pipe in pipes}
    assert ids(plan_seals(pipes, seen, nobody_gone, SEEN_MS + LEASE_MS)) == ["short"]


def test_a_pipe_whose_writer_is_known_to_be_gone_is_sealed_at_once() -> None:
    pipes = [a_pipe("gone"), a_pipe("alive")]
    seen = {pipe.id: (pipe.beat, SEEN_MS) for pipe in pipes}
    assert ids(plan_seals(pipes, seen, lambda pipe_id: pipe_id == "gone", SEEN_MS)) == ["gone"]


@pytest.mark.parametrize("state", [PipeState.SEALED, PipeState.CONSUMED])
def test_a_sealed_pipe_is_not_sealed_again_and_its_writer_not_asked_about(state: PipeState) -> None:
    asked: list[str] = []

    def gone(pipe_id: str) -> bool:
        asked.append(pipe_id)
        return True

    seen = {"p": (3, 0)}
    assert plan_seals([a_pipe(state=state)], seen, gone, SEEN_MS) == []
    assert asked == []


def test_the_unsealed_pipes_are_the_ready_and_the_open_ones() -> None:
    pipes = [a_pipe(state.name, state) for state in PipeState]
    assert ids(unsealed(pipes)) == ["READY", "OPEN"]


# --- watching ---------------------------------------------------------------------------------


def test_a_beat_that_stands_still_keeps_the_time_it_was_first_seen_at() -> None:
    sightings = Sightings()
    for now_ms in (100, 200, 300):
        sightings.watch([a_pipe(beat=7)], now_ms)
    assert sightings.seen == {"p": (7, 100)}


def test_a_beat_that_moved_is_seen_anew() -> None:
    sightings = Sightings()
    sightings.watch([a_pipe(beat=7)], 100)
    sightings.watch([a_pipe(beat=8)], 200)
    assert sightings.seen == {"p": (8, 200)}


def test_a_pipe_that_is_gone_is_forgotten() -> None:
    sightings = Sightings()
    sightings.watch([a_pipe("old"), a_pipe("new")], 100)
    sightings.watch([a_pipe("new")], 200)
    assert sightings.seen == {"new": (3, 100)}


def test_a_pipe_watched_for_a_lease_is_sealed_in_the_pass_after() -> None:
    """The two together: watch, decide, watch again. A pipe that shows life in between stays."""
    sightings = Sightings()
    dead, alive = a_pipe("dead"), a_pipe("alive")
    for now_ms, expected in ((0, []), (LEASE_MS - 1, []), (LEASE_MS, ["dead"])):
        alive = replace(alive, beat=alive.beat + 1)
        sightings.watch([dead, alive], now_ms)
        assert ids(plan_seals([dead, alive], sightings.seen, nobody_gone, now_ms)) == expected


# --- retiring ---------------------------------------------------------------------------------

GROUPS = [a_group("a"), a_group("b")]


@pytest.mark.parametrize(
    ("a", "b", "planned"),
    [
        (9, 9, []),
        (10, 9, []),
        (9, 10, []),
        (10, 10, ["p"]),
        (11, 10, ["p"]),
    ],
)
def test_a_pipe_is_retired_when_every_group_has_acked_it_to_its_end(
    a: int, b: int, planned: list[str]
) -> None:
    acked = {"p": {"a": a, "b": b}}
    assert ids(plan_retires([sealed("p", 10)], acked, GROUPS)) == planned


def test_a_group_that_has_not_begun_a_pipe_keeps_it() -> None:
    assert plan_retires([sealed("p", 10)], {"p": {"a": 10}}, GROUPS) == []
    assert plan_retires([sealed("p", 10)], {}, GROUPS) == []


def test_an_empty_pipe_needs_nobody_s_ack() -> None:
    assert ids(plan_retires([sealed("p", 0)], {}, GROUPS)) == ["p"]


def test_a_queue_without_groups_retires_nothing() -> None:
    assert plan_retires([sealed("p", 0), sealed("q", 5)], {}, []) == []


def test_a_pipe_without_an_end_is_not_retired_however_much_is_acked() -> None:
    assert plan_retires([a_pipe("p")], {"p": {"a": 99, "b": 99}}, GROUPS) == []


def test_the_acks_of_another_pipe_or_another_group_do_not_count() -> None:
    acked = {"p": {"a": 10, "x": 10}, "q": {"a": 10, "b": 10}}
    assert ids(plan_retires([sealed("p", 10), sealed("q", 10)], acked, GROUPS)) == ["q"]


def test_a_pipe_that_follows_another_is_retired_with_it_or_after_it() -> None:
    """On a strict queue: that a predecessor is gone means that all before it is done."""
    chain = [sealed("p1", 5)]
    chain += [replace(sealed(f"p{n}", 5), predecessor=f"p{n - 1}") for n in range(2, 6)]
    done = {"a": 5, "b": 5}
    all_done = {pipe.id: done for pipe in chain}
    assert ids(plan_retires(chain, all_done, GROUPS)) == ids(chain)
    but_third = all_done | {"p3": {"a": 5, "b": 4}}
    assert ids(plan_retires(chain, but_third, GROUPS)) == ["p1", "p2"]
    assert ids(plan_retires(chain[1:], all_done, GROUPS)) == ["p2", "p3", "p4", "p5"]


def test_an_open_pipe_keeps_what_follows_it() -> None:
    pipes = [a_pipe("p1"), replace(sealed("p2", 0), predecessor="p1"), sealed("q", 0)]
    assert ids(plan_retires(pipes, {}, GROUPS)) == ["q"]


# --- what is told -----------------------------------------------------------------------------


def test_an_action_is_told_with_its_outcome() -> None:
    action = Action("seal", "p", "queue")
    assert action.as_dict() == {
        "verb": "seal", "subject": "p", "queue": "queue", "outcome": "planned", "detail": "",
    }  # fmt: skip
