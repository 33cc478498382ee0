"""Retires pipes, and moves them to other queues: steps in several partitions; one of them decides.

A pipe may be retired if every group has acked it, and no new group can appear that has not. To
retire it, a client

1. reads the queue's `groups_version` and groups, and checks the ack offset of each: once all of a
   sealed pipe is acked, that stays so, and its totals do not change;
2. puts its mark on the pipe's row;
3. raises `groups_version`, by compare-and-set on the value it read: no group was added meanwhile;
4. if its mark is still on the row, makes the pipe consumed and writes its totals there, in one
   statement; then copies the totals and removes the cursors. After a crash the next client
   repeats that.

A group created after step 3 may find the pipe live before step 4. When it requests a cursor, it
finds the mark and removes it, so the pipe stays. (Groups known in step 1 have their cursors or need
none.) So either the group never saw the pipe, or the pipe is not retired.

A pipe may move to another queue if no group has claimed from it, and none in the old queue will.
The client puts its mark on the row, closes the cursor of each group (see `cursor_tables`), and
raises the old `groups_version`, so that there is no other group. Then, if its mark is still there,
it changes the row, together with the totals that the pipe leaves in the ledger of its old queue.
Marks of this kind older than `pipe_records.MARK_MS` were left by a crash. Removing a mark of the
other kind has no effect except to stop its owner.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassq.cassandra.session import settled
from cassq.catalog.cassandra.claims.arrivals import DROP_ARRIVALS, Arrivals
from cassq.catalog.cassandra.claims.cursor_tables import Cursors
from cassq.catalog.cassandra.lease_tables import CassandraLeases
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.pipe_rows import LEAVING, RETIRING, Pipe, Total
from cassq.catalog.cassandra.pipes.listing import Listing, PipeEntry
from cassq.catalog.cassandra.pipes.totals import Totals
from cassq.catalog.port import pipe_lock
from cassq.model.rows import GroupRow, PipeState, QueueRow, Retired

# After how many pipes cleared away here, but removed by others, all are forgotten.
CLEARED_MAX = 1_000


class Retiring:
    """Retires pipes, and moves them to other queues."""

    def __init__(
        self, rows: CatalogRows, cursors: Cursors, arrivals: Arrivals, leases: CassandraLeases
    ) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._listing = Listing(rows.keyspace)
        self._cursors = cursors
        self._arrivals = arrivals
        self._leases = leases
        # By consumed pipe: the groups for which it was cleared away here.
        self._cleared: dict[str, set[str]] = {}
        self.totals: Totals = Totals(rows)

    def retire(self, pipe_id: str, groups_version: int) -> bool:
        """Cost: five rounds of reads, three conditional writes, a hint; some writes per group."""
        pipe = self._rows.pipes.by_id(pipe_id)
        if pipe is None or pipe.row.state is not PipeState.SEALED:
            return False
        queue, groups = self._rows.queues.with_groups(pipe.row.queue_id)
        if queue is None or queue.groups_version != groups_version or not groups:
            return False
        readers = [group for group in groups if pipe.row.is_for(group.id)]
        cursors = self._cursors.of_groups(readers, pipe_id)
        assert pipe.row.end is not None
        if any((each.ack.seq if each else 0) < pipe.row.end.seq for each in cursors):
            return False
        before = self._rows.pipes.by_id(pipe.row.predecessor) if pipe.row.predecessor else None
        if before is not None and before.row.state < PipeState.CONSUMED:
            return False  # in order: if a predecessor is gone, so are all pipes before it
        if self._arrivals.is_arriving(pipe_id):
            return False
        totals = self.totals.held(pipe, readers, cursors)
        mark = self._rows.pipes.marked(pipe, RETIRING)
        if not mark:
            return False
        if not self._raised(pipe.row.queue_id, groups_version):
            self._rows.pipes.clear_mark(pipe_id, mark)
            return False
        self._rows.consumed.note([pipe_id])
        if not self._retired(pipe, mark, totals):
            return False
        self.clear_away(Pipe(pipe.row, "", totals), queue, groups)
        return True

    def _retired(self, pipe: Pipe, mark: str, totals: Sequence[Total]) -> bool:
        before = cql.totals_text(pipe.totals)
        values = (cql.totals_text(totals), pipe.row.id, mark, before)

        def is_done() -> bool:
            there = self._rows.pipes.serially(pipe.row.id)
            return there is None or there.row.state is PipeState.CONSUMED

        return self._cql.apply_settled(cql.RETIRE, values, is_done)

    def _raised(self, queue_id: str, version: int) -> bool:
        """Whether `groups_version` was certainly raised by us. An unknown outcome counts as not
        raised."""
        raised = self._rows.queues.raise_groups_version
        return settled(lambda: raised(queue_id, version), lambda: False)

    def clear_away(self, pipe: Pipe, queue: QueueRow | None, groups: Sequence[GroupRow]) -> None:
        """Clean up after a consumed pipe of this queue, unless this client has. Idempotent."""
        row = pipe.row
        mine = {group.id for group in groups}
        gone = mine | {each.row.group_id for each in pipe.totals}
        cleared = self._cleared.get(row.id)
        if cleared is None:
            self.totals.copy(pipe)
            self._cql.write(DROP_ARRIVALS, (row.id,))
        else:
            gone -= cleared
        for group_id in sorted(gone):
            self._cursors.drop((group_id, row.id))
        # The groups of an ap queue have no locks.
        locked = gone if queue is None or queue.policy.strict else gone - mine
        self._leases.forget([pipe_lock(group_id, row.id) for group_id in sorted(locked)])
        if len(self._cleared) >= CLEARED_MAX:
            self._cleared.clear()
        self._cleared[row.id] = gone | (cleared or set())

    def forget(self, pipe_id: str) -> None:
        """Forget that a pipe was cleared away: it is removed."""
        self._cleared.pop(pipe_id, None)

    # --- moving to another queue ----------------------------------------------------------------

    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        """Cost: some reads, conditional writes and hints, and a read and a conditional write for
        each group of the old queue."""
        pipe, group = self._rows.pipes.by_id(pipe_id), self._rows.queues.group(group_id)
        queue = self._rows.queues.by_id(queue_id)
        if pipe is None or group is None or queue is None or queue.deleted:
            return False
        if group.queue_id != queue_id or pipe.row.queue_id == queue_id:
            return False
        if pipe.row.state is not PipeState.SEALED or self._arrivals.is_arriving(pipe_id):
            return False
        mark = self._rows.pipes.marked(pipe, LEAVING)
        if not mark:
            return False
        old, groups = self._rows.queues.with_groups(pipe.row.queue_id)
        readers = [each for each in groups if pipe.row.is_for(each.id)]
        closed = old is not None and all(
            self._cursors.close((g.id, pipe_id), mark) for g in readers
        )
        if closed and old is not None and self._raised(old.id, old.groups_version):
            if self._go(pipe, readers, mark, group):
                return True
        else:
            self._rows.pipes.clear_mark(pipe_id, mark)
        self._cursors.open_all([each.id for each in readers], pipe_id, mark)
        return False

    def _go(self, pipe: Pipe, readers: Sequence[GroupRow], mark: str, group: GroupRow) -> bool:
        """Take the step that decides, and those after it."""
        row, queue_id = pipe.row, group.queue_id
        totals = (*pipe.totals, *self._left(pipe, readers))
        self._rows.consumed.note([row.id])
        position = self._listing.announce(queue_id, row.id)
        # A new time: what was merged back does not expire at once.
        now_ms = self._rows.keyspace.now_ms()
        values = (queue_id, group.id, position, now_ms, cql.totals_text(totals))
        old = (row.id, mark, cql.totals_text(pipe.totals))

        def is_gone() -> bool:
            there = self._rows.pipes.serially(row.id)
            return there is not None and there.row.ordinal == position

        if not self._cql.apply_settled(cql.REPOINT, (*values, *old), is_gone):
            self._listing.unlist(queue_id, PipeEntry(position, row.id))
            return False
        self.totals.copy(Pipe(row, "", totals))
        self._listing.unlist(row.queue_id, PipeEntry(row.ordinal, row.id))
        for each in readers:
            self._cursors.drop((each.id, row.id))
        for _ in self._cql.attempts():
            queue = self._rows.queues.by_id(queue_id)
            if queue is None or self._raised(queue_id, queue.groups_version):
                break
        return True

    def _left(self, pipe: Pipe, readers: Sequence[GroupRow]) -> list[Total]:
        """The totals that a moving pipe leaves in its old queue: all its messages are merged."""
        row = pipe.row
        assert row.end is not None
        pushed = row.end.seq
        cursors = self._cursors.of_groups(readers, row.id)
        starts = [each.start if each is not None else 0 for each in cursors]
        block = self.totals.likely_block(row.queue_id)
        left = [
            Retired(row.id, g.id, row.queue_id, start, pushed, 0, merged=pushed - start)
            for g, start in zip(readers, starts, strict=True)
        ]
        return [Total(each, block) for each in left]
