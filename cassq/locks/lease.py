"""The `lease` locker: a lock is a row in the catalog with an owner, an epoch and a deadline."""

from __future__ import annotations

from cassq.catalog.port import Catalog
from cassq.locks.held import TimedLocker


class LeaseLocker(TimedLocker):
    """Locks as leases in the catalog, for all processes that share it; needs no other server.

    owner: a unique name. Cost: one unsynced transaction per call.
    """

    def __init__(self, catalog: Catalog, owner: str) -> None:
        super().__init__(owner, catalog.leases.take, catalog.leases.drop, catalog.now_ms)
