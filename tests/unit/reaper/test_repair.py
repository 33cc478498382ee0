"""What the repair pass decides: which extents, in which order, and when to look at all again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.extents.replicas.fleet import Fleet
from cassq.inspect.placements.rounds import AGAIN_MS, Round
from cassq.inspect.placements.walk import SOON_MS, is_due
from cassq.model.sidecar_rows import Placement
from cassq.reaper.actions import DONE, PLANNED
from cassq.reaper.repair import RepairSnapshot, emptied, plan
from tests.unit.extents.test_fleet import NOW_MS, at, fleet, placed, the_fleet


def named(name: str, *replicas: str, end: int | None = 7) -> Placement:
    return replace(placed(*replicas, end=end), pipe_id=name, queue_name=f"queue-{name}")


def planned(
    sidecars: str, *placements: Placement, damaged: str = "", missing: str = ""
) -> list[tuple[str, str]]:
    known, _ = the_fleet(sidecars)
    found = {each.pipe_id: [at(damaged)] for each in placements if damaged}
    absent = {each.pipe_id: [at(missing)] for each in placements if missing}
    actions = plan(RepairSnapshot(known, placements, found, absent))
    assert all(action.outcome == PLANNED and action.verb == "repair" for action in actions)
    return [(action.subject, action.detail) for action in actions]


def test_those_with_the_fewest_good_replicas_come_first() -> None:
    assert planned(
        "a b c:dead d:dead e f",
        named("p1", "a", "b", "c"),
        named("p2", "b", "c", "d"),
        named("p3", "a", "b", "e"),
        named("p4", "a", "b", "d"),
    ) == [
        ("p2", "replace the one on c"),
        ("p1", "replace the one on c"),
        ("p4", "replace the one on d"),
    ]


def test_what_cannot_be_repaired_is_not_planned() -> None:
    assert planned("a b c:dead", named("p", "a", "b", "c")) == []
    assert planned("a b c:dead d", named("p", "a", "b", "c", end=None)) == []


def test_a_plan_says_why() -> None:
    assert planned("a b c d", named("p", "a", "b", "c"), damaged="b") == [("p", "damaged on b")]
    assert planned("a b c d", named("p", "a", "b", "c"), missing="b") == [("p", "missing on b")]
    assert planned("a b c d", named("p", "a", "b")) == [("p", "2 of 3 replicas")]
    assert planned("a b c d e:gone", named("p", "a", "b", "c", "e")) == [("p", "not needed on e")]


def test_a_plan_names_the_queue() -> None:
    known, _ = the_fleet("a b c:dead d")
    (action,) = plan(RepairSnapshot(known, [named("p", "a", "b", "c")], {}, {}))
    assert action.queue == "queue-p"


# --- when to look at all placements again ---------------------------------------------------------


def a_round(sidecars: Fleet, *, open_: int = 0, stuck: int = 0, left: int = 0) -> Round:
    takers, states = sidecars.takers(), sidecars.states()
    return Round(NOW_MS, states, takers, 9, stuck, open_, stuck, 0, 0, {"c": left} if left else {})


THEN = the_fleet("a b c")[0]


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("a b c", False),
        ("a b c:away", False),  # it is waited for
        ("a b c:full", False),
        ("a b c:damaged", False),  # its sidecar says which
        ("a b c:dead", True),
        ("a b c:draining", True),
        ("a b c:gone", True),
        ("a b c:new", True),  # it lost everything
        ("a b", True),  # it was forgotten
        ("a b c d", True),  # one more, to take what lacks replicas
    ],
)
def test_all_placements_are_looked_at_again_when_sidecars_changed(now: str, due: bool) -> None:
    assert is_due(a_round(THEN), the_fleet(now)[0]) is due


def test_all_placements_are_checked_when_none_were_so_far() -> None:
    assert is_due(None, THEN)


@pytest.mark.parametrize(("passed_ms", "due"), [(AGAIN_MS - 1, False), (AGAIN_MS, True)])
def test_all_placements_are_looked_at_after_an_hour(passed_ms: int, due: bool) -> None:
    assert is_due(a_round(THEN)._replace(at_ms=NOW_MS - passed_ms), THEN) is due


def test_all_placements_are_looked_at_while_a_round_left_something() -> None:
    assert is_due(a_round(THEN, open_=1), THEN)


@pytest.mark.parametrize(("passed_ms", "due"), [(SOON_MS - 1, False), (SOON_MS, True)])
def test_what_a_round_left_may_be_no_reason_for_some_time(passed_ms: int, due: bool) -> None:
    last = a_round(THEN, open_=1)._replace(at_ms=NOW_MS - passed_ms)
    assert is_due(last, THEN, SOON_MS) is due
    assert is_due(last, the_fleet("a b c:dead")[0], SOON_MS), "other reasons are"


@pytest.mark.parametrize(("passed_ms", "due"), [(SOON_MS - 1, False), (SOON_MS, True)])
def test_what_was_not_sealed_is_looked_at_after_a_minute(passed_ms: int, due: bool) -> None:
    last = a_round(THEN)._replace(at_ms=NOW_MS - passed_ms)
    assert is_due(last._replace(unsealed=1), THEN) is due
    assert not is_due(last, THEN)


@pytest.mark.parametrize(("passed_ms", "due"), [(SOON_MS - 1, False), (SOON_MS, True)])
def test_while_a_sidecar_drains_and_is_not_empty_all_is_looked_at_every_minute(
    passed_ms: int, due: bool
) -> None:
    known, _ = the_fleet("a b c:draining")
    last = a_round(known)._replace(at_ms=NOW_MS - passed_ms)
    assert is_due(last, known) is due
    empty = replace(known.sidecars["c"], extents=0)
    others = the_fleet("a b")[0].sidecars.values()
    assert not is_due(last, fleet(*others, empty))


@pytest.mark.parametrize(("now", "due"), [("a b c", False), ("a b c:full", True)])
def test_what_could_not_be_mended_is_looked_at_when_others_take_extents(
    now: str, due: bool
) -> None:
    assert is_due(a_round(THEN, stuck=1), the_fleet(now)[0]) is due


def test_a_round_is_the_same_after_it_was_noted_as_json() -> None:
    made = a_round(THEN)._replace(sidecars=tuple(map(tuple, THEN.states())), takers=("a", "b", "c"))
    assert not is_due(made, THEN)


# --- drained --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sidecars", "left", "expected"),
    [("a b c:draining", 0, ["c"]), ("a b c:draining", 2, []), ("a b c", 0, [])],
)
def test_a_sidecar_that_drains_is_reported_once_it_is_empty(
    sidecars: str, left: int, expected: list[str]
) -> None:
    known, _ = the_fleet(sidecars)
    actions = emptied(a_round(known, left=left), known)
    assert [action.subject for action in actions] == expected
    assert all(action.outcome == DONE for action in actions)
    assert emptied(None, known) == []
