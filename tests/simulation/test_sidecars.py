"""The simulation of the replicated store as tests: a short run, and the planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.planted import check_caught, check_determined, params, seeds
from tests.simulation.plants.sidecar_plants import SIDECAR_PLANTS, SidecarPlant
from tests.simulation.run import run_seed
from tests.simulation.worlds.sidecar_world import SidecarWorld

# The last found something.
SEEDS = [*seeds(25, 15), 465]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_whatever_happens_to_sidecars(seed: int) -> None:
    failure = run_seed(seed, kind=SidecarWorld)
    assert failure is None, str(failure)


@pytest.mark.parametrize("plant", params(SIDECAR_PLANTS))
def test_a_planted_bug_is_caught(plant: SidecarPlant) -> None:
    """And the seed that catches it passes without it."""
    check_caught(plant)


def test_a_seed_determines_the_run() -> None:
    check_determined(lambda: SidecarWorld(5))
