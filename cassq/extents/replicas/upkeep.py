"""The Upkeep port: care of the replicas of a store's extents, if it has any.

Repairers decide by rows of the catalog (`cassq.extents.replicas.fleet`); this port asks the
sidecars for data that only they have, and makes them act.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cassq.extents.replicas.fleet import Fleet, Need
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow

if TYPE_CHECKING:
    from cassq.extents.protocol.messages import ListedExtent


class RepairOutcome(NamedTuple):
    """The outcome of a need in one call.

    done: it is over: `detail` says what was done, or is empty if it was no longer needed.
    Otherwise it must be continued: `detail` is its progress, `error` why it failed for now.
    """

    need: Need
    done: bool
    detail: str
    error: str = ""


class Upkeep(abc.ABC):
    """Looks after replicas. Thread-safe.

    after_ms: how long a sidecar may send no heartbeat before its replicas are replaced.
    """

    after_ms: int

    @abc.abstractmethod
    def fleet(self) -> Fleet:
        """The sidecars now. Cost: one bounded read."""

    @abc.abstractmethod
    def damaged(self, fleet: Fleet) -> Mapping[str, list[ReplicaAt]]:
        """The replicas that sidecars report as damaged, by pipe id, at most as many as are repaired
        at once. Cost: a request to each sidecar whose last heartbeat reported any."""

    @abc.abstractmethod
    def missing(
        self, fleet: Fleet, placements: Sequence[Placement]
    ) -> Mapping[str, list[ReplicaAt]]:
        """The replicas of sealed extents that live sidecars should have but lack, by pipe id. A
        sidecar that does not answer is left out, and not asked again for a minute. Cost: a request
        to each sidecar in the placements, concurrently; a read of placements with missing
        replicas."""

    @abc.abstractmethod
    def mend(self, needs: Sequence[Need], seconds: float) -> list[RepairOutcome]:
        """Work on these needs, some concurrently, for `seconds` or a little longer.

        Needs that were not reached are left out of the result. All copies of all clients together
        stay within the configured rate. Any number of clients may do this at once, and stop
        anywhere: a copy is continued from where it is, and counts once a compare-and-set has
        changed its placement.
        """

    @abc.abstractmethod
    def silent(self, rows: Sequence[SidecarRow], seconds: float) -> Mapping[str, str]:
        """The sidecars that do not answer within `seconds`, by name, and why. Cost: a request to
        each, concurrently."""

    @abc.abstractmethod
    def info(self, row: SidecarRow) -> Mapping[str, Any]:
        """The report of a sidecar about itself. Raises BackendError. Cost: a request."""

    @abc.abstractmethod
    def extents(self, row: SidecarRow, only: str = "") -> Iterator[ListedExtent]:
        """The extents of a sidecar by id; `only` as in `cassq.extents.protocol.messages.List`.
        Raises BackendError. Cost: a request per thousand."""
