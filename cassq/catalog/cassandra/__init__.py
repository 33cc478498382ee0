"""The catalog in a Cassandra keyspace: for any number of processes on any number of machines."""

from __future__ import annotations

from cassq.base.clock import Clock
from cassq.base.ids import Ids
from cassq.cassandra.cluster_time import ClusterTime
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import schema
from cassq.catalog.cassandra.claims.claim_tables import ClaimTables
from cassq.catalog.cassandra.lease_tables import LeaseTables
from cassq.catalog.cassandra.partition.gaps import Gaps
from cassq.catalog.cassandra.partition.known import Memory
from cassq.catalog.cassandra.pipes.hint_tables import HintTables
from cassq.catalog.cassandra.pipes.pipe_tables import PipeTables
from cassq.catalog.cassandra.queue_tables import QueueTables
from cassq.catalog.cassandra.record_tables import RecordTables
from cassq.catalog.cassandra.sidecar_tables import SidecarTables


class CassandraCatalog(
    QueueTables, LeaseTables, HintTables, PipeTables, ClaimTables, RecordTables, SidecarTables
):
    """The Catalog port on Cassandra. cql: connected to the keyspace; it is closed with the catalog.

    time: the cluster's, if it is not the session's. Raises ConfigError for a keyspace without the
    schema this cassq knows.
    """

    def __init__(self, cql: Cql, clock: Clock, *, time: ClusterTime | None = None) -> None:
        schema.check(cql)
        self._cql = cql
        self._clock = clock
        self._gaps = Gaps(cql)
        self._time = time or cql.time
        self._replicas = schema.least_replicas(cql)
        self._warned = False
        self._leases = {}
        self._dedup_slices = {}
        self._sample_slices = {}
        self._ids = Ids()
        self._memory = Memory()
        self._group_pipes = {}
        self._announced = {}
        self._done = {}
        self._blocks = {}

    def now_ms(self) -> int:
        return self._time.now_ms()

    def close(self) -> None:
        self._cql.close()
