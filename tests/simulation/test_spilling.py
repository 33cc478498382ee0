"""The simulation of spilling as tests: a short run, and the planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.planted import check_caught, check_determined, params, seeds
from tests.simulation.plants.spill_plants import SPILL_PLANTS, SpillPlant
from tests.simulation.run import run_seed
from tests.simulation.worlds.spill_world import SpillWorld

SEEDS = seeds(8, 6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_whichever_side_is_cut_off(seed: int) -> None:
    failure = run_seed(seed, kind=SpillWorld)
    assert failure is None, str(failure)


@pytest.mark.parametrize("plant", params(SPILL_PLANTS))
def test_a_planted_bug_is_caught(plant: SpillPlant) -> None:
    """And the seed that catches it passes without it."""
    check_caught(plant)


def test_a_seed_determines_the_run() -> None:
    check_determined(lambda: SpillWorld(5))
