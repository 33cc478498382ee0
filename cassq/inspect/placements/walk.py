"""The walk: checks the placements of all extents for those that need repair.

A walk begins for a reason, continues at each pass for some time, and ends with a round that is
recorded for all reapers (`cassq.inspect.placements.rounds`). The reasons are:

- the states of sidecars differ from those at the last round
- the last round left work to do
- the last round found extents that could not be repaired, and now other sidecars take extents
- since the last round began, extents were sealed with too few good replicas, or a sidecar found
  damage (`cassq.extents.replicas.shortages`)
- the last round is a minute old, and found unsealed extents; or a sidecar is being drained
- the last round is an hour old

While a reaper has findings of its own, work left by the last round is not a reason: the reaper has
found it already, or the client that made that round is repairing it. An extent whose repair fails
is left for half a minute, while others are repaired.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from cassq.extents.replicas.fleet import Fleet, Need, ReplicaSet, ReplicaStanding
from cassq.extents.replicas.shortages import shortage_since
from cassq.extents.replicas.upkeep import Upkeep
from cassq.inspect.placements.rounds import AGAIN_MS, Round, last_round, note
from cassq.lifecycle.ports import Ports
from cassq.model.sidecar_rows import Placement, ReplicaAt

PAGE = 250
FOUND_MAX = 1000
# How often to check whether another walk is due, and which replicas are damaged.
LOOK_MS = 2_000
# How soon to walk again for unsealed extents, since a sealer may die before it notes a shortage;
# for extents placed on a sidecar before all clients knew that it drains; and for work that the last
# round left, by a reaper that has found other work or failed with all of it.
SOON_MS = 60_000
# How long to leave an extent whose repair failed.
LATER_MS = 30_000


class Walk:
    """A walk, and the findings of one reaper. Not thread-safe.

    found: placements that need repair, or did when they were checked. failed: placements left
    until the given boot time; those beyond `FOUND_MAX` are forgotten until they are found again.
    damaged, missing: replicas that sidecars report as such, by pipe id.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._pages: Iterator[Placement] | None = None
        self._states: list[list[str]] | None = None
        self._look_at_ms = 0  # boot time
        self._began_ms = 0
        self._counts: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self.found: dict[str, Placement] = {}
        self.failed: dict[str, tuple[int, Placement]] = {}
        self.damaged: Mapping[str, Sequence[ReplicaAt]] = {}
        self.missing: dict[str, Sequence[ReplicaAt]] = {}

    @property
    def going(self) -> bool:
        """Whether placements are left to check."""
        return self._pages is not None and len(self.found) < FOUND_MAX

    def look_time(self, fleet: Fleet) -> bool:
        """Whether it is time to ask for damaged replicas and to consider a new walk. Cost: none."""
        now_ms, states = self._ports.clock.boot_ms(), fleet.states()
        if states == self._states and now_ms < self._look_at_ms:
            return False
        if states != self._states:
            # The findings depend on the states of the sidecars.
            self._states, self._pages = states, None
            self.found.clear()
            self.failed.clear()
            self.missing.clear()
        self._look_at_ms = now_ms + LOOK_MS
        return True

    def begin_if_due(self, fleet: Fleet) -> None:
        """Begin a walk if none is going on and there is a reason. Cost: two reads."""
        if self._pages is not None:
            return
        last = last_round(self._catalog)
        if (
            last is None
            or is_due(last, fleet, self._left_ms(last))
            or shortage_since(self._catalog, last.began_ms)
        ):
            self._begin()

    def _left_ms(self, last: Round) -> int:
        """How old a round must be before work that it left is a reason to walk. If this reaper made
        the round, it knows all of that work and is doing it: there is nothing more to find."""
        if not self.found and not self.failed:
            return 0
        return AGAIN_MS if self.found and last.began_ms == self._began_ms else SOON_MS

    def _begin(self) -> None:
        self._began_ms = self._catalog.now_ms()
        self._pages = self._catalog.sidecars.placements()
        self._counts.clear()
        self._left.clear()

    def add_damaged(self, fleet: Fleet, damaged: Mapping[str, Sequence[ReplicaAt]]) -> None:
        """Record the replicas that sidecars report as damaged. Cost: a read.

        Extents for which nothing can be done are left out: a sidecar may go on reporting a replica
        for ever after it was replaced elsewhere.
        """
        self.damaged = damaged
        known = self.found.keys() | self.failed.keys()
        ids = [pipe_id for pipe_id in damaged if pipe_id not in known]
        for placement in self._catalog.sidecars.placements_of(ids) if ids else ():
            if placement is None:
                continue
            if fleet.state_of(placement, damaged[placement.pipe_id]).need is not None:
                self.found[placement.pipe_id] = placement

    def go_on(self, upkeep: Upkeep, fleet: Fleet, until_ms: int) -> Round | None:
        """Check more placements; return the round if they were the last. until_ms: boot time.
        Cost: at least one page of placements; `Upkeep.missing` for each page."""
        while self._pages is not None and len(self.found) < FOUND_MAX:
            page = list(islice(self._pages, PAGE))
            missing = upkeep.missing(fleet, page)
            for placement in page:
                self._see(fleet, placement, missing.get(placement.pipe_id, ()))
            if len(page) < PAGE:
                self._pages = None
                return self._round(fleet)
            if self._ports.clock.boot_ms() >= until_ms:
                break
        return None

    def _see(self, fleet: Fleet, placement: Placement, missing: Sequence[ReplicaAt]) -> None:
        pipe_id = placement.pipe_id
        state = fleet.state_of(placement, self.damaged.get(pipe_id, ()), missing)
        sealed = _if_sealed(fleet, placement) if placement.end is None else None
        self._counts["extents"] += 1
        if sealed is None or not self._is_begun(placement, sealed):
            self._count(placement, state, missing)
            self._counts["unsealed"] += sealed is not None and sealed.need is not None
        for replica, standing in state.standings.items():
            if standing in (ReplicaStanding.LEAVING, ReplicaStanding.LOST):
                self._left[replica.sidecar] += 1

    def _count(self, placement: Placement, state: ReplicaSet, missing: Sequence[ReplicaAt]) -> None:
        pipe_id = placement.pipe_id
        self._counts["short"] += state.short > 0
        self._counts["unreadable"] += not state.readable
        if state.need is not None:
            self._learn(pipe_id, missing)
            if pipe_id in self.failed:
                self.failed[pipe_id] = self.failed[pipe_id][0], placement
            else:
                self.found[pipe_id] = placement
        elif state.short:
            self._counts["stuck"] += 1

    def _is_begun(self, placement: Placement, sealed: ReplicaSet) -> bool:
        """Whether an extent lacks replicas but has no pipe row, because its pusher died in
        between: it is empty, and the sweep pass removes it. sealed: its state if it was sealed.
        Cost: a read if it will need something once sealed."""
        if not sealed.short and sealed.need is None:
            return False
        return self._catalog.pipes.by_id(placement.pipe_id) is None

    def _learn(self, pipe_id: str, missing: Sequence[ReplicaAt]) -> None:
        self.missing.pop(pipe_id, None)
        if missing:
            self.missing[pipe_id] = missing

    def _round(self, fleet: Fleet) -> Round:
        kinds = ("extents", "short", "stuck", "unsealed", "unreadable")
        counts = {kind: self._counts[kind] for kind in kinds}
        made = Round(
            at_ms=self._catalog.now_ms(),
            sidecars=fleet.states(),
            takers=fleet.takers(),
            open=len(self.found) + len(self.failed),
            left=dict(self._left),
            began_ms=self._began_ms,
            **counts,
        )
        note(self._catalog, made)
        return made

    def needs(self, fleet: Fleet) -> list[Need]:
        """What the found extents need now; those that need nothing any more are forgotten. Cost:
        none."""
        now_ms = self._ports.clock.boot_ms()
        for pipe_id, (until_ms, placement) in list(self.failed.items()):
            if until_ms <= now_ms:
                del self.failed[pipe_id]
                self.found[pipe_id] = placement
        needs = []
        for pipe_id, placement in list(self.found.items()):
            damaged, missing = self.damaged.get(pipe_id, ()), self.missing.get(pipe_id, ())
            need = fleet.state_of(placement, damaged, missing).need
            if need is None:
                self._forget(pipe_id)
            else:
                needs.append(need)
        return needs

    def settle(self, upkeep: Upkeep, fleet: Fleet, pipe_id: str, renewed: ReplicaAt | None) -> None:
        """Read an extent's placement again after an action on it. renewed: the replica that was
        copied again, and is damaged no longer. Cost: a read; `Upkeep.missing` if one was missing.
        """
        if renewed is not None and pipe_id in self.damaged:
            left = [each for each in self.damaged[pipe_id] if each != renewed]
            self.damaged = {**self.damaged, pipe_id: left}
        placement = self._catalog.sidecars.placements_of([pipe_id])[0]
        if placement is None:
            self._forget(pipe_id)
        else:
            self.found[pipe_id] = placement
            if pipe_id in self.missing:
                self._learn(pipe_id, upkeep.missing(fleet, [placement]).get(pipe_id, ()))

    def _forget(self, pipe_id: str) -> None:
        self.found.pop(pipe_id, None)
        self.missing.pop(pipe_id, None)
        # Once all are repaired, another round records that.
        if not self.found:
            self._look_at_ms = 0

    def leave(self, pipe_id: str) -> None:
        """Leave an extent whose repair failed for `LATER_MS`, so that others are tried first."""
        placement = self.found.pop(pipe_id)
        if len(self.failed) < FOUND_MAX:
            self.failed[pipe_id] = self._ports.clock.boot_ms() + LATER_MS, placement
        else:
            self.missing.pop(pipe_id, None)


def _if_sealed(fleet: Fleet, placement: Placement) -> ReplicaSet:
    """The state of an extent if it was sealed. Pure."""
    return fleet.state_of(replace(placement, end=0))


def is_due(last: Round | None, fleet: Fleet, left_ms: int = 0) -> bool:
    """Whether all placements should be checked again. left_ms: how old the last round must be
    before work that it left is a reason. Pure."""
    passed_ms = AGAIN_MS if last is None else fleet.now_ms - last.at_ms
    if last is None or passed_ms >= AGAIN_MS:
        return True
    if [list(each) for each in last.sidecars] != fleet.states():
        return True
    if last.open and passed_ms >= left_ms:
        return True
    if passed_ms >= SOON_MS and (last.unsealed or fleet.is_draining()):
        return True
    return last.stuck > 0 and list(last.takers) != fleet.takers()
