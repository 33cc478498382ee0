"""A world whose pipes are on sidecars: the replicated store over simulated ones."""

from __future__ import annotations

import random
from dataclasses import replace

from cassq.base.ids import Ids
from cassq.client.backends.embedded import Embedded
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.reader import SLICE_BYTES
from cassq.extents.sidecar.settings import Settings
from cassq.lifecycle.ports import Ports
from cassq.locks.lease import LeaseLocker
from cassq.message.frames import FrameError
from cassq.sidecar.engine.port import Engine
from tests.simulation.actors.client import SimDoorbell, SteppedClient
from tests.simulation.checks.ledger import BrokenPromiseError
from tests.simulation.worlds.fleet import Fleet, FleetScenario, Parts, draw_fleet
from tests.simulation.worlds.pieces import in_pieces
from tests.simulation.worlds.scenario import Scenario, draw_scenario, with_breadth, with_desk
from tests.simulation.worlds.scheduler import CalmProcess, Process, ProcessClock
from tests.simulation.worlds.simnetwork import SimNetwork
from tests.simulation.worlds.slow_work import draw_bounds
from tests.simulation.worlds.world import World

PATIENCE_SECONDS = 2.0
STRAY_SECONDS = 2 * 3600.0


class SidecarWorld(World):
    """One run. parts: what its sidecars are made of."""

    sidecar_store_class = SidecarStore
    network_class = SimNetwork
    option = " --only sidecars"
    ends_lag = True

    def __init__(
        self,
        seed: int,
        scenario: Scenario | None = None,
        *,
        fleet: FleetScenario | None = None,
        parts: Parts | None = None,
        verbose: bool = False,
    ) -> None:
        rng = random.Random(f"sidecars {seed}")
        if scenario is None:
            scenario = with_desk(draw_scenario(rng), rng)
            scenario = with_breadth(scenario, random.Random(f"breadth {seed}"))
        # Placements are in the catalog alone; and between two steps a pipe may be out of reach.
        super().__init__(seed, replace(scenario, catalog_lost=False, audits=0), verbose=verbose)
        drawn = fleet or draw_fleet(rng)
        bounds = draw_bounds(random.Random(f"bounds {seed}"))
        self.fleet = Fleet(drawn, self.scheduler, rng, parts or Parts(), bounds)
        hand = CalmProcess(self.scheduler, "fleet")
        self._hand = self.catalog(ProcessClock(hand), hand, self.commits)

    def open_client(self, process: Process) -> SteppedClient:
        """What `cassq.connect` does for a directory with `store=sidecar`."""
        clock = ProcessClock(process)
        ids = Ids(random.Random(process.rng.getrandbits(64)))
        catalog = self.catalog(clock, process, self.commits)
        settings = Settings(self.fleet.scenario.replicas, patience=PATIENCE_SECONDS)
        network = self.network_class(process, self.fleet)
        # In every other world slices have one frame, and the next is read ahead.
        slice_bytes = 1 if self.seed % 2 else SLICE_BYTES
        kind = in_pieces(self.sidecar_store_class, self.scenario)
        store = kind(*(catalog, clock, ids, settings, network), slice_bytes=slice_bytes)
        life = self.life_of(process, catalog)
        locker = LeaseLocker(catalog, ids.client)
        ports = Ports(catalog, store, locker, clock, ids, life, upkeep=store.upkeep)
        embedded = Embedded(ports, lambda _: SimDoorbell(process), catalog.abandon)
        client = self.client_class(embedded, process)
        self._clients.append(client)
        return client

    def stored(self, pipe_id: str, end_seq: int) -> bytes:
        """From the replica that has most of what is good."""
        (placement,) = self._hand.sidecars.placements_of([pipe_id])
        found = [b""]
        for replica in placement.replicas if placement is not None else ():
            engine = self.fleet.sidecars[replica.sidecar].engine
            if engine.generation == replica.generation and pipe_id in engine.replicas():
                found.append(_good_frames(engine, pipe_id, end_seq))
        return max(found, key=len)

    @property
    def calm(self) -> bool:
        return super().calm and self.fleet.scenario.calm

    def _set_up(self) -> None:
        self.fleet.beat(self._hand)
        super()._set_up()

    def befall(self) -> None:
        self.fleet.befall(self._hand)

    def cut_power(self) -> None:
        super().cut_power()
        self.fleet.cut_power()
        self.fleet.beat(self._hand)

    def mend(self) -> None:
        self.fleet.mend()
        self.fleet.beat(self._hand)

    def heal(self) -> None:
        super().heal()
        self._sweep_strays()

    def _sweep_strays(self) -> None:
        """Extents that never had a pipe's row are gone in the end."""
        client = self.open_client(CalmProcess(self.scheduler, "sweeper"))
        self.scheduler.clock.advance(STRAY_SECONDS)
        client.reaper.reap([queue._row for queue in client.queues()])
        client.close()
        left = [at.pipe_id for at in self._hand.sidecars.placements()]
        if left:
            raise BrokenPromiseError(f"extents are left over: {left}")


def _good_frames(engine: Engine, pipe_id: str, end_seq: int) -> bytes:
    """The frames of a replica up to the first that is damaged."""
    try:
        return b"".join(engine.read(pipe_id, 0, end_seq, 1 << 40, 1 << 40))
    except FrameError:
        return b""
