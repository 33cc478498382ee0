"""What is asked of planted bugs and of seeds, whatever the worlds are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulation.plants.plants import Plant
from tests.simulation.plants.sidecar_plants import SidecarPlant
from tests.simulation.run import run_seed, run_world
from tests.simulation.worlds.world import World

# Plants that take longest to be caught, in seconds of a processor.
SLOW = {
    "dated-forgotten-at-take-over": 24,
    "end-overwritten": 40, "publish-unfenced": 30, "seal-by-one": 18, "ack-majority": 16,
    "seal-largest": 13, "losers-kept": 13, "spill-unnoted": 11, "ack-fenced": 11,
    "no-directory-sync": 10, "damaged-counts": 7, "deadline-of-all": 7, "seal-in-the-middle": 7,
    "seal-unseen": 6, "cancel-delivered": 6, "spill-unsynced": 6, "read-one": 5,
    "merge-doubles": 5, "merge-loses": 5, "key-forgotten-at-take-over": 50, "seal-unfenced": 15,
    "dead-twice": 15, "spill-blind": 11, "take-over-uncounted": 12, "dated-given-back": 9,
    "successor-early": 9, "key-let-go": 6,
}  # fmt: skip


def params(plants: Sequence[Plant | SidecarPlant]) -> list[Any]:
    """Plants as parameters of a test; the slow ones are not for the gate."""
    return [
        pytest.param(
            plant,
            id=plant.name,
            marks=[pytest.mark.long(reason=f"{SLOW[plant.name]} s until it is caught")]
            if plant.name in SLOW
            else [],
        )
        for plant in plants
    ]


def seeds(count: int, in_the_gate: int) -> list[Any]:
    """Seeds from 0 on as parameters of a test; the gate runs the first of them."""
    more = pytest.mark.long(reason="more seeds of the same")
    return [
        *range(in_the_gate),
        *(pytest.param(seed, marks=more) for seed in range(in_the_gate, count)),
    ]


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
