"""The Upkeep port: care of the replicas of a store's extents, if it has any.

Repairers decide from rows of the catalog (`cassq.extents.replicas.fleet`); this port asks the
sidecars for what only they know, and has them act.
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
    """What became of a need in one call.

    done: it is over: `detail` says what was done, or is empty when it was no longer needed.
    Otherwise it must be continued: `detail` says how far it is, `error` why it failed for now.
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
        """The replicas that sidecars report as damaged, by pipe id, as many as are repaired at
        once. Cost: a request to each sidecar whose last sign of life reported any."""

    @abc.abstractmethod
    def missing(
        self, fleet: Fleet, placements: Sequence[Placement]
    ) -> Mapping[str, list[ReplicaAt]]:
        """The replicas of those of these extents that are sealed which live sidecars lack, by pipe
        id. A sidecar that does not answer is left out, and not asked again for a minute. Cost: a
        request to each sidecar that is named, side by side; a read of the placements with missing
        replicas."""

    @abc.abstractmethod
    def mend(self, needs: Sequence[Need], seconds: float) -> list[RepairOutcome]:
        """Continue with what these need, some side by side, for `seconds` or a little longer.

        Needs that were not reached are left out of the result. All copies of all clients together
        stay within the configured rate. Any number of clients may do this at once, and stop
        anywhere: a copy is continued from where it is, and counts once a compare-and-set has
        changed its placement.
        """

    @abc.abstractmethod
    def info(self, row: SidecarRow) -> Mapping[str, Any]:
        """What a sidecar reports about itself. Raises BackendError. Cost: a request."""

    @abc.abstractmethod
    def extents(self, row: SidecarRow, only: str = "") -> Iterator[Told]:
        """The extents of a sidecar by id; `only` as in `cassq.extents.protocol.words.List`. Raises
        BackendError. Cost: a request per thousand."""
