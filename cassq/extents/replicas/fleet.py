"""The fleet: all sidecars at one moment, and the repairs an extent needs. Pure.

A replica has one of these standings, by what is known about its sidecar::

    good      the sidecar lives, and reports no damage
    away      the sidecar stopped sending heartbeats recently: it may come back
    leaving   the sidecar drains: the replica is good, and must be copied elsewhere
    damaged   the sidecar lives, and reports the replica as damaged: it is copied again in place
    missing   the sidecar lives, and does not have it: it is copied again, there or elsewhere
    lost      the sidecar was given up, forgotten, away for too long, or has another directory now

Invariant: no decision here reduces the number of good replicas. A copy is made before the old
replica is removed; a good replica is removed only if the wanted number of good ones remains.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cassq.frozen import dataclass
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState


class ReplicaStanding(enum.Enum):
    """The standing of a replica; see the module."""

    GOOD = "good"
    AWAY = "away"
    LEAVING = "leaving"
    DAMAGED = "damaged"
    MISSING = "missing"
    LOST = "lost"


class Need(NamedTuple):
    """The need of one placement: one more replica, a replica to copy again, or replicas to remove.

    good: how many are good now. sources: replicas to copy from, the best first. targets: all
    sidecars that may take the copy; beside: those that have the other replicas. instead: the
    replica that the copy replaces, if any; missing: that replica is not there, so the copy may also
    go to its sidecar. in_place: the damaged replica to copy again. gone: replicas to remove
    without a copy.
    """

    placement: Placement
    good: int
    sources: Sequence[ReplicaAt] = ()
    targets: Sequence[SidecarRow] = ()
    beside: Sequence[SidecarRow] = ()
    instead: ReplicaAt | None = None
    missing: bool = False
    in_place: ReplicaAt | None = None
    gone: Sequence[ReplicaAt] = ()

    @property
    def why(self) -> str:
        """The problem, as text for users."""
        if self.in_place is not None:
            return f"damaged on {self.in_place.sidecar}"
        if self.gone:
            return f"not needed on {', '.join(each.sidecar for each in self.gone)}"
        if self.instead is not None and self.missing:
            return f"missing on {self.instead.sidecar}"
        if self.instead is not None:
            return f"replace the one on {self.instead.sidecar}"
        return f"{self.good} of {self.placement.wanted} replicas"


class ReplicaSet(NamedTuple):
    """The standing of an extent's replicas. short: how many are lacking besides those that are good
    or only away. need: what can be done now, if anything."""

    standings: Mapping[ReplicaAt, ReplicaStanding]
    short: int
    need: Need | None

    @property
    def readable(self) -> bool:
        """Whether any replica is known to be whole or may come back."""
        fine = (ReplicaStanding.GOOD, ReplicaStanding.LEAVING, ReplicaStanding.AWAY)
        return any(standing in fine for standing in self.standings.values())


@dataclass(frozen=True, slots=True)
class Fleet:
    """All sidecars by name, as they last reported. now_ms: catalog time. after_ms: how long after
    its lease a sidecar without a heartbeat counts as lost."""

    sidecars: Mapping[str, SidecarRow]
    now_ms: int
    after_ms: int

    def is_lost(self, row: SidecarRow) -> bool:
        """Whether all replicas on a sidecar count as lost."""
        silent_ms = self.now_ms - row.seen_ms - row.lease_ms
        return row.state is SidecarState.GONE or silent_ms >= self.after_ms

    def standing(
        self, replica: ReplicaAt, *, damaged: bool = False, missing: bool = False
    ) -> ReplicaStanding:
        """The standing of a replica. damaged, missing: whether its sidecar reports that."""
        row = self.sidecars.get(replica.sidecar)
        if row is None or row.generation != replica.generation or self.is_lost(row):
            return ReplicaStanding.LOST
        if not row.alive(self.now_ms):
            return ReplicaStanding.AWAY
        if missing and not damaged:
            return ReplicaStanding.MISSING
        if row.state is SidecarState.DRAINING:
            return ReplicaStanding.LOST if damaged else ReplicaStanding.LEAVING
        return ReplicaStanding.DAMAGED if damaged else ReplicaStanding.GOOD

    def is_there(self, replica: ReplicaAt) -> bool:
        """Whether a replica's sidecar lives and was not given up, so that its report counts."""
        return self.standing(replica) in (ReplicaStanding.GOOD, ReplicaStanding.LEAVING)

    def is_draining(self) -> bool:
        """Whether a live sidecar that is not empty is being drained."""
        return any(
            row.state is SidecarState.DRAINING and row.extents and row.alive(self.now_ms)
            for row in self.sidecars.values()
        )

    def states(self) -> list[list[str]]:
        """Everything that standings depend on, in a form that can be stored. If it changes, all
        placements must be checked again."""
        rows = sorted(self.sidecars.values(), key=lambda row: row.name)
        return [[r.name, r.generation, r.state.name, "lost" * self.is_lost(r)] for r in rows]

    def takers(self) -> list[str]:
        """The sidecars that accept extents now."""
        return sorted(row.name for row in self.sidecars.values() if self._takes(row))

    def _takes(self, row: SidecarRow) -> bool:
        return row.state is SidecarState.UP and row.alive(self.now_ms) and not row.read_only

    def state_of(
        self,
        placement: Placement,
        damaged: Collection[ReplicaAt] = (),
        missing: Collection[ReplicaAt] = (),
    ) -> ReplicaSet:
        """The state of an extent, and what it needs. damaged, missing: replicas reported as such.

        Nothing can be done for an extent before it is sealed.
        """
        standings = {
            each: self.standing(each, damaged=each in damaged, missing=each in missing)
            for each in placement.replicas
        }
        fine = (ReplicaStanding.GOOD, ReplicaStanding.LEAVING, ReplicaStanding.AWAY)
        short = placement.wanted - sum(standing in fine for standing in standings.values())
        need = None if placement.end is None else self._need(placement, standings)
        return ReplicaSet(standings, max(0, short), need)

    def _need(
        self, placement: Placement, standings: Mapping[ReplicaAt, ReplicaStanding]
    ) -> Need | None:
        def those(*wanted: ReplicaStanding) -> list[ReplicaAt]:
            return [each for each, standing in standings.items() if standing in wanted]

        good, staying = (
            those(ReplicaStanding.GOOD),
            those(ReplicaStanding.GOOD, ReplicaStanding.AWAY),
        )
        leaving, lost = those(ReplicaStanding.LEAVING), those(ReplicaStanding.LOST)
        missing = those(ReplicaStanding.MISSING)
        need = Need(placement, len(good) + len(leaving))
        gone = [*missing, *lost] if len(staying) >= placement.wanted else []
        if len(good) >= placement.wanted:
            gone = [*missing, *lost, *leaving, *those(ReplicaStanding.DAMAGED)]
        if gone:
            return need._replace(gone=gone)
        need = need._replace(sources=self._sources(good, leaving, lost))
        if not need.sources:
            return None
        # A damaged replica without room for a copy in its place is as good as lost.
        broken = [each for each in those(ReplicaStanding.DAMAGED) if not self._row(each).read_only]
        full = [each for each in those(ReplicaStanding.DAMAGED) if each not in broken]
        # Missing replicas are handled one at a time, and may be copied to their own place.
        taken = [self._row(each) for each in (*staying, *leaving, *broken, *full, *missing[1:])]
        free = [row for row in self.sidecars.values() if row not in taken and self._takes(row)]
        if free and len(staying) + len(broken) < placement.wanted:
            return need._replace(
                targets=free,
                beside=[self._row(each) for each in (*staying, *broken)],
                instead=next(iter((*missing, *lost, *full, *leaving)), None),
                missing=bool(missing),
            )
        # If the replicas that are away would complete the number, replacements wait for them to
        # come back.
        return need._replace(in_place=broken[0]) if broken else None

    def _sources(
        self, good: Sequence[ReplicaAt], leaving: Sequence[ReplicaAt], lost: Sequence[ReplicaAt]
    ) -> list[ReplicaAt]:
        """The replicas to copy from, the least loaded first. A replica on a sidecar that was given
        up but runs is better than none."""
        found = sorted((*good, *leaving), key=lambda each: self._row(each).load)
        return found or [each for each in lost if self._lives(each)]

    def _lives(self, replica: ReplicaAt) -> bool:
        row = self.sidecars.get(replica.sidecar)
        return row is not None and row.generation == replica.generation and row.alive(self.now_ms)

    def _row(self, replica: ReplicaAt) -> SidecarRow:
        return self.sidecars[replica.sidecar]


def fleet_of(rows: Sequence[SidecarRow], now_ms: int, after_ms: int) -> Fleet:
    """The fleet of these sidecars."""
    return Fleet({row.name: row for row in rows}, now_ms, after_ms)


def mended(need: Need, version: str, copy: ReplicaAt | None = None) -> Placement:
    """The placement once the need is met. copy: the replica that was made."""
    kept = [each for each in need.placement.replicas if each not in need.gone]
    if copy is not None and copy not in kept:
        if need.instead in kept:
            kept[kept.index(need.instead)] = copy
        else:
            kept.append(copy)
    return replace(need.placement, replicas=tuple(kept), version=version)
