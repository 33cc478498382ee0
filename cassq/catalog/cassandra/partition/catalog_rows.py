"""The rows that several parts of the catalog read and write."""

from __future__ import annotations

from collections.abc import Sequence

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition import pipe_rows, queue_rows
from cassq.catalog.cassandra.partition.consumed import ConsumedPipes
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.known_pipes import KnownPipes
from cassq.catalog.cassandra.partition.pipe_records import PipeRecords
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.catalog.cassandra.partition.queue_rows import QueueAndGroups, QueueRows


class CatalogRows:
    """The rows of queues, groups and pipes in a keyspace, and known facts about listed pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace: Keyspace = keyspace
        self.queues: QueueRows = QueueRows(keyspace)
        self.consumed: ConsumedPipes = ConsumedPipes(keyspace)
        self.pipes: PipeRecords = PipeRecords(keyspace, self.queues, self.consumed)
        self.known: KnownPipes = KnownPipes()

    def with_home(
        self, pipe_ids: Sequence[str], group_id: str
    ) -> tuple[list[Pipe | None], QueueAndGroups]:
        """The rows of several pipes, and of a group's queue, with its groups. Cost: a round of
        reads; three if the group was never read before."""
        queue_id = self.queues.home_of(group_id)
        if queue_id is None:
            group = self.queues.group(group_id)
            if group is None:
                return [], (None, [])
            queue_id = group.queue_id
        asked: list[Statement] = [(pipe_rows.PIPE, (pipe_id,)) for pipe_id in pipe_ids]
        *found, home = self.keyspace.cql.read_many(
            [*asked, (queue_rows.QUEUE_AND_GROUPS, (queue_id,))]
        )
        return pipe_rows.pipes_of(pipe_ids, found), queue_rows.queue_and_groups(home)
