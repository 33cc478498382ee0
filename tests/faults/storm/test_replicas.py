"""The judge of replicas accepts what is right, and sees each thing that may be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from cassq.extents.protocol.messages import ListedExtent
from cassq.model.sidecar_rows import Placement, ReplicaAt
from tests.faults.storm.replicas import ReplicaView, complaints, dependants, orphans, unequal

NAMES = ("one", "two", "three")
TOLD = ListedExtent("p", "q", 7, 7, True, 700, 1, "", False)


def right() -> ReplicaView:
    """A pipe with three good replicas on four sidecars, of which the last was lost once."""
    replicas = tuple(ReplicaAt(name, "first") for name in NAMES)
    placement = Placement("p", "q", False, replicas, 3, "v", 1, end=7)
    generations = {"one": "first", "two": "first", "three": "first", "four": "second"}
    held = {name: {"p": TOLD} for name in NAMES} | {"four": {}}
    return ReplicaView([placement], generations, held, {"p"})


def test_what_is_right_is_accepted() -> None:
    assert list(complaints(right())) == []
    assert [each.pipe_id for each in right().sealed()] == ["p"]


def replaced(view: ReplicaView, found: ListedExtent | None) -> ReplicaView:
    held = {name: dict(extents) for name, extents in view.held.items()}
    if found is None:
        del held["two"]["p"]
    else:
        held["two"]["p"] = found
    return replace(view, held=held)


def placed(view: ReplicaView, **changes: object) -> ReplicaView:
    return replace(view, placements=[replace(view.placements[0], **changes)])


EMPTY = structs.replace(TOLD, end=0, final=-1)


def begun(held: ListedExtent) -> ReplicaView:
    """A pipe that has a placement, and no row; its replicas are such."""
    view = replace(placed(right(), end=None), pipes=set())
    return replace(view, held={name: {"p": held} for name in NAMES} | {"four": {}})


def test_what_was_only_begun_waits_for_the_sweep() -> None:
    assert begun(EMPTY).strays() == {"p"}
    assert list(complaints(begun(EMPTY))) == []


def test_what_has_messages_and_no_row_is_reported() -> None:
    for view in (begun(TOLD), replace(right(), pipes=set())):
        assert not view.strays()
        assert "p of q has no row" in list(complaints(view))


WRONG: dict[str, Callable[[ReplicaView], ReplicaView]] = {
    "is not sealed": lambda s: placed(s, end=None),
    "has 2 replicas on one": lambda s: placed(
        s, replicas=tuple(ReplicaAt(name, "first") for name in ("one", "one", "three"))
    ),
    "2 good replicas, and should have 3": lambda s: replaced(s, None),
    "3 good replicas, and should have 4": lambda s: placed(s, wanted=4),
    "3 good replicas, and should have 2": lambda s: placed(s, wanted=2),
    "on two is not there": lambda s: replaced(s, None),
    "on two is damaged: torn": lambda s: replaced(s, structs.replace(TOLD, damage="torn")),
    "a copy that is not whole": lambda s: replaced(s, structs.replace(TOLD, copying=True)),
    "ends at 6 for ever 7, not at 7": lambda s: replaced(s, structs.replace(TOLD, end=6)),
    "ends at 8 for ever -1, not at 7": lambda s: replaced(
        s, structs.replace(TOLD, end=8, final=-1)
    ),
    "on two was of another data directory": lambda s: replace(
        s, generations={**s.generations, "two": "second"}
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_reported(said: str) -> None:
    found = list(complaints(WRONG[said](right())))
    assert any(said in each for each in found), found


def test_an_unexpected_replica_is_reported() -> None:
    assert list(orphans(right())) == []
    (found,) = orphans(replace(right(), held={**right().held, "four": {"p": TOLD}}))
    assert found == "four holds p, which nobody knows of there"


def without(*names: str, **changes: object) -> ReplicaView:
    """The pipe when these of its sidecars are not there. changes: of the pipe."""
    view = right()
    held = {name: extents for name, extents in view.held.items() if name not in names}
    return placed(replace(view, held=held), **changes)


def test_a_sealed_pipe_can_do_without_a_sidecar_if_another_is_good() -> None:
    assert list(dependants(without("one"), "one")) == []
    assert list(dependants(without("one", "two"), "one")) == []
    (found,) = dependants(without("one", "two", "three"), "one")
    assert "p needs one: 0 good" in found
    assert list(dependants(without("one", "two", "three"), "four")) == []


def test_an_open_pipe_can_do_without_a_sidecar_if_the_others_can_seal_it() -> None:
    assert list(dependants(without("one", end=None), "one")) == []
    (found,) = dependants(without("one", "two", end=None), "one")
    assert "p needs one: 1 good" in found
    two = tuple(ReplicaAt(name, "first") for name in ("one", "two"))
    assert len(list(dependants(without("one", end=None, replicas=two), "one"))) == 1
    assert list(dependants(without("one", replicas=two), "one")) == []


@pytest.mark.parametrize("change", [{"damage": "torn"}, {"copying": True}, {"end": 6}])
def test_a_replica_that_lacks_something_does_not_count(change: dict[str, Any]) -> None:
    view = without("one", "three")
    assert list(dependants(replaced(view, structs.replace(TOLD, final=-1)), "one")) == []
    assert len(list(dependants(replaced(view, structs.replace(TOLD, **change)), "one"))) == 1
    later = replace(view, generations={**view.generations, "two": "second"})
    assert len(list(dependants(later, "one"))) == 1


def test_replicas_that_differ_are_reported() -> None:
    assert list(unequal([("p", {"one": "abc", "two": "abc"})])) == []
    (found,) = unequal([("p", {"one": "abc"}), ("r", {"one": "abc", "two": "abd"})])
    assert "r are not equal" in found
    assert list(unequal([("nothing", {})])) != []
