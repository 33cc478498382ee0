"""How a pipe ends, or goes to another queue: steps in several partitions, one of which decides.

To retire a pipe means that every group has acked it, and that no group comes that has not. Whoever
retires

1. reads the queue's `groups_version` and groups, and looks at the ack offset of each: what is all
   acked of a sealed pipe stays so, and so do the totals of it;
2. puts his mark on the pipe's row;
3. raises `groups_version`, by compare-and-set from what he read: no group came in between;
4. makes the pipe consumed, in the same statement writes its totals there, if his mark is still on
   it; then copies the totals and removes the cursors. Whoever comes after a crash does that again.

A group that is made after 3 may find the pipe live before 4. Once it asks for a cursor it finds
the mark, for a group that was known in 1 has its cursor or needs none, and removes it: the pipe
stays. So either the group never saw the pipe, or the pipe is not retired.

To give a pipe to another queue means that nobody has claimed from it, and nobody will in the old
queue. Whoever does puts his mark on the row, closes the cursor of each group (see
`cursor_tables`), raises the old `groups_version` so that no further group is there, and then
changes the row, if his mark is still on it, together with what the pipe leaves in the ledger of
its old queue. Marks of this kind that are older than `MARK_MS` were left by a crash; those of the
other kind do nothing but stop their owner when they are removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cassq.cassandra.session import settled
from cassq.catalog.cassandra.claims.arrivals import DROP_ARRIVALS, Arrivals
from cassq.catalog.cassandra.claims.cursor_tables import CursorTables
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.claim_rows import CURSOR, cursor_of
from cassq.catalog.cassandra.partition.pipe_rows import LEAVING, RETIRING, Pipe, Total
from cassq.catalog.cassandra.pipes.pipe_lists import NOTE_CONSUMED, Entry, consumed_key
from cassq.catalog.cassandra.pipes.totals import Totals
from cassq.errors import BackendError
from cassq.model.rows import Cursor, GroupRow, PipeState, Retired

MARK_MS = 30_000
TRIES = 20


class Retiring(Totals, CursorTables, Arrivals):
    """The part of the catalog that takes pipes away from their queues."""

    def retire(self, pipe_id: str, groups_version: int) -> bool:
        """Cost: five rounds of reads, three conditional writes, a hint; some writes a group."""
        pipe = self._pipe_record(pipe_id)
        if pipe is None or pipe.row.state is not PipeState.SEALED:
            return False
        queue, groups = self._queue_and_groups(pipe.row.queue_id)
        if queue is None or queue.groups_version != groups_version or not groups:
            return False
        readers = [group for group in groups if pipe.row.is_for(group.id)]
        cursors = self._cursors_in(readers, pipe_id)
        assert pipe.row.end is not None
        if any((each.ack.seq if each else 0) < pipe.row.end.seq for each in cursors):
            return False
        before = self._pipe_record(pipe.row.predecessor) if pipe.row.predecessor else None
        if before is not None and before.row.state < PipeState.CONSUMED:
            return False  # in order: that a predecessor is gone means that all before it is
        if self._is_arriving(pipe_id):
            return False
        totals = self._held(pipe, readers, cursors)
        mark = self._marked(pipe, RETIRING)
        if not mark:
            return False
        if not self._raised(pipe.row.queue_id, groups_version):
            self._clear_mark(pipe_id, mark)
            return False
        self._cql.write(NOTE_CONSUMED, consumed_key(pipe_id))
        if not self._retired(pipe, mark, totals):
            return False
        self._clear_away(Pipe(pipe.row, "", totals), [group.id for group in groups])
        return True

    def _retired(self, pipe: Pipe, mark: str, totals: Sequence[Total]) -> bool:
        before = cql.totals_text(pipe.totals)
        values = (cql.totals_text(totals), pipe.row.id, mark, before)

        def is_done() -> bool:
            rows = self._cql.read(cql.PIPE, (pipe.row.id,), serial=True)
            return not rows or rows[0][1] == PipeState.CONSUMED

        return settled(lambda: self._cql.apply(cql.RETIRE, values)[0], is_done)

    def _raised(self, queue_id: str, version: int) -> bool:
        """Whether `groups_version` was raised by us. When that cannot be told it was not, for what
        follows."""
        try:
            return self._raise_groups_version(queue_id, version)
        except BackendError as exc:
            if not exc.outcome_unknown:
                raise
            return False

    def _clear_away(self, pipe: Pipe, group_ids: Collection[str] = ()) -> None:
        """What is to be done when a pipe is consumed. Safe to do again."""
        row = pipe.row
        self._copy_totals(pipe)
        if not group_ids:
            group_ids = [group.id for group in self.groups(row.queue_id)]
        gone = {*group_ids, *(each.row.group_id for each in pipe.totals)}
        for group_id in sorted(gone):
            self._drop_partition((group_id, row.id))
        self._forget_locks([f"pop:{group_id}:{row.id}" for group_id in sorted(gone)])
        self._cql.write(DROP_ARRIVALS, (row.id,))

    # --- marks --------------------------------------------------------------------------------

    def _marked(self, pipe: Pipe, kind: str) -> str:
        """The mark that the pipe bears now; "" when it bears another's that is to stay."""
        if pipe.is_leaving and not self._unmarked(pipe):
            return ""
        there = "" if pipe.is_leaving else pipe.mark
        mark = f"{kind}:{self.now_ms()}:{self._ids.version()}"
        values = (mark, pipe.row.id, there, pipe.row.queue_id)

        def is_there() -> bool:
            rows = self._cql.read(cql.PIPE, (pipe.row.id,), serial=True)
            return bool(rows) and cql.pipe_of(pipe.row.id, rows[0]).mark == mark

        return mark if settled(lambda: self._cql.apply(cql.SET_MARK, values)[0], is_there) else ""

    def _unmarked(self, pipe: Pipe) -> bool:
        """Whether a pipe bears no mark, now: somebody needs it to stay."""
        if not pipe.mark:
            return True
        if pipe.is_leaving and self.now_ms() - pipe.marked_ms < MARK_MS:
            return False
        return self._clear_mark(pipe.row.id, pipe.mark)

    def _clear_mark(self, pipe_id: str, mark: str) -> bool:
        def is_cleared() -> bool:
            rows = self._cql.read(cql.PIPE, (pipe_id,), serial=True)
            return bool(rows) and cql.pipe_of(pipe_id, rows[0]).mark == ""

        values = (pipe_id, mark)
        return settled(lambda: self._cql.apply(cql.CLEAR_MARK, values)[0], is_cleared)

    # --- going to another queue -----------------------------------------------------------------

    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        """Cost: some reads, conditional writes and hints, and a read and a conditional write for
        each group of the old queue."""
        pipe, group = self._pipe_record(pipe_id), self._group(group_id)
        queue = self.queue_by_id(queue_id)
        if pipe is None or group is None or queue is None or queue.deleted:
            return False
        if group.queue_id != queue_id or pipe.row.queue_id == queue_id:
            return False
        if pipe.row.state is not PipeState.SEALED or self._is_arriving(pipe_id):
            return False
        mark = self._marked(pipe, LEAVING)
        if not mark:
            return False
        old, groups = self._queue_and_groups(pipe.row.queue_id)
        readers = [each for each in groups if pipe.row.is_for(each.id)]
        closed = old is not None and all(self._close((g.id, pipe_id), mark) for g in readers)
        if closed and old is not None and self._raised(old.id, old.groups_version):
            if self._go(pipe, readers, mark, group):
                return True
        else:
            self._clear_mark(pipe_id, mark)
        self._open_all([each.id for each in readers], pipe_id, mark)
        return False

    def _go(self, pipe: Pipe, readers: Sequence[GroupRow], mark: str, group: GroupRow) -> bool:
        """The step that decides, and what follows."""
        row, queue_id = pipe.row, group.queue_id
        totals = (*pipe.totals, *self._left(pipe, readers))
        self._cql.write(NOTE_CONSUMED, consumed_key(row.id))
        position = self._announce(queue_id, row.id)
        # A new time: what was merged back does not expire at once.
        values = (queue_id, group.id, position, self.now_ms(), cql.totals_text(totals))
        old = (row.id, mark, cql.totals_text(pipe.totals))

        def is_gone() -> bool:
            rows = self._cql.read(cql.PIPE, (row.id,), serial=True)
            return bool(rows) and cql.pipe_of(row.id, rows[0]).row.ordinal == position

        if not settled(lambda: self._cql.apply(cql.REPOINT, (*values, *old))[0], is_gone):
            self._unlist(queue_id, Entry(position, row.id))
            return False
        self._copy_totals(Pipe(row, "", totals))
        self._unlist(row.queue_id, Entry(row.ordinal, row.id))
        for each in readers:
            self._drop_partition((each.id, row.id))
        for _ in range(TRIES):
            queue = self.queue_by_id(queue_id)
            if queue is None or self._raised(queue_id, queue.groups_version):
                break
        return True

    def _left(self, pipe: Pipe, readers: Sequence[GroupRow]) -> list[Total]:
        """What a pipe that goes leaves in the ledger of its old queue: all of it is merged."""
        row = pipe.row
        assert row.end is not None
        pushed = row.end.seq
        cursors = self._cursors_in(readers, row.id)
        starts = [each.start if each is not None else 0 for each in cursors]
        block = self._likely_block(row.queue_id)
        left = [
            Retired(row.id, g.id, row.queue_id, start, pushed, 0, merged=pushed - start)
            for g, start in zip(readers, starts, strict=True)
        ]
        return [Total(each, block) for each in left]

    # --- what is in it --------------------------------------------------------------------------

    def _cursors_in(self, groups: Sequence[GroupRow], pipe_id: str) -> list[Cursor | None]:
        """The cursors of groups in a pipe. Cost: a round of reads."""
        keys = [(group.id, pipe_id) for group in groups]
        found = self._cql.read_many([(CURSOR, key) for key in keys])
        return [
            cursor_of(key, rows[0]) if rows else None for key, rows in zip(keys, found, strict=True)
        ]
