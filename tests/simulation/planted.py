"""What is asked of planted bugs and of seeds, whatever the worlds are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.plants.plants import Plant
from tests.simulation.plants.sidecar_plants import SidecarPlant
from tests.simulation.run import run_seed, run_world
from tests.simulation.worlds.world import World


def check_caught(plant: Plant | SidecarPlant) -> None:
    """It is caught within its seeds, and the seed that catches it passes without it."""
    for seed in range(plant.seeds):
        if run_seed(seed, plant) is not None:
            break
    else:
        pytest.fail(f"not caught in {plant.seeds} seeds: {plant.what}")
    failure = run_world(plant.world(seed, planted=False))
    assert failure is None, str(failure)


def check_determined(make: Callable[[], World]) -> None:
    """A world made twice goes the same way."""
    traces = []
    for _ in range(2):
        world = make()
        assert run_world(world) is None
        traces.append(list(world.scheduler.trace))
    assert traces[0] == traces[1]
