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

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cassq.cassandra.session import settled
from cassq.catalog.cassandra.claims.arrivals import DROP_ARRIVALS, Arrivals
from cassq.catalog.cassandra.claims.cursor_tables import Cursors
from cassq.catalog.cassandra.lease_tables import CassandraLeases
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.claim_rows import Key
from cassq.catalog.cassandra.partition.pipe_rows import LEAVING, RETIRING, Pipe, Total
from cassq.catalog.cassandra.pipes.listing import Listing, PipeEntry
from cassq.catalog.cassandra.pipes.totals import Totals
from cassq.catalog.port import pipe_lock
from cassq.model.rows import Cursor, GroupRow, PipeRow, PipeState, QueueRow, Retired

# After how many pipes cleared away here, but removed by others, all are forgotten.
CLEARED_MAX = 1_000


class Retirement(NamedTuple):
    """A pipe that is about to be retired. pipe: its row as it was read. totals: which it will then
    have. mark: on its row; "" if there is none."""

    pipe: Pipe
    totals: tuple[Total, ...]
    mark: str = ""


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

    def retire(self, pipe_ids: Sequence[str], groups_version: int) -> list[str]:
        """Cost: six rounds of reads, a round of hints and a conditional write; for each pipe two
        conditional writes, one after another, and some writes per group, concurrently."""
        pipes = [pipe for pipe in self._rows.pipes.those(pipe_ids) if pipe is not None]
        sealed = [pipe for pipe in pipes if pipe.row.state is PipeState.SEALED]
        if not sealed:
            return []
        queue_id = sealed[0].row.queue_id
        queue, groups = self._rows.queues.with_groups(queue_id)
        if queue is None or queue.groups_version != groups_version or not groups:
            return []
        acked = self._acked([pipe for pipe in sealed if pipe.row.queue_id == queue_id], groups)
        marked = [
            each._replace(mark=self._rows.pipes.marked(each.pipe, RETIRING)) for each in acked
        ]
        begun = [each for each in marked if each.mark]
        if not begun:
            return []
        if not self._raised(queue_id, groups_version):
            for each in begun:
                self._rows.pipes.clear_mark(each.pipe.row.id, each.mark)
            return []
        self._rows.consumed.note([each.pipe.row.id for each in begun])
        retired = self._retired(begun, {each.pipe.row.id for each in acked})
        self.clear_away(retired, queue, groups)
        return [pipe.row.id for pipe in retired]

    def _acked(self, pipes: Sequence[Pipe], groups: Sequence[GroupRow]) -> list[Retirement]:
        """The retirements that may begin, of sealed pipes of a queue with these groups."""
        readers = {p.row.id: [g.id for g in groups if p.row.is_for(g.id)] for p in pipes}
        keys = [(group_id, pipe_id) for pipe_id, mine in readers.items() for group_id in mine]
        found = dict(zip(keys, self._cursors.at(keys), strict=True))
        cursors = {
            pipe_id: {group_id: found[group_id, pipe_id] for group_id in mine}
            for pipe_id, mine in readers.items()
        }
        acked = [pipe for pipe in pipes if _is_acked(pipe.row, cursors[pipe.row.id].values())]
        arriving = self._arrivals.arriving([pipe.row.id for pipe in acked])
        may = self._in_order([pipe for pipe in acked if pipe.row.id not in arriving])
        held = self.totals.held(may, cursors)
        return [Retirement(pipe, totals) for pipe, totals in zip(may, held, strict=True)]

    def _in_order(self, pipes: Sequence[Pipe]) -> list[Pipe]:
        """Those whose predecessor is consumed, gone, or one of those before it: if a predecessor is
        gone, so are all pipes before it."""
        mine = {pipe.row.id for pipe in pipes}
        others = sorted({pipe.row.predecessor for pipe in pipes} - mine - {""})
        found = self._rows.pipes.those(others)
        gone = {""}
        for pipe_id, there in zip(others, found, strict=True):
            if there is None or there.row.state is PipeState.CONSUMED:
                gone.add(pipe_id)
        may: list[Pipe] = []
        for pipe in pipes:
            if pipe.row.predecessor in gone:
                gone.add(pipe.row.id)
                may.append(pipe)
        return may

    def _retired(self, begun: Sequence[Retirement], acked: set[str]) -> list[Pipe]:
        """Take the step that decides, in order; return the pipes that are retired. acked: the ids
        of those that were to be, one of which may be the predecessor of another."""
        left = set(acked)
        retired: list[Pipe] = []
        for each in begun:
            row = each.pipe.row
            if row.predecessor not in left and self._decided(each):
                left.discard(row.id)
                retired.append(Pipe(row, "", each.totals))
        return retired

    def _decided(self, each: Retirement) -> bool:
        pipe_id, before = each.pipe.row.id, cql.totals_text(each.pipe.totals)
        values = (cql.totals_text(each.totals), pipe_id, each.mark, before)

        def is_done() -> bool:
            there = self._rows.pipes.serially(pipe_id)
            return there is None or there.row.state is PipeState.CONSUMED

        return self._cql.apply_settled(cql.RETIRE, values, is_done)

    def _raised(self, queue_id: str, version: int) -> bool:
        """Whether `groups_version` was certainly raised by us. An unknown outcome counts as not
        raised."""
        raised = self._rows.queues.raise_groups_version
        return settled(lambda: raised(queue_id, version), lambda: False)

    def clear_away(
        self, pipes: Sequence[Pipe], queue: QueueRow | None, groups: Sequence[GroupRow]
    ) -> None:
        """Clean up after consumed pipes of this queue, but for what this client cleaned up before.
        Idempotent. Cost: a round of conditional batches, some of plain writes, and a conditional
        batch for a number of pipes."""
        new = [pipe for pipe in pipes if pipe.row.id not in self._cleared]
        self.totals.copy_all(new)
        self._cql.write_many([(DROP_ARRIVALS, (pipe.row.id,)) for pipe in new])
        mine = {group.id for group in groups}
        gone: list[Key] = []
        for pipe in pipes:
            concerned = mine | {each.row.group_id for each in pipe.totals}
            cleared = self._cleared.get(pipe.row.id, set())
            gone += [(group_id, pipe.row.id) for group_id in sorted(concerned - cleared)]
        self._cursors.drop(gone)
        strict = queue is None or queue.policy.strict
        unlocked = {group.id for group in groups if not (strict or group.policy.exclusive)}
        self._leases.forget([pipe_lock(*key) for key in gone if key[0] not in unlocked])
        if len(self._cleared) >= CLEARED_MAX:
            self._cleared.clear()
        for pipe in new:
            self._cleared[pipe.row.id] = set()
        for group_id, pipe_id in gone:
            self._cleared.setdefault(pipe_id, set()).add(group_id)

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
        if pipe.row.state is not PipeState.SEALED or self._arrivals.arriving([pipe_id]):
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
        self._cursors.drop([(each.id, row.id) for each in readers])
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
        cursors = self._cursors.at([(each.id, row.id) for each in readers])
        starts = [each.start if each is not None else 0 for each in cursors]
        block = self.totals.likely_block(row.queue_id)
        left = [
            Retired(row.id, g.id, row.queue_id, start, pushed, 0, merged=pushed - start)
            for g, start in zip(readers, starts, strict=True)
        ]
        return [Total(each, block) for each in left]


def _is_acked(row: PipeRow, cursors: Iterable[Cursor | None]) -> bool:
    """Whether all groups, which have these cursors, have acked all of a sealed pipe."""
    assert row.end is not None
    return all((each.ack.seq if each else 0) >= row.end.seq for each in cursors)
