"""Planted bugs of the replicated store and of sidecars; see `plants`."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.plants import wrong_sidecars as wrong
from tests.simulation.plants.plants import Plant
from tests.simulation.worlds.fleet import FleetScenario, Parts
from tests.simulation.worlds.scenario import draw_scenario
from tests.simulation.worlds.sidecar_world import SidecarWorld


@dataclass(frozen=True)
class SidecarPlant(Plant):
    """fleet: what the sidecars of its scenario are like. made_of: what they are made of."""

    fleet: dict[str, Any] = field(default_factory=dict)
    made_of: Parts = field(default_factory=Parts)

    def world(self, seed: int, *, planted: bool = True, verbose: bool = False) -> SidecarWorld:
        drawn = draw_scenario(random.Random(f"sidecars {seed}"), self.queues)
        scenario = replace(drawn, **(self.shape | {"roles": drawn.roles | self.shape["roles"]}))
        made_of = self.made_of if planted else Parts()
        fleet = FleetScenario(**(FLEET | self.fleet))
        world = SidecarWorld(seed, scenario, fleet=fleet, parts=made_of, verbose=verbose)
        if planted:
            for name, part in self.parts.items():
                setattr(world, name, part)
        return world


FLEET: dict[str, Any] = {"sidecars": 4, "replicas": 3}
PUSHES: dict[str, Any] = {"roles": {"pusher": 3, "reaper": 2}, "switches": 600, "messages": 200}
PAUSES: dict[str, Any] = PUSHES | {"pause_rate": 0.05, "pause_ms": (100, 5000), "fuel": (1, 12)}
TURNS: dict[str, Any] = PAUSES | {"roles": {"pusher": 5, "reaper": 1}, "pause_ms": (5, 60)}
TROUBLE: dict[str, Any] = {"trouble_rate": 0.03, "lost_rate": 0.02, "late_rate": 0.02}
LATE: dict[str, Any] = {"lost_rate": 0.05, "late_rate": 0.1}
BAD: dict[str, Any] = TROUBLE | {"bad": True}
# A replica of each pipe may be damaged, and every sealer hears of it: nothing else befalls them.
SPOILT: dict[str, Any] = {"sidecars": 3, "bad": True}

SIDECAR_PLANTS = [
    SidecarPlant("ack-majority", "what most replicas have is acknowledged", 60,
                 PAUSES, fleet=TROUBLE | LATE, patch=wrong.acks_with_a_majority),
    SidecarPlant("sidecar-unsynced", "a sidecar answers before it has synced", 20,
                 PUSHES, fleet=TROUBLE, made_of=Parts(engine=wrong.NeverSyncsEngine)),
    SidecarPlant("seal-unfenced", "a sealer asks for ends, and fences nobody", 60,
                 TURNS, ["cp"], fleet=LATE, patch=wrong.seals_unfenced),
    SidecarPlant("seal-largest", "a sealer takes the largest end", 60,
                 PAUSES, fleet=BAD | LATE, patch=wrong.seals_at_the_largest_end),
    SidecarPlant("seal-by-one", "a sealer takes the end of any replica", 60,
                 PAUSES, fleet=BAD | LATE, patch=wrong.seals_with_one),
    SidecarPlant("fence-ignored", "a sidecar takes what a fenced writer sends", 60,
                 TURNS, ["cp"], fleet=LATE, made_of=Parts(replica_state=wrong.UnfencedReplicas)),
    SidecarPlant("fence-forgotten", "a sidecar answers a fence, and keeps it not", 60,
                 TURNS, ["cp"], fleet=LATE, made_of=Parts(replica_state=wrong.ForgetfulReplicas)),
    SidecarPlant("damaged-counts", "a damaged replica counts in a seal", 60,
                 PAUSES, fleet=SPOILT, made_of=Parts(replica_state=wrong.ProudReplicas)),
    SidecarPlant("read-unacknowledged", "readers get what a replica has", 40,
                 PAUSES, fleet=LATE, made_of=Parts(replica_state=wrong.EagerReplicas)),
    SidecarPlant("read-one", "a reader never changes over to another replica", 40,
                 PUSHES, fleet=BAD, patch=wrong.reads_one_replica),
]  # fmt: skip
