"""The simulation of schedules as tests: a short run, and the planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.planted import check_caught, check_determined, params, seeds
from tests.simulation.plants.schedule_plants import SCHEDULE_PLANTS, SchedulePlant
from tests.simulation.run import run_world
from tests.simulation.worlds.schedule_world import ScheduleWorld

SEEDS = seeds(15, 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_tick_is_one_message(seed: int) -> None:
    world = ScheduleWorld(seed)
    failure = run_world(world)
    assert failure is None, str(failure)
    assert world.seen or world.scenario.jump_rate, "there were no ticks"


@pytest.mark.parametrize("plant", params(SCHEDULE_PLANTS))
def test_a_planted_bug_is_caught(plant: SchedulePlant) -> None:
    """And the seed that catches it passes without it."""
    check_caught(plant)


def test_a_seed_determines_the_run() -> None:
    check_determined(lambda: ScheduleWorld(5))
