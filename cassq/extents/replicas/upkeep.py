"""The Upkeep port: how the replicas of a store's extents are looked after, where it has any.

Whoever repairs decides from rows of the catalog (`cassq.extents.replicas.fleet`); this is what has
to be asked of the sidecars themselves, and what they are told to do.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cassq.extents.replicas.fleet import Fleet, Need
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow

if TYPE_CHECKING:
    from cassq.extents.protocol.words import Told


class RepairOutcome(NamedTuple):
    """What became of a need in some time.

    done: it is over: `detail` says what was done, or is empty when it was not needed any more.
    Else it is to be gone on with: `detail` says how far it is, `error` why it failed for now.
    """

    need: Need
    done: bool
    detail: str
    error: str = ""


class Upkeep(abc.ABC):
    """Looks after replicas. Thread-safe.

    after_ms: how long a sidecar may show no sign of life before its replicas are made anew.
    """

    after_ms: int

    @abc.abstractmethod
    def fleet(self) -> Fleet:
        """The sidecars now. Cost: one bounded read."""

    @abc.abstractmethod
    def damaged(self, fleet: Fleet) -> Mapping[str, list[ReplicaAt]]:
        """The replicas that sidecars say are damaged, by pipe id, as many as one repairs at a
        time. Cost: a request to each that told of any with its last sign of life."""

    @abc.abstractmethod
    def missing(
        self, fleet: Fleet, placements: Sequence[Placement]
    ) -> Mapping[str, list[ReplicaAt]]:
        """The replicas that sidecars which live do not have, of those of these extents that are
        sealed, by pipe id. Of who does not answer nothing is told, and it is not asked again for a
        minute. Cost: a request to each sidecar that is named, side by side; a read of the
        placements of which something is missing."""

    @abc.abstractmethod
    def mend(self, needs: Sequence[Need], seconds: float) -> list[RepairOutcome]:
        """Go on with what these need, some side by side, for so many seconds or a little longer.

        What was not come to is not told. All copies of all clients together are no faster than
        the rate that was set. Any number may do this at once, and stop anywhere: a copy is gone on
        with from where it is, and counts from when its placement is changed, by compare-and-set.
        """

    @abc.abstractmethod
    def info(self, row: SidecarRow) -> Mapping[str, Any]:
        """What a sidecar tells of itself. Raises BackendError. Cost: a request."""

    @abc.abstractmethod
    def extents(self, row: SidecarRow, only: str = "") -> Iterator[Told]:
        """The extents of a sidecar by id; `only` as in `cassq.extents.protocol.words.List`. Raises
        BackendError. Cost: a request for each thousand."""
