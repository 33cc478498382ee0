"""What must hold of replicas when all is mended and repaired: judged from what is told. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cassq.extents.protocol.messages import ListedExtent
from cassq.extents.sidecar.store_context import majority
from cassq.model.sidecar_rows import Placement, ReplicaAt


@dataclass(slots=True)
class ReplicaView:
    """What is where. placements: of the catalog. generations: of the sidecars that are there, by
    name. held: sidecar → pipe id → what it tells of its replica. pipes: those that have a row."""

    placements: list[Placement]
    generations: Mapping[str, str]
    held: Mapping[str, Mapping[str, ListedExtent]] = field(default_factory=dict)
    pipes: Collection[str] = ()

    def strays(self) -> set[str]:
        """Pipes that were begun by who died before their row was there, and hold nothing: the
        sweep takes their extents after an hour."""
        return {
            each.pipe_id
            for each in self.placements
            if each.pipe_id not in self.pipes
            and not each.end
            and not any(
                found.end for held in self.held.values() if (found := held.get(each.pipe_id))
            )
        }

    def sealed(self) -> list[Placement]:
        """Those whose end is recorded, oldest first."""
        return sorted(
            (each for each in self.placements if each.end is not None),
            key=lambda each: each.pipe_id,
        )


def complaints(view: ReplicaView) -> Iterator[str]:
    """Every pipe has a row, is sealed, and has as many good replicas as are wanted; but strays."""
    strays = view.strays()
    for placement in view.placements:
        if placement.pipe_id in strays:
            continue
        if placement.pipe_id not in view.pipes:
            yield f"{placement.pipe_id} of {placement.queue_name} has no row"
        if placement.end is None:
            yield f"{placement.pipe_id} of {placement.queue_name} is not sealed"
            continue
        names = Counter(each.sidecar for each in placement.replicas)
        for name, count in names.items():
            if count > 1:
                yield f"{placement.pipe_id} has {count} replicas on {name}"
        wrongs = [_wrong(placement, each, view) for each in placement.replicas]
        yield from (f"{placement.pipe_id}: {wrong}" for wrong in wrongs if wrong)
        good = sum(1 for wrong in wrongs if not wrong)
        if good != placement.wanted:
            text = f"{placement.pipe_id} has {good} good replicas"
            yield f"{text}, and should have {placement.wanted}"


def dependants(view: ReplicaView, name: str) -> Iterator[str]:
    """Pipes that could not be read any more, or not be sealed, if a sidecar lost what it has."""
    strays = view.strays()
    for placement in view.placements:
        if placement.pipe_id in strays:
            continue
        others = [each for each in placement.replicas if each.sidecar != name]
        if len(others) == len(placement.replicas):
            continue
        good = sum(_is_good(placement, each, view) for each in others)
        least = 1 if placement.end is not None else majority(len(placement.replicas))
        if good < least:
            yield f"{placement.pipe_id} needs {name}: {good} good replicas are elsewhere"


def _is_good(placement: Placement, replica: ReplicaAt, view: ReplicaView) -> bool:
    """Whether a replica has all that it should have, be it settled yet or not."""
    extent = view.held.get(replica.sidecar, {}).get(placement.pipe_id)
    if extent is None or view.generations.get(replica.sidecar) != replica.generation:
        return False
    return not (extent.damage or extent.copying) and extent.end >= (placement.end or 0)


def _wrong(placement: Placement, replica: ReplicaAt, view: ReplicaView) -> str:
    """What is wrong with a replica; "" if nothing."""
    where = f"the replica on {replica.sidecar}"
    extent = view.held.get(replica.sidecar, {}).get(placement.pipe_id)
    if view.generations.get(replica.sidecar) != replica.generation:
        return f"{where} was of another data directory"
    if extent is None:
        return f"{where} is not there"
    if extent.damage:
        return f"{where} is damaged: {extent.damage}"
    if extent.copying:
        return f"{where} is a copy that is not whole"
    if (extent.end, extent.final) != (placement.end, placement.end):
        return f"{where} ends at {extent.end} for ever {extent.final}, not at {placement.end}"
    return ""


def orphans(view: ReplicaView) -> Iterator[str]:
    """What sidecars hold and no placement knows of: it goes after a safe time."""
    known = {
        (each.sidecar, placement.pipe_id)
        for placement in view.placements
        for each in placement.replicas
    }
    for name, extents in view.held.items():
        for pipe_id in extents:
            if (name, pipe_id) not in known:
                yield f"{name} holds {pipe_id}, which nobody knows of there"


def unequal(digests: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[str]:
    """digests: pipe id, and of each replica's sidecar the digest of all its frames."""
    for pipe_id, found in digests:
        if len(set(found.values())) != 1:
            yield f"the replicas of {pipe_id} are not equal: {dict(found)}"
