"""What a lane of a keyed group does at its edges, in short scripted runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from cassq.errors import BackendError
from tests.simulation.worlds.scenario import draw_calm
from tests.simulation.worlds.scheduler import CalmProcess, Scheduler
from tests.simulation.worlds.world import World

TIMEOUT = 1.0


class Troubled(CalmProcess):
    """A process that does as it is told, and cannot write for as long as it is told so."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        super().__init__(scheduler, name)
        self.cannot_write = False

    def fault(self, what: str) -> bool:
        return self.cannot_write and what == "before BEGIN"


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
    first.cannot_write = True
    with pytest.raises(BackendError):
        popper.pop(1)
    first.cannot_write = False
    in_hand = popper.pop(1)
    assert in_hand.payloads == [b"2"]
    first.sleep(0.9 * TIMEOUT)
    assert not other.pop(1)
    popper.commit(in_hand)
