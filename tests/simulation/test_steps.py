"""The simulation of tasks with steps as tests: a short run, and the planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.planted import check_caught, check_determined, params, seeds
from tests.simulation.run import run_world
from tests.simulation.tasks.step_plants import STEP_PLANTS, StepPlant
from tests.simulation.tasks.step_world import StepWorld

SEEDS = seeds(40, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_step_runs_twice_and_no_task_is_lost(seed: int) -> None:
    world = StepWorld(seed)
    failure = run_world(world)
    assert failure is None, str(failure)
    assert world.over | world.cancelled, "no task came to its end"


@pytest.mark.parametrize("plant", params(STEP_PLANTS))
def test_a_planted_bug_is_caught(plant: StepPlant) -> None:
    """And the seed that catches it passes without it."""
    check_caught(plant)


def test_a_seed_determines_the_run() -> None:
    check_determined(lambda: StepWorld(5))
