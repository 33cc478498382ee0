"""The keyspace that all parts of the catalog share: its session, time and tombstones."""

from __future__ import annotations

from dataclasses import dataclass

from cassq.base.clock import Clock
from cassq.base.ids import Ids
from cassq.cassandra.cluster_time import ClusterTime
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra.partition.tombstones import TombstoneCompactor


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A client's access to one keyspace. time: the cluster's. clock: this machine's."""

    cql: Cql
    clock: Clock
    time: ClusterTime
    ids: Ids
    gaps: TombstoneCompactor

    def now_ms(self) -> int:
        """Catalog time. Never blocks."""
        return self.time.now_ms()
