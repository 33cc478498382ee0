"""A place with sidecars in memory that can be repaired: they scrub, copy, and tell of damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.catalog.sqlite import SqliteCatalog
from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars
from cassq.extents.protocol.messages import Code, RefusedError, Replicate, Request, Scrub
from cassq.extents.replicas.fleet import Fleet, ReplicaStanding
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.net.network import SidecarCall
from cassq.extents.sidecar.settings import Settings
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.message.frames import FrameError, Place
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState
from cassq.reaper.actions import Action, Scope
from cassq.reaper.repair import Repair
from cassq.sidecar.care.orphans import OrphanVerb, plan
from cassq.sidecar.engine.port import Replica
from tests.catalog_parts import put_part
from tests.contract.backends import closed_later
from tests.contract.extents.test_extents import frame
from tests.contract.memory_sidecars import MemoryNetwork, MemorySidecar
from tests.contract.reaper.copies import replicated, scrubbed
from tests.contract.rows import make_queue, pipe_row

LEASE_MS = 10_000
AFTER_SECONDS = 600.0
QUEUE = "mail"


class Killed(BaseException):
    """The process ended here."""


class KeptSidecar(MemorySidecar):
    """A sidecar that does all that a repair asks of one. others: all of them, by address."""

    def __init__(self, name: str, zone: str, clock: ManualClock) -> None:
        super().__init__(name, zone, clock)
        self.others: Mapping[str, KeptSidecar] = {}
        self.refuses_copies = False

    def row(self) -> SidecarRow:
        self.replica_state.note_found()
        damaged = sum(bool(each.damage) for each in self.engine.replicas().values())
        return replace(super().row(), lease_ms=LEASE_MS, damaged=damaged)

    def serve(self, requests: Sequence[Request]) -> list[Any]:
        replies: list[Any] = []
        for request in requests:
            if not isinstance(request, Scrub | Replicate):
                replies += super().serve([request])
                continue
            self.asked.append(request)
            try:
                replies.append(self._carried_out(request))
            except RefusedError as exc:
                replies.append(exc)
        return replies

    def look_after(self, catalog: SqliteCatalog) -> None:
        """As its steward: tell of what cannot be what the catalog says."""
        me, ids = ReplicaAt(self.name, self.engine.generation), list(self.engine.replicas())
        for pipe_id, placement in zip(ids, catalog.sidecars.placements_of(ids), strict=True):
            step = plan(self.engine.replicas()[pipe_id], placement, me)
            if step is not None and step.verb is OrphanVerb.DAMAGE:
                self.replica_state.found(pipe_id, step.damage, behind=step.behind)

    def remove(self, pipe_id: str) -> None:
        """Somebody removes an extent from it, who should not."""
        self.engine.drop([pipe_id])
        self.engine.sync()

    def _carried_out(self, request: Scrub | Replicate) -> Any:
        if isinstance(request, Scrub):
            return scrubbed(self.engine, self.replica_state, request)
        if self.refuses_copies:
            raise RefusedError(Code.FULL, "this sidecar is read-only")
        source = self.others[request.source]
        return replicated(self.engine, request, lambda read: source.serve([read])[0])


class WatchedSidecars(SqliteSidecars):
    """Calls `step` before and after what changes something. looked: how often all placements were
    looked at."""

    step: Callable[[], None] = staticmethod(lambda: None)
    looked = 0

    def placements(self) -> Iterator[Placement]:
        self.looked += 1
        return super().placements()

    def change_placement(self, old: Placement, new: Placement) -> bool:
        self.step()
        changed = super().change_placement(old, new)
        self.step()
        return changed


class Reaper:
    """One process that repairs. at: its clock."""

    def __init__(self, place: RepairPlace, rate: int) -> None:
        self.place = place
        self.catalog = closed_later(SqliteCatalog(place.path, place.clock, durable=False))
        self.watched = put_part(self.catalog, WatchedSidecars)
        self.network = MemoryNetwork(place.sidecars, place.clock)
        settings = Settings(repair_after=AFTER_SECONDS, repair_rate=rate)
        ids = Ids()
        self.store = SidecarStore(self.catalog, place.clock, ids, settings, self.network)
        locker = LeaseLocker(self.catalog, ids.client)
        self.ports = Ports(
            *(self.catalog, self.store, locker, place.clock, ids, Lifecycle()),
            upkeep=self.store.upkeep,
        )
        self.scope = Scope(self.ports)
        self.patience = 1.0
        self.repair = Repair(self.ports, lambda: self.patience)

    def each_step(self, step: Callable[[], None]) -> None:
        """Have `step` called before each exchange, and around each change of a placement."""

        def before(calls: Sequence[SidecarCall]) -> None:
            step()

        self.network.before_exchange = before
        self.watched.step = step

    def run(self, *, dry_run: bool = False) -> list[tuple[str, str, str]]:
        """One pass: of each action its subject, outcome and detail."""
        return [_told(action) for action in self.repair.run(self.scope, dry_run=dry_run)]

    def until_done(self, passes: int = 40) -> list[tuple[str, str, str]]:
        """Passes until one has nothing to do, a second after another; what they did."""
        steps: list[tuple[str, str, str]] = []
        for _ in range(passes):
            found = self.run()
            steps += found
            self.place.pass_time(1.0)
            if not found and not self.repair.unfinished:
                return steps
        raise AssertionError(f"it does not end: {steps}")


def _told(action: Action) -> tuple[str, str, str]:
    return action.subject, action.outcome, action.detail


class RepairPlace:
    """Sidecars s1, s2 … in memory, one in each zone; by default every extent is on three."""

    def __init__(self, directory: Path, sidecars: int = 5) -> None:
        self.path = directory / "catalog.sqlite"
        self.clock = ManualClock()
        self.catalog = closed_later(SqliteCatalog(self.path, self.clock, durable=False))
        make_queue(self.catalog, QUEUE)
        names = [f"s{number}" for number in range(1, sidecars + 1)]
        self.sidecars = [KeptSidecar(name, f"zone-{name}", self.clock) for name in names]
        for sidecar in self.sidecars:
            sidecar.others = {each.row().address: each for each in self.sidecars}
        self.beat()

    def __getitem__(self, name: str) -> KeptSidecar:
        return next(sidecar for sidecar in self.sidecars if sidecar.name == name)

    def beat(self) -> None:
        for sidecar in self.sidecars:
            if not sidecar.down:
                self.catalog.sidecars.beat(sidecar.row())

    def pass_time(self, seconds: float) -> None:
        """Time passes, and who is there tells so."""
        self.clock.advance(seconds)
        for sidecar in self.sidecars:
            if not sidecar.down:
                sidecar.look_after(self.catalog)
        self.beat()

    def reaper(self, rate: int = 1 << 40) -> Reaper:
        return Reaper(self, rate)

    def stored(
        self, pipe_id: str, name: str, *, frames: int = 5, sealed: bool = True, size: int = 0
    ) -> ReplicaAt:
        """A replica on a sidecar, of three messages a frame. size: of its payloads."""
        engine, end = self[name].engine, 3 * frames
        engine.create(Replica(pipe_id, QUEUE, False, 0, 1))
        for base in range(0, end, 3):
            engine.append(pipe_id, base, 3, b"".join(frame(base, 3, pipe_id, size)), base)
        if sealed:
            engine.note(pipe_id, fenced=True, final=end)
        engine.sync()
        return ReplicaAt(name, engine.generation)

    def pushed(
        self,
        pipe_id: str,
        *names: str,
        frames: int = 5,
        sealed: bool = True,
        begun: bool = False,
    ) -> Placement:
        """An extent on these sidecars, see `stored`; its pipe has a row, unless it is sealed, where
        nobody looks for one, or `begun` and no more."""
        end = 3 * frames
        assert sealed or begun or self.catalog.pipes.add(pipe_row(pipe_id, QUEUE))
        replicas = tuple(self.stored(pipe_id, name, frames=frames, sealed=sealed) for name in names)
        placed = end if sealed else None
        placement = Placement(pipe_id, QUEUE, False, replicas, 3, f"made-{pipe_id}", 0, placed)
        assert self.catalog.sidecars.add_placement(placement)
        return placement

    def seal(self, pipe_id: str) -> None:
        """Seal an extent at what is there."""
        placement = self.catalog.sidecars.placements_of([pipe_id])[0]
        assert placement is not None
        end = max(each.end for name in self.where(pipe_id) if (each := self[name].replica(pipe_id)))
        assert self.catalog.sidecars.change_placement(
            placement, replace(placement, end=end, version="end")
        )

    def where(self, pipe_id: str) -> list[str]:
        """The sidecars where an extent is, as its placement says."""
        placement = self.catalog.sidecars.placements_of([pipe_id])[0]
        return [] if placement is None else sorted(each.sidecar for each in placement.replicas)

    def whole(self, pipe_id: str) -> list[str]:
        """The sidecars that are named by the placement, live, and have every frame of it."""
        placement = self.catalog.sidecars.placements_of([pipe_id])[0]
        assert placement is not None
        assert placement.end is not None
        return sorted(each.sidecar for each in placement.replicas if self._has_all(each, placement))

    def _has_all(self, at: ReplicaAt, placement: Placement) -> bool:
        there = self[at.sidecar]
        replica = there.replica(placement.pipe_id)
        if there.down or there.engine.generation != at.generation or replica is None:
            return False
        if replica.copying or replica.damage or replica.final != placement.end:
            return False
        try:
            bodies = there.engine.read(placement.pipe_id, 0, replica.end, 1 << 30, 1 << 30)
        except FrameError:
            return False
        desired = [b"".join(frame(base, 3, placement.pipe_id)) for base in range(0, replica.end, 3)]
        return bodies == desired

    def read(self, pipe_id: str) -> int:
        """How many messages a new client reads of a sealed extent."""
        store = self.reaper().store
        placement = self.catalog.sidecars.placements_of([pipe_id])[0]
        assert placement is not None
        assert placement.end is not None
        reader, at, count = store.reader(pipe_id), Place(0, 0), 0
        while at.seq < placement.end:
            slices = reader.read(at, placement.end, 1 << 20, 1 << 20)
            count += sum(last - first for _, first, last in slices)
            at = reader.place_after(at, slices)
        return count

    def away_for(self, name: str, seconds: float) -> None:
        """A sidecar goes, and has been away for so long."""
        self[name].down = True
        for _ in range(2):
            self.pass_time(seconds / 2)


def good(fleet: Fleet, placement: Placement) -> int:
    """How many replicas of a placement are good as far as the catalog tells."""
    standings = fleet.state_of(placement).standings.values()
    return sum(each in (ReplicaStanding.GOOD, ReplicaStanding.LEAVING) for each in standings)


DRAINING, GONE, UP = SidecarState.DRAINING, SidecarState.GONE, SidecarState.UP
