"""A world in which one group of each queue limits how many messages of a key are in hand, or how
often one comes: in the order of keys or not, fair or not, in one lane or several."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.simulation.worlds.scenario import (
    Scenario,
    draw_calm,
    draw_scenario,
    with_desk,
    with_key_lanes,
    with_key_limits,
    with_keys,
    with_receipts,
)
from tests.simulation.worlds.world import World


class KeyedWorld(World):
    """One run."""

    option = " --only keys"

    def __init__(
        self, seed: int, scenario: Scenario | None = None, *, verbose: bool = False
    ) -> None:
        super().__init__(seed, scenario or draw_keyed(seed), verbose=verbose)


def draw_keyed(seed: int) -> Scenario:
    """A scenario of this seed. In a quarter of them nothing fails; in every third one there are
    clerks, dedup ids, dead letters and limits of queues too."""
    rng = random.Random(f"key limits {seed}")
    in_lanes, by_receipt = rng.random() < 0.3, rng.random() < 0.3
    if rng.random() < 0.25:
        drawn = replace(draw_calm(rng), delayed=0.2, threads=0, waiting=rng.choice((0.0, 0.5)))
        timeout = {"claim_timeout": rng.choice((1.0, 30.0))}
        policy = {name: settings | timeout for name, settings in drawn.policy.items()}
        scenario = replace(drawn, policy=policy)
    else:
        scenario = draw_scenario(rng, ["ap"] if in_lanes else None)
    scenario = with_keys(with_desk(scenario, rng) if seed % 3 == 2 else scenario, rng)
    scenario = with_receipts(scenario, rng) if by_receipt else scenario
    scenario = with_key_limits(scenario, rng)
    return with_key_lanes(scenario, rng) if in_lanes else scenario
