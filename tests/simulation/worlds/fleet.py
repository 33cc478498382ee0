"""The simulated sidecars: shelves over engines that forget, and what befalls them.

At most one of them is *bad*: it loses its data directory, or what it had synced of an extent (and
sees it), or a sealed extent as a whole (and does not), or bits of frames turn over there. All of
them crash, stand still, drain and are full at times. What was sent to one that does not answer
may come to it at any later time, once or, if it was sent again, twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cassq.catalog.port import Catalog
from cassq.errors import BackendError, BackendUnavailableError
from cassq.extents.protocol.messages import RefusedError, Replicate, Request, Scrub
from cassq.model.sidecar_rows import Placement, SidecarRow
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.replica_state import ReplicaState
from cassq.sidecar.sessions.dispatcher import refusal_of
from tests.simulation.worlds.memory_engine import MemoryEngine, row_of
from tests.simulation.worlds.scheduler import Scheduler
from tests.simulation.worlds.slow_work import Bounds, SlowWork

STATES = ("crash", "stop", "drain", "full")


@dataclass
class FleetScenario:
    """How many sidecars there are, and how often what befalls them: per switch of the scheduler,
    or per call. bad: whether one of them loses its data."""

    sidecars: int
    replicas: int
    trouble_rate: float = 0.0
    lost_rate: float = 0.0  # calls, or their replies
    late_rate: float = 0.0  # calls that come later, when nobody waits for them any more
    slow_rate: float = 0.0
    bad: bool = False
    away_ms: tuple[int, int] = (10, 3000)

    @property
    def calm(self) -> bool:
        """Whether nothing happens to any of them."""
        return not (self.trouble_rate or self.lost_rate or self.late_rate or self.slow_rate)


def draw_fleet(rng: random.Random) -> FleetScenario:
    """Of a seed."""
    sidecars = rng.choice((3, 3, 4, 5))
    replicas = rng.choice((1, 2, 3, 3, 3, 3))
    if rng.random() < 0.1:
        return FleetScenario(sidecars, replicas)
    return FleetScenario(
        sidecars,
        replicas,
        trouble_rate=rng.choice((0.002, 0.01, 0.03)),
        lost_rate=rng.choice((0.0, 0.002, 0.02)),
        late_rate=rng.choice((0.0, 0.002, 0.02)),
        slow_rate=rng.choice((0.0, 0.01)),
        bad=replicas == 3 and rng.random() < 0.5,
        away_ms=rng.choice(((10, 300), (100, 3000), (1000, 8000))),
    )


class SidecarCrashedError(Exception):
    """The process of a sidecar that did something is no more."""


class SimSidecar:
    """One sidecar. until_ms: when it is well again; run: which process of it this is."""

    replica_state_class = ReplicaState
    engine_class = MemoryEngine

    def __init__(
        self, name: str, zone: str, scheduler: Scheduler, parts: Parts, bounds: Bounds
    ) -> None:
        self.name = name
        self.zone = zone
        self._scheduler = scheduler
        self._clock = scheduler.clock
        self._bounds = bounds
        self._parts = parts
        self.engine = parts.engine(f"{name}-1")
        self.run = 0
        self.down = self.stopped = False
        self.until_ms: int | None = None
        self.late: list[Sequence[Request]] = []
        self.others: Mapping[str, SimSidecar] = {}  # by address
        self.start()

    def start(self) -> None:
        """A process of it begins."""
        self.run += 1
        run, clock = self.run, self._clock

        def moment() -> None:
            self._scheduler.moment()
            if self.run != run:
                raise SidecarCrashedError(self.name)

        self.replica_state = self._parts.replica_state(self.engine, clock.wall_ms, clock.boot_ms)
        self._slow = SlowWork(
            self.engine, self.replica_state, clock, self._bounds, moment, self._ask
        )

    def lose_directory(self) -> None:
        """Its data directory is gone, and a new one made."""
        number = int(self.engine.generation.rpartition("-")[2])
        self.engine = self._parts.engine(f"{self.name}-{number + 1}")
        self.start()

    def handle(self, request: Request) -> tuple[Any, bool]:
        """The reply, or why there is none, and whether it may be told only after a sync."""
        try:
            if isinstance(request, Scrub | Replicate):
                return self._slow.carry_out(request), False
            outcome = self.replica_state.handle(request)
        except SidecarCrashedError:
            return BackendUnavailableError(f"{self.name} crashed meanwhile"), False
        except RefusedError as exc:
            return exc, False
        except BackendError as exc:  # of a copy: the replica_state tells of its own
            return refusal_of(exc), False
        return outcome.reply, outcome.durable

    def _ask(self, address: str, request: Request) -> Any:
        return self.others[address].answer(request)

    def answer(self, request: Request) -> Any:
        """The reply or refusal to another sidecar; None when there is none."""
        if self.down or self.stopped:
            return None
        return self.handle(request)[0]

    def row(self) -> SidecarRow:
        """As it tells of itself."""
        self.replica_state.note_found()
        damaged = sum(bool(each.damage) for each in self.engine.replicas().values())
        return row_of(self.engine, self.name, self.zone, damaged=damaged)


@dataclass
class Parts:
    """What sidecars are made of."""

    engine: Callable[[str], MemoryEngine] = MemoryEngine
    replica_state: Callable[[Engine, Callable[[], int], Callable[[], int]], ReplicaState] = (
        ReplicaState
    )


class Fleet:
    """All sidecars of a world. catalog: opened by the world's own hand."""

    def __init__(
        self,
        scenario: FleetScenario,
        scheduler: Scheduler,
        rng: random.Random,
        parts: Parts,
        bounds: Bounds,
    ) -> None:
        self.scenario = scenario
        self.rng = rng
        self.healing = False
        self._scheduler = scheduler
        zones = rng.choice((1, 2, scenario.sidecars))
        self.sidecars = {
            f"s{number}": SimSidecar(f"s{number}", f"z{number % zones}", scheduler, parts, bounds)
            for number in range(scenario.sidecars)
        }
        by_address = {sidecar.row().address: sidecar for sidecar in self.sidecars.values()}
        for sidecar in self.sidecars.values():
            sidecar.others = by_address
        self._bad = self.sidecars["s0"] if scenario.bad else None

    def beat(self, catalog: Catalog) -> None:
        """All that are there tell of themselves."""
        for sidecar in self.sidecars.values():
            if not sidecar.down and not sidecar.stopped:
                catalog.sidecars.beat(sidecar.row())

    def befall(self, catalog: Catalog) -> None:
        """A moment passes."""
        rng, scenario = self.rng, self.scenario
        now_ms = self._scheduler.clock.boot_ms()
        for sidecar in self.sidecars.values():
            if sidecar.until_ms is not None and sidecar.until_ms <= now_ms:
                self._recover(sidecar, catalog)
            if sidecar.late and rng.random() < 0.05:
                self.deliver(sidecar)
        if rng.random() < scenario.trouble_rate:
            self._trouble(rng.choice(list(self.sidecars.values())))
        if self._bad is not None and rng.random() < 0.01:
            self._spoil(self._bad, catalog)

    def deliver(self, sidecar: SimSidecar) -> None:
        """A call that is late comes to a sidecar, if it listens; nobody hears its answer."""
        if sidecar.down or sidecar.stopped:
            return
        requests = sidecar.late.pop(self.rng.randrange(len(sidecar.late)))
        self._note(sidecar, f"gets late {requests}")
        for request in requests:
            sidecar.handle(request)

    def _trouble(self, sidecar: SimSidecar) -> None:
        if sidecar.until_ms is not None:
            return
        rng = self.rng
        what = rng.choice(STATES)
        match what:
            case "crash":
                sidecar.engine.crash(rng)
                sidecar.start()
                sidecar.down = True
            case "stop":
                sidecar.stopped = True
            case "drain":
                sidecar.replica_state.draining = True
            case "full":
                sidecar.engine.free_min = sidecar.engine.free + 1
        sidecar.until_ms = self._scheduler.clock.boot_ms() + rng.randint(*self.scenario.away_ms)
        self._note(sidecar, what.upper())

    def _recover(self, sidecar: SimSidecar, catalog: Catalog | None) -> None:
        sidecar.until_ms = None
        sidecar.down = sidecar.stopped = sidecar.replica_state.draining = False
        sidecar.engine.free_min = 0
        self._note(sidecar, "is well")
        if catalog is not None:
            catalog.sidecars.beat(sidecar.row())

    def _spoil(self, bad: SimSidecar, catalog: Catalog) -> None:
        """It loses a bit, or all it has; but nothing of which too few others have enough."""
        mine = [
            at
            for at in catalog.sidecars.placements()
            if bad.name in {r.sidecar for r in at.replicas}
        ]
        if self.rng.random() < 0.3:
            if all(map(self._is_spare, mine)):
                self._note(bad, "LOSES ITS DATA")
                bad.lose_directory()
                bad.down = bad.stopped = False
                bad.until_ms = None
                catalog.sidecars.beat(bad.row())
                self._bad = None
            return
        replicas = bad.engine.replicas()
        spare = [at for at in mine if self._is_spare(at) and at.pipe_id in replicas]
        if not spare:
            return
        pipe_id = self.rng.choice(sorted(at.pipe_id for at in spare))
        is_sealed = any(at.end is not None for at in spare if at.pipe_id == pipe_id)
        bases = bad.engine._live[pipe_id].bases
        if not bases:
            return
        base_seq = self.rng.choice(bases)
        what = self.rng.random()
        if what < 0.3 and is_sealed:
            self._note(bad, f"{pipe_id} IS REMOVED")
            bad.engine.drop([pipe_id])
            bad.engine.sync()
        elif what < 0.5:
            self._note(bad, f"A BIT FLIPS in {pipe_id} at {base_seq}")
            bad.engine.flip(pipe_id, base_seq)
        else:
            self._note(bad, f"LOSES {pipe_id} from {base_seq} on")
            bad.engine.lose(pipe_id, base_seq)

    def _is_spare(self, at: Placement) -> bool:
        """Whether an extent can do without a replica: what is sealed is whole on a majority, and
        what is not has to be sealed by one."""
        return len(at.replicas) > (1 if at.end is not None else 2)

    def cut_power(self) -> None:
        """Some lose power with all the others."""
        for sidecar in self.sidecars.values():
            if self.rng.random() < 0.5:
                sidecar.engine.crash(self.rng)
                sidecar.start()
                self._note(sidecar, "POWER CUT")
            sidecar.until_ms = 0 if sidecar.until_ms is not None else None  # it was another boot

    def mend(self) -> None:
        """They are well from now on; all that is late comes at last."""
        self.healing = True
        for sidecar in self.sidecars.values():
            self._recover(sidecar, None)
            while sidecar.late:
                self.deliver(sidecar)

    def _note(self, sidecar: SimSidecar, what: str) -> None:
        self._scheduler.note(None, f"{sidecar.name} {what}")
