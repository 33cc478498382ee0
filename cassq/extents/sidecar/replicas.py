"""The best order in which to ask the replicas of an extent."""

from __future__ import annotations

from collections.abc import Collection

from cassq.extents.sidecar.store_context import StoreContext
from cassq.model.sidecar_rows import Placement, ReplicaAt


def nearest(
    means: StoreContext, placement: Placement, last: Collection[ReplicaAt] = ()
) -> list[ReplicaAt]:
    """The replicas: those in the client's own zone first, those that failed lately after all
    others, and `last` at the very end. Cost: as `SidecarDirectory.rows`."""
    zone, roster = means.settings.zone, means.roster

    def rank(replica: ReplicaAt) -> tuple[bool, bool, bool]:
        far = bool(zone) and roster.zone_of(replica.sidecar) != zone
        return replica in last, means.health.avoided(replica.sidecar), far

    return sorted(placement.replicas, key=rank)
