"""The best order in which to ask the replicas of an extent."""

from __future__ import annotations

from collections.abc import Collection

from cassq.extents.sidecar.store_context import StoreContext
from cassq.model.sidecar_rows import Placement, ReplicaAt


def nearest(
    context: StoreContext, placement: Placement, last: Collection[ReplicaAt] = ()
) -> list[ReplicaAt]:
    """The replicas: those in the client's own zone first, those that failed lately after all
    others, and `last` at the very end. Cost: as `SidecarDirectory.rows`."""
    zone, directory = context.settings.zone, context.directory

    def rank(replica: ReplicaAt) -> tuple[bool, bool, bool]:
        far = bool(zone) and directory.zone_of(replica.sidecar) != zone
        return replica in last, context.health.avoided(replica.sidecar), far

    return sorted(placement.replicas, key=rank)
