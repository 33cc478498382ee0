"""The catalog in a Cassandra keyspace: for any number of processes on any number of machines."""

from __future__ import annotations

from cassq.base.clock import Clock
from cassq.base.ids import Ids
from cassq.cassandra.cluster_time import ClusterTime
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import schema
from cassq.catalog.cassandra.claims.arrivals import Arrivals
from cassq.catalog.cassandra.claims.claim_tables import CassandraClaims
from cassq.catalog.cassandra.claims.cursor_tables import Cursors
from cassq.catalog.cassandra.lease_tables import CassandraLeases
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.conditional_writer import ConditionalWriter
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.tombstones import TombstoneCompactor
from cassq.catalog.cassandra.pipes.pipe_tables import CassandraPipes
from cassq.catalog.cassandra.pipes.retiring import Retiring
from cassq.catalog.cassandra.pipes.write_tables import CassandraWrites
from cassq.catalog.cassandra.queue_tables import CassandraQueues
from cassq.catalog.cassandra.record_tables import CassandraRecords
from cassq.catalog.cassandra.result_tables import CassandraResults
from cassq.catalog.cassandra.sidecar_tables import CassandraSidecars
from cassq.catalog.cassandra.step_tables import CassandraSteps
from cassq.catalog.port import Catalog


class CassandraCatalog(Catalog):
    """The Catalog port on Cassandra. cql: connected to the keyspace; it is closed with the catalog.

    time: cluster time, if not the session's. Raises ConfigError for a keyspace without the
    schema this cassq knows.
    """

    pipes: CassandraPipes

    def __init__(self, cql: Cql, clock: Clock, *, time: ClusterTime | None = None) -> None:
        schema.check(cql)
        self._keyspace = keyspace = Keyspace(
            cql, clock, time or cql.time, Ids(), TombstoneCompactor(cql)
        )
        rows, partitions = CatalogRows(keyspace), ConditionalWriter(keyspace)
        cursors, arrivals = Cursors(rows, partitions.memory), Arrivals(keyspace)
        self.records = records = CassandraRecords(keyspace)
        self.results = CassandraResults(keyspace)
        self.steps = CassandraSteps(keyspace)
        self.sidecars = CassandraSidecars(keyspace)
        self.leases = leases = CassandraLeases(rows)
        self.writes = writes = CassandraWrites(rows)
        self.claims = CassandraClaims(rows, partitions, cursors, arrivals)
        retiring = Retiring(rows, cursors, arrivals, leases)
        self.pipes = pipes = CassandraPipes(rows, writes, retiring)
        self.queues = CassandraQueues(rows, pipes, cursors, records)

    def now_ms(self) -> int:
        return self._keyspace.now_ms()

    def wall_ms(self) -> int:
        """The same as catalog time: both are the servers' time."""
        return self._keyspace.now_ms()

    def close(self) -> None:
        self._keyspace.cql.close()
