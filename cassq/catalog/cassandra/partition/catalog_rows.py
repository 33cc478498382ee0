"""The rows that several parts of the catalog read and write."""

from __future__ import annotations

from cassq.catalog.cassandra.partition.consumed import ConsumedPipes
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.known_pipes import KnownPipes
from cassq.catalog.cassandra.partition.pipe_records import PipeRecords
from cassq.catalog.cassandra.partition.queue_rows import QueueRows


class CatalogRows:
    """The rows of queues, groups and pipes in a keyspace, and known facts about listed pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace: Keyspace = keyspace
        self.queues: QueueRows = QueueRows(keyspace)
        self.consumed: ConsumedPipes = ConsumedPipes(keyspace)
        self.pipes: PipeRecords = PipeRecords(keyspace, self.queues, self.consumed)
        self.known: KnownPipes = KnownPipes()
