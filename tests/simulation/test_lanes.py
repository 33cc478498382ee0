"""What a lane of a keyed group does at its edges, in short scripted runs."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import Any

import pytest

from cassq.errors import BackendError
from cassq.extents.port import ExtentMissingError
from cassq.model.rows import Claim
from tests.simulation.worlds.scenario import draw_calm
from tests.simulation.worlds.scheduler import CalmProcess, Scheduler
from tests.simulation.worlds.world import World

TIMEOUT = 1.0


class Troubled(CalmProcess):
    """A process that does as it is told. fails: the step of a write that fails, as long as it is
    named. write_seconds: how long a write takes."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__(scheduler, name)
        self.fails = ""
        self.write_seconds = 0.0

    def fault(self, what: str) -> bool:
        if self.write_seconds and what == "before BEGIN":
            self.sleep(self.write_seconds)
        return what == self.fails


@pytest.fixture
def world() -> Any:
    drawn = replace(draw_calm(random.Random(0)), queues=["ap"], groups={"ap": []}, delayed=0.0)
    world = World(0, drawn)
    yield world
    world.end()


def test_what_comes_after_a_lock_could_not_be_renewed_is_kept_for_its_whole_time(
    world: World,
) -> None:
    first, second = (Troubled(world.scheduler, name) for name in ("first", "second"))
    queue: Any = world.open_client(first).create_queue("ap", claim_timeout=TIMEOUT)
    queue.create_group("keyed", order="key")
    with queue.pusher() as pusher:
        pusher.push_many([b"1", b"2"], keys=[b"one", b"two"])
    popper = queue.popper("keyed", keep_alive=0)
    other = world.open_client(second).queue("ap").popper("keyed", keep_alive=0)
    popper.commit(popper.pop(1))
    first.sleep(1.5 * TIMEOUT)
    first.fails = "before BEGIN"
    with pytest.raises(BackendError):
        popper.pop(1)
    first.fails = ""
    in_hand = popper.pop(1)
    assert in_hand.payloads == [b"2"]
    first.sleep(0.9 * TIMEOUT)
    assert not other.pop(1)
    popper.commit(in_hand)


def limited(world: World, **limits: Any) -> tuple[Troubled, Any, Any]:
    """A process with a pusher, and a popper of a group with limits of each key, which has looked
    for messages, and whose lane is older than any interval."""
    process = Troubled(world.scheduler, "first")
    queue: Any = world.open_client(process).create_queue("ap", claim_timeout=5.0)
    queue.create_group("keyed", **limits)
    popper = queue.popper("keyed", keep_alive=0)
    pusher = queue.pusher()
    pusher.push_many([b"a1", b"a2"], keys=[b"a", b"a"])
    if "rate_per_key" in limits:
        assert not popper.pop(10)
        process.sleep(1.0)
    return process, pusher, popper


def test_the_interval_of_a_key_counts_from_when_a_message_was_handed_out(world: World) -> None:
    process, _, popper = limited(world, rate_per_key="2/s")
    process.write_seconds = 1.0
    assert popper.pop(10).payloads == [b"a1"]
    process.write_seconds = 0.0
    assert not popper.pop(10), "the last one came just now, though it was taken long ago"
    process.sleep(0.5)
    assert popper.pop(10).payloads == [b"a2"]


def lost(world: World, **limits: Any) -> tuple[Troubled, Any, Any]:
    """`limited`, where an error made the lane of consumers that have two messages start over."""
    process, pusher, popper = limited(world, limit_per_key=2, **limits)
    assert popper.pop(10).payloads == [b"a1", b"a2"]
    pusher.push_many([b"a3", b"a4", b"b1"], keys=[b"a", b"a", b"b"])
    process.sleep(1.5)
    process.fails = "COMMIT, after its effect"
    with pytest.raises(BackendError):
        popper.pop(10)
    process.fails = ""
    return process, pusher, popper


def test_a_lane_that_begins_anew_counts_what_its_consumers_have_of_each_key(world: World) -> None:
    process, _, popper = lost(world)
    found = popper.pop(10)
    assert found.payloads == [b"b1"]
    popper.commit(found)
    process.sleep(5.0)
    assert len(popper.pop(10)) == 2, "what its consumers had for a claim timeout counts no more"


def test_who_takes_such_a_lane_over_counts_what_those_consumers_have(world: World) -> None:
    _, _, popper = lost(world)
    popper.commit(popper.pop(10))
    popper.close()
    second = Troubled(world.scheduler, "second")
    other = world.open_client(second).queue("ap").popper("keyed", keep_alive=0)
    assert not other.pop(10)
    second.sleep(5.0)
    assert len(other.pop(10)) == 2


def test_what_waits_long_for_its_retry_counts_no_longer_than_consumers_may_have_it(
    world: World,
) -> None:
    process, _, popper = lost(world, retry_schedule=[60.0])
    popper.commit(popper.pop(10))
    process.sleep(6.0)
    assert popper.pop(10).payloads == [b"a3", b"a4"]


def test_a_popper_that_only_works_after_an_error_keeps_its_lane_from_others(world: World) -> None:
    process, _, popper = lost(world)
    process.sleep(2.5)
    popper.maintain()
    second = Troubled(world.scheduler, "second")
    other = world.open_client(second).queue("ap").popper("keyed", keep_alive=0)
    found = other.pop(10)
    assert not {b"a1", b"a2"} & set(found.payloads), "consumers of the first may have these"


def test_what_becomes_no_dead_letter_yet_is_looked_at_once_a_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, pusher, popper = limited(world, limit_per_key=2, max_deliveries=1)
    popper.commit(popper.pop(10))
    pusher.push(b"a3", key=b"a")
    assert popper.pop(10).payloads == [b"a3"]
    process.sleep(1.5)
    pusher.push(b"b1", key=b"b")
    process.fails = "COMMIT, after its effect"
    with pytest.raises(BackendError):
        popper.pop(10)
    process.fails = ""
    popper.commit(popper.pop(10))
    asked: list[Claim] = []

    def unreadable(row: Claim) -> bool:
        asked.append(row)
        raise ExtentMissingError(row.pipe_id)

    monkeypatch.setattr(popper._claimer, "dead_letter", unreadable)
    process.sleep(5.0)
    for _ in range(10):
        with contextlib.suppress(ExtentMissingError):
            popper.pop(10)
    assert len(asked) == 1
