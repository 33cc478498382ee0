"""The walk: looks through the placements of all extents for those that need something.

It is begun when there is a reason, goes on at each pass for some time, and ends with a round that
is noted for all (`cassq.inspect.rounds`). Reasons are: sidecars are not what they were at the last
round; that round left something; some could not be mended, and now others take extents; some were
sealed since with fewer good replicas than they should have (`cassq.extents.replicas.shortages`);
some were not sealed, or a sidecar drains and is not empty, and it is a minute ago; or it is an hour
ago.

What was found keeps none of them from being a reason but that the last round left something: it is
found already, or is being mended by the client that made that round. What fails each time it is
tried is left for half a minute at a time, beside the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from cassq.extents.replicas.fleet import Fleet, Need, ReplicaSet, ReplicaStanding
from cassq.extents.replicas.shortages import shortage_since
from cassq.extents.replicas.upkeep import Upkeep
from cassq.inspect.rounds import AGAIN_MS, Round, last_round, note
from cassq.lifecycle.ports import Ports
from cassq.model.sidecar_rows import Placement, ReplicaAt

PAGE = 250
FOUND_MAX = 1000
# How often it is asked whether another walk is due, and which replicas are damaged.
LOOK_MS = 10_000
# How soon it is looked again for extents that were not sealed, for whoever seals one may end before
# it tells; for those that came to a sidecar before all knew that it drains; and for what the last
# round left, by those who have found something else, or fail with all of it.
SOON_MS = 60_000
# How long something that failed is left.
LATER_MS = 30_000


class Walk:
    """What was found by one reaper. Not thread-safe.

    found: placements that need something, or did when they were looked at. failed: those that are
    left for now, with the boot time until when; further ones are forgotten until they are found
    again. damaged, missing: replicas that sidecars told to be so, by pipe id.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._pages: Iterator[Placement] | None = None
        self._told: list[list[str]] | None = None
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
        """Whether placements are left to be looked at."""
        return self._pages is not None and len(self.found) < FOUND_MAX

    def look_time(self, fleet: Fleet) -> bool:
        """Whether it is time to ask for what is damaged, and whether to begin anew. Cost: none."""
        now_ms, told = self._ports.clock.boot_ms(), fleet.told()
        if told == self._told and now_ms < self._look_at_ms:
            return False
        if told != self._told:
            # What was found was decided by what sidecars were.
            self._told, self._pages = told, None
            self.found.clear()
            self.failed.clear()
            self.missing.clear()
        self._look_at_ms = now_ms + LOOK_MS
        return True

    def begin_if_due(self, fleet: Fleet) -> None:
        """Begin, unless it goes on or there is no reason. Cost: two reads."""
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
        """For how long it is no reason that a round left something. After one of its own all of
        that is found here; while it is being mended there is nothing more to look for."""
        if not self.found and not self.failed:
            return 0
        return AGAIN_MS if self.found and last.began_ms == self._began_ms else SOON_MS

    def _begin(self) -> None:
        self._began_ms = self._catalog.now_ms()
        self._pages = self._catalog.sidecars.placements()
        self._counts.clear()
        self._left.clear()

    def add_damaged(self, fleet: Fleet, damaged: Mapping[str, Sequence[ReplicaAt]]) -> None:
        """Take note of what sidecars say is damaged. Cost: a read.

        Of which nothing can be done is left out, as what has a copy elsewhere by now: a sidecar
        may tell of it for ever.
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
        """Look at some more; the round, when that was all. until_ms: boot time. Cost: a page of
        placements at least, and for each page `Upkeep.missing`."""
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
        """Whether something is wrong with an extent whose pipe has no row, as its pusher died in
        between: it holds nothing, and is the sweep's. sealed: how it would stand if it was. Cost:
        a read, of what is not sealed and will need something."""
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
            sidecars=fleet.told(),
            takers=fleet.takers(),
            open=len(self.found) + len(self.failed),
            left=dict(self._left),
            began_ms=self._began_ms,
            **counts,
        )
        note(self._catalog, made)
        return made

    def needs(self, fleet: Fleet) -> list[Need]:
        """What to do now about what was found; what needs nothing any more is forgotten.
        Cost: none."""
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

    def settle(self, upkeep: Upkeep, fleet: Fleet, pipe_id: str, anew: ReplicaAt | None) -> None:
        """Something was done for an extent: look what it needs now. anew: the replica that is no
        longer damaged. Cost: a read; where something was missing `Upkeep.missing`."""
        if anew is not None and pipe_id in self.damaged:
            left = [each for each in self.damaged[pipe_id] if each != anew]
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
        # After the last one another round is made, which tells so.
        if not self.found:
            self._look_at_ms = 0

    def leave(self, pipe_id: str) -> None:
        """It failed: try others first."""
        placement = self.found.pop(pipe_id)
        if len(self.failed) < FOUND_MAX:
            self.failed[pipe_id] = self._ports.clock.boot_ms() + LATER_MS, placement
        else:
            self.missing.pop(pipe_id, None)


def _if_sealed(fleet: Fleet, placement: Placement) -> ReplicaSet:
    """How the replicas of an extent would stand if it was sealed. Pure."""
    return fleet.state_of(replace(placement, end=0))


def is_due(last: Round | None, fleet: Fleet, left_ms: int = 0) -> bool:
    """Whether all placements should be checked again. left_ms: for how long it is not a reason that
    the last round left something. Pure."""
    passed_ms = AGAIN_MS if last is None else fleet.now_ms - last.at_ms
    if last is None or passed_ms >= AGAIN_MS:
        return True
    if [list(each) for each in last.sidecars] != fleet.told():
        return True
    if last.open and passed_ms >= left_ms:
        return True
    if passed_ms >= SOON_MS and (last.unsealed or fleet.is_draining()):
        return True
    return last.stuck > 0 and list(last.takers) != fleet.takers()
