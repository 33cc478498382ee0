"""The rows of pipes in Cassandra: reads, inserts, marks, and the change to consumed.

A mark on a row announces that a client is about to retire or move the pipe, see `retiring`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.consumed import ConsumedPipes
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.catalog.cassandra.partition.queue_rows import QueueRows
from cassq.model.rows import PipeRow, PipeState, QueueRow

MARK_MS = 30_000


class PipeRecords:
    """Rows of pipes."""

    def __init__(self, keyspace: Keyspace, queues: QueueRows, consumed: ConsumedPipes) -> None:
        self._keyspace = keyspace
        self._cql = keyspace.cql
        self._queues = queues
        self._consumed = consumed

    def by_id(self, pipe_id: str) -> Pipe | None:
        """A pipe's row. Cost: one read."""
        return self.those([pipe_id])[0]

    def those(self, pipe_ids: Sequence[str], *, serial: bool = False) -> list[Pipe | None]:
        """The rows of several pipes, in their order. Cost: a round of reads."""
        asked = [(cql.PIPE, (pipe_id,)) for pipe_id in pipe_ids]
        found = self._cql.read_many(asked, serial=serial)
        return cql.pipes_of(pipe_ids, found)

    def serially(self, pipe_id: str) -> Pipe | None:
        """The row, as of all writes that began before. Cost: a linearized read."""
        return self.those([pipe_id], serial=True)[0]

    def home(self, row: PipeRow) -> QueueRow | None:
        """A pipe's queue; None if the queue, or the group the pipe is for, no longer exists."""
        queue, groups = self._queues.with_groups(row.queue_id)
        if queue is None or queue.deleted:
            return None
        if row.group_id and row.group_id not in (group.id for group in groups):
            return None
        return queue

    def insert(self, row: PipeRow) -> bool:
        """Write a pipe's row; False if another client has written one with this id. A write that
        did not arrive is repeated: a missing row does not mean that the queue is gone."""
        self._cql.write(cql.PUT_BEAT, (row.id, row.beat, row.state != PipeState.READY, row.rate))
        values = cql.columns(row)
        there: Pipe | None = None

        def stands() -> bool:
            nonlocal there
            there = self.serially(row.id)
            return there is not None

        self._cql.apply_until(cql.ADD_PIPE, values, stands, f"the row of pipe {row.id} is there")
        return there is None or there.row.ordinal == row.ordinal

    def consume(self, pipe_ids: Iterable[str], queue_id: str) -> None:
        """Make pipes of a queue consumed, whatever their state. Cost: a round of hints, a round of
        conditional writes."""
        left = list(pipe_ids)
        self._consumed.note(left)
        changes = [(cql.CONSUME, (pipe_id, queue_id)) for pipe_id in left]
        self._cql.apply_all(changes, f"pipes of queue {queue_id} are consumed")

    # --- marks ------------------------------------------------------------------------------------

    def marked(self, pipe: Pipe, kind: str) -> str:
        """Mark a pipe, and return the mark; "" if it has another client's mark that must stay."""
        if pipe.is_leaving and not self.unmarked(pipe):
            return ""
        there = "" if pipe.is_leaving else pipe.mark
        mark = f"{kind}:{self._keyspace.now_ms()}:{self._keyspace.ids.version()}"
        values = (mark, pipe.row.id, there, pipe.row.queue_id)

        def is_there() -> bool:
            there = self.serially(pipe.row.id)
            return there is not None and there.mark == mark

        return mark if self._cql.apply_settled(cql.SET_MARK, values, is_there) else ""

    def unmarked(self, pipe: Pipe) -> bool:
        """Remove a pipe's mark, because the pipe must stay; return whether it has none now. Cost: a
        conditional write if it had one."""
        if not pipe.mark:
            return True
        if pipe.is_leaving and self._keyspace.now_ms() - pipe.marked_ms < MARK_MS:
            return False
        return self.clear_mark(pipe.row.id, pipe.mark)

    def clear_mark(self, pipe_id: str, mark: str) -> bool:
        """Remove a mark; return whether the pipe has none now. Cost: a conditional write."""

        def is_cleared() -> bool:
            there = self.serially(pipe_id)
            return there is not None and there.mark == ""

        return self._cql.apply_settled(cql.CLEAR_MARK, (pipe_id, mark), is_cleared)
