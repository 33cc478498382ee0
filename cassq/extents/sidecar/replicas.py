"""Replicas of an extent in the order they are best asked in."""

from __future__ import annotations

from collections.abc import Collection

from cassq.extents.sidecar.store_context import StoreContext
from cassq.model.sidecar_rows import Placement, ReplicaAt


def nearest(
    means: StoreContext, placement: Placement, last: Collection[ReplicaAt] = ()
) -> list[ReplicaAt]:
    """The replicas: of the client's own zone first, those that failed lately after all others,
    and `last` at the very end. Cost: as `Roster.rows`."""
    zone, roster = means.settings.zone, means.roster

    def rank(replica: ReplicaAt) -> tuple[bool, bool, bool]:
        far = bool(zone) and roster.zone_of(replica.sidecar) != zone
        return replica in last, means.health.avoided(replica.sidecar), far

    return sorted(placement.replicas, key=rank)
