"""Inspection: compares the placements of replicas with the extents that sidecars have.

It shows what still has to be repaired, and what cannot be repaired.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from cassq.catalog.port import Catalog
from cassq.errors import BackendError
from cassq.extents.replicas.fleet import Fleet, ReplicaSet, ReplicaStanding
from cassq.extents.replicas.upkeep import Upkeep
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow
from cassq.plurals import counted

if TYPE_CHECKING:
    from cassq.extents.protocol.messages import ListedExtent

# What may be found; all but the last two need repair.
UNREADABLE, SHORT, DAMAGED = "unreadable", "under-replicated", "damaged"
BEHIND, MISSING, BEGUN, ORPHANED = "behind", "missing", "begun", "orphaned"
KINDS = (UNREADABLE, SHORT, DAMAGED, BEHIND, MISSING, BEGUN, ORPHANED)

NO_ROW = "the extent of an unfinished, empty pipe; `cassq reap` removes it after an hour"


class ExtentFinding(NamedTuple):
    """A finding about an extent. sidecar: where, if it is about one sidecar."""

    kind: str
    pipe_id: str
    queue: str
    sidecar: str
    detail: str


@dataclass(slots=True)
class Inspection:
    """What was found. extents: how many placements there are. lost: by the name of each sidecar
    whose replicas count as lost, how many of these placements name it. silent: by the name of each
    sidecar that did not list its extents, why."""

    extents: int = 0
    found: list[ExtentFinding] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether nothing needs repair, as far as is known."""
        return not self.silent and not any(self.lost.values()) and not self.of(*KINDS[:-2])

    def of(self, *kinds: str) -> list[ExtentFinding]:
        """The findings of these kinds."""
        return [each for each in self.found if each.kind in kinds]

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for programs."""
        return {
            "well": self.is_well,
            "extents": self.extents,
            "counts": {kind: len(self.of(kind)) for kind in KINDS},
            "lost": self.lost,
            "silent": self.silent,
            "found": [each._asdict() for each in self.found],
        }


def inspect(catalog: Catalog, upkeep: Upkeep) -> Inspection:
    """Compare everything. Cost: a read of all placements, which stay in memory, and a listing of
    the extents of every live sidecar."""
    fleet, made = upkeep.fleet(), Inspection()
    placements = {each.pipe_id: each for each in catalog.sidecars.placements()}
    there: dict[ReplicaAt, dict[str, ListedExtent]] = {}
    behind: dict[ReplicaAt, set[str]] = {}
    for row in fleet.sidecars.values():
        if not row.alive(fleet.now_ms):
            continue
        try:
            extents = {report.pipe_id: report for report in upkeep.extents(row)}
        except BackendError as exc:
            made.silent[row.name] = exc.message
            continue
        at = ReplicaAt(row.name, row.generation)
        there[at], behind[at] = extents, _behind(upkeep, row, extents.values())
    for name in fleet.sidecars:
        if fleet.is_lost(fleet.sidecars[name]):
            made.lost[name] = 0
    for placement in _sorted(placements.values()):
        made.extents += 1
        damaged = {at for at in placement.replicas if _damage(there, at, placement.pipe_id)}
        missing = _missing(catalog, placement, there)
        state = fleet.state_of(placement, damaged, missing)
        wrong = [*_judged(fleet, placement, state), *_compared(placement, there, behind, missing)]
        if wrong and _is_begun(catalog, placement, there):
            about = (placement.pipe_id, placement.queue_name, "")
            made.found.append(ExtentFinding(BEGUN, *about, f"{NO_ROW} ({wrong[0].kind})"))
            continue
        made.found += wrong
        for at, standing in state.standings.items():
            if standing is ReplicaStanding.LOST:
                made.lost[at.sidecar] = made.lost.get(at.sidecar, 0) + 1
    made.found += _orphans(catalog, placements, there)
    made.found.sort(key=lambda each: (KINDS.index(each.kind), each.pipe_id, each.sidecar))
    return made


def _sorted(placements: Iterable[Placement]) -> list[Placement]:
    return sorted(placements, key=lambda placement: placement.pipe_id)


def _damage(
    there: Mapping[ReplicaAt, Mapping[str, ListedExtent]], at: ReplicaAt, pipe_id: str
) -> str:
    report = there.get(at, {}).get(pipe_id)
    return report.damage if report is not None else ""


def _behind(upkeep: Upkeep, row: SidecarRow, extents: Iterable[ListedExtent]) -> set[str]:
    """The damaged extents of a sidecar that only lack messages: those that it has are good."""
    damaged = [each for each in extents if each.damage]
    behind = {each.pipe_id for each in damaged if each.copying}
    if len(behind) < len(damaged):
        with suppress(BackendError):  # a sidecar of an earlier version does not know this request
            behind |= {each.pipe_id for each in upkeep.extents(row, "behind")}
    return behind


def _missing(
    catalog: Catalog, placement: Placement, there: Mapping[ReplicaAt, Mapping[str, ListedExtent]]
) -> list[ReplicaAt]:
    """The replicas that their sidecars do not have, except those dropped or moved since the
    placements were read."""
    pipe_id = placement.pipe_id
    found = [at for at in placement.replicas if pipe_id not in there.get(at, {pipe_id: None})]
    now = catalog.sidecars.placements_of([pipe_id])[0] if found else None
    return [at for at in found if _named(now, at)]


def _is_begun(
    catalog: Catalog, placement: Placement, there: Mapping[ReplicaAt, Mapping[str, ListedExtent]]
) -> bool:
    """Whether an extent was made for a pipe that has no row, and is empty: its pusher died in
    between, or is about to write the row. It needs no repair."""
    if placement.end is not None or catalog.pipes.by_id(placement.pipe_id) is not None:
        return False
    held = [extents.get(placement.pipe_id) for extents in there.values()]
    return not any(report.end for report in held if report is not None)


def _judged(fleet: Fleet, placement: Placement, state: ReplicaSet) -> Iterator[ExtentFinding]:
    """Whether there are enough good replicas."""
    standings = ", ".join(f"{at.sidecar} {how.value}" for at, how in state.standings.items())
    about = (placement.pipe_id, placement.queue_name, "")
    if not state.readable:
        yield ExtentFinding(UNREADABLE, *about, f"no good replica is known: {standings}")
    elif state.short:
        good = placement.wanted - state.short
        if placement.end is None:
            next_ = "it will be sealed first"
        else:
            next_ = "it will be copied" if state.need else "no sidecar can take a copy now"
        yield ExtentFinding(SHORT, *about, f"{good} of {placement.wanted} ({standings}); {next_}")


def _compared(
    placement: Placement,
    there: Mapping[ReplicaAt, Mapping[str, ListedExtent]],
    behind: Mapping[ReplicaAt, Collection[str]],
    missing: Collection[ReplicaAt],
) -> Iterator[ExtentFinding]:
    """Whether each replica is what it should be."""
    for at in placement.replicas:
        about = (placement.pipe_id, placement.queue_name, at.sidecar)
        damage = _damage(there, at, placement.pipe_id)
        if at in missing:
            yield ExtentFinding(MISSING, *about, "its sidecar is alive but does not have it")
        elif damage:
            lagging = placement.pipe_id in behind[at]
            yield ExtentFinding(BEHIND if lagging else DAMAGED, *about, damage)


def _orphans(
    catalog: Catalog,
    placements: Mapping[str, Placement],
    there: Mapping[ReplicaAt, Mapping[str, ListedExtent]],
) -> Iterator[ExtentFinding]:
    """Extents without a placement there; recent ones may be about to get one."""
    for at, extents in there.items():
        left = [pipe_id for pipe_id in extents if not _named(placements.get(pipe_id), at)]
        now = dict(zip(left, catalog.sidecars.placements_of(left), strict=True)) if left else {}
        for pipe_id in left:
            if _named(now[pipe_id], at):
                continue
            report = extents[pipe_id]
            detail = "an unfinished copy" if report.copying else counted(report.end, "message")
            detail += "; its sidecar removes it after its --orphans-after, by default an hour"
            yield ExtentFinding(ORPHANED, pipe_id, report.queue_name, at.sidecar, detail)


def _named(placement: Placement | None, at: ReplicaAt) -> bool:
    return placement is not None and at in placement.replicas


def left_on(catalog: Catalog, name: str) -> list[Placement]:
    """The placements that name a sidecar. Cost: a read of all placements."""
    return [
        placement
        for placement in catalog.sidecars.placements()
        if any(at.sidecar == name for at in placement.replicas)
    ]
