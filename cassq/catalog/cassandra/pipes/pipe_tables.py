"""Pipes in Cassandra: their rows from open to gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cassq.cassandra.session import Row, settled
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.claim_rows import CURSOR, cursor_of
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.catalog.cassandra.pipes.pipe_lists import (
    DROP_ENTRIES,
    DROP_SLICES,
    NOTE_CONSUMED,
    SLICES,
    Entry,
    consumed_key,
)
from cassq.catalog.cassandra.pipes.retiring import Retiring
from cassq.catalog.cassandra.pipes.write_tables import WriteTables
from cassq.errors import BackendTimeoutError
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, PipeRow, PipeState, QueueRow

TRIES = 20
INSERT_TRIES = 3
LISTED_AT_ONCE = 64

# The newest pipe of a strict queue, by compare-and-set.
MOVE_TAIL = "UPDATE queues SET tail = ? WHERE queue_id = ? IF tail = ? AND deleted = false"


class PipeTables(WriteTables, Retiring):
    """The part of the catalog that knows pipes."""

    _done: dict[tuple[str, bool], set[str]]  # by group and `unacked`: what it has done with

    # --- coming -------------------------------------------------------------------------------

    def add_pipe(self, row: PipeRow) -> bool:
        """Cost: a read, a round of hints, a conditional write, a read again; in a strict queue a
        read and a conditional write more."""
        queue = self._home(row)
        if queue is None:
            return False
        if row.stage:
            return self._stage_pipe(row)
        in_line = queue.policy.consistency == "cp" and not row.group_id
        after = 0
        if in_line:
            before = self._pipe_record(row.predecessor) if row.predecessor else None
            if queue.tail != row.predecessor or (
                before is not None and before.row.state < PipeState.SEALED
            ):
                return False
            after = before.row.ordinal if before is not None else 0
        position = self._announce(row.queue_id, row.id, after)
        if not self._insert(replace(row, ordinal=position)):
            self._unlist(row.queue_id, Entry(position, row.id))
            return False
        # Who deletes the queue or the group has either seen the listing, or is seen here.
        if self._home(row) is None or (in_line and not self._become_tail(row)):
            self._consume([row.id], row.queue_id)
            self.forget_pipes([row.id])
            return False
        return True

    def _home(self, row: PipeRow) -> QueueRow | None:
        """The queue of a pipe; None when that, or the group the pipe is for, is no more."""
        queue, groups = self._queue_and_groups(row.queue_id)
        if queue is None or queue.deleted:
            return None
        if row.group_id and row.group_id not in (group.id for group in groups):
            return None
        return queue

    def _insert(self, row: PipeRow) -> bool:
        """Whether the row is ours, and not another's of the same id. What did not arrive is
        written again: no row is no sign that the queue is gone."""
        self._cql.write(cql.PUT_BEAT, (row.id, row.beat, row.state != PipeState.READY, row.rate))
        values = cql.columns(row)
        found: list[Row] = []

        def stands() -> bool:
            found[:] = self._cql.read(cql.PIPE, (row.id,), serial=True)
            return bool(found)

        failed = 0
        while not settled(lambda: self._cql.apply(cql.ADD_PIPE, values)[0], stands):
            if stands():
                break
            failed += 1
            if failed == INSERT_TRIES:
                raise BackendTimeoutError(f"the row of pipe {row.id} could not be written")
        return not found or cql.pipe_of(row.id, found[0]).row.ordinal == row.ordinal

    def _become_tail(self, row: PipeRow) -> bool:
        values = (row.id, row.queue_id, row.predecessor)

        def is_tail() -> bool:
            queue = self.queue_by_id(row.queue_id)
            return queue is not None and queue.tail == row.id

        return settled(lambda: self._cql.apply(MOVE_TAIL, values)[0], is_tail)

    # --- being there --------------------------------------------------------------------------

    def pipe(self, pipe_id: str) -> PipeRow | None:
        """Cost: two reads side by side."""
        key = (pipe_id,)
        rows, beats = self._cql.read_many([(cql.PIPE, key), (cql.BEATS, key)])
        return cql.told(cql.pipe_of(pipe_id, rows[0]).row, beats) if rows else None

    def pipes(self, queue_id: str) -> list[PipeRow]:
        """Cost: three rounds of reads; two reads a pipe."""
        return self._live(queue_id)

    def pipe_ids(self) -> set[str]:
        """Cost: a scan of the whole table."""
        return {pipe_id for (pipe_id,) in self._cql.read(cql.ALL)}

    def beat(self, pipe_id: str, owner: str, state: PipeState, rate: int = 0) -> bool:
        """Cost: two reads side by side, a plain write."""
        row = self.pipe(pipe_id)
        if row is None or row.owner != owner or row.state >= PipeState.SEALED:
            return False
        self._cql.write(cql.PUT_BEAT, (pipe_id, row.beat + 1, state != PipeState.READY, rate))
        return True

    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        """Cost: one conditional write; a read where one was recorded before; for a staged pipe
        both, and another conditional write."""
        statement = cql.SEAL
        for _ in range(TRIES):
            (applied,) = self._cql.apply_many([(statement, (*end, pipe_id))])
            if applied:
                return end
            rows = self._cql.read(cql.PIPE, (pipe_id,), serial=True)
            row = cql.pipe_of(pipe_id, rows[0]).row if rows else None
            if row is None or row.end is not None or row.state is PipeState.CONSUMED:
                return row.end if row is not None else None
            statement = cql.SEAL_STAGED if row.state is PipeState.STAGED else cql.SEAL
        raise BackendTimeoutError(f"pipe {pipe_id} could not be sealed", outcome_unknown=True)

    # --- what is left to do -------------------------------------------------------------------

    def unclaimed_pipes(
        self, group: GroupRow, limit: int, *, unacked: bool = False
    ) -> list[PipeRow]:
        """Cost: two rounds of reads, and one for each `LISTED_AT_ONCE` pipes not known to be
        done: what a group has done with is remembered."""
        done = self._done.setdefault((group.id, unacked), set())
        entries = self._entries(group.queue_id)
        done &= {entry.pipe_id for entry in entries}
        left = [entry for entry in entries if entry.pipe_id not in done]
        found: list[PipeRow] = []
        while left and len(found) < limit:
            part, left = left[:LISTED_AT_ONCE], left[LISTED_AT_ONCE:]
            rows = self._live_of(group.queue_id, part)
            mine = [row for row in rows if row.timer_ms is None and row.is_for(group.id)]
            found += self._unfinished(group.id, mine, done, unacked=unacked)
        return found[:limit]

    def timer_pipes(self, group: GroupRow, until_ms: int, limit: int) -> list[PipeRow]:
        """Cost: as `pipes`, and a round of reads for those that may be due."""
        timers = [
            row
            for row in self._live(group.queue_id)
            if row.timer_ms is not None and row.timer_ms < until_ms and row.is_for(group.id)
        ]
        left = self._unfinished(group.id, timers, set(), unacked=False)
        return sorted(left, key=lambda row: (row.timer_ms, row.ordinal))[:limit]

    def _unfinished(
        self, group_id: str, rows: Sequence[PipeRow], done: set[str], *, unacked: bool
    ) -> list[PipeRow]:
        """Those not sealed, or not claimed (acked) to their end. Cost: a round of reads."""
        self._note_done([(group_id, row, done) for row in rows], unacked=unacked)
        return [row for row in rows if row.id not in done]

    def _note_done(self, told: Iterable[tuple[str, PipeRow, set[str]]], *, unacked: bool) -> None:
        """Of groups and pipes: add those that are claimed (acked) to their end to what is done.
        Cost: a round of reads."""
        asked = [
            ((group_id, row.id), row.end, done)
            for group_id, row, done in told
            if row.end is not None and row.id not in done
        ]
        answers = self._cql.read_many([(CURSOR, key) for key, _, _ in asked])
        for (key, end, done), found in zip(asked, answers, strict=True):
            cursor = cursor_of(key, found[0]) if found else None
            at = 0 if cursor is None else (cursor.ack if unacked else cursor.chain).seq
            if at >= end.seq:
                done.add(key[1])

    # --- going --------------------------------------------------------------------------------

    def consumed_pipes(self) -> list[PipeRow]:
        """Cost: 16 reads side by side, then one a pipe."""
        pipes = self._pipe_records(self._consumed_ids())
        return [p.row for p in pipes if p is not None and p.row.state is PipeState.CONSUMED]

    def forget_pipes(self, pipe_ids: Sequence[str]) -> None:
        """Cost: some writes a pipe, and the reads of its queue's groups."""
        for pipe_id, pipe in zip(pipe_ids, self._pipe_records(pipe_ids), strict=True):
            if pipe is None:
                self._drop_consumed(pipe_id)
            elif pipe.row.state is PipeState.CONSUMED:
                self._forget(pipe)

    def _forget(self, pipe: Pipe) -> None:
        row = pipe.row
        self._clear_away(pipe)
        self._unlist(row.queue_id, Entry(row.ordinal, row.id))
        if row.stage:
            self._unstage_entry(row)
        self._cql.write(cql.DROP_BEATS, (row.id,))
        self._cql.apply_many([(cql.FORGET, (row.id,))])
        self._drop_consumed(row.id)

    def _consume_pipes(self, queue_id: str) -> list[str]:
        # Staged ones first: what is listed meanwhile is seen in the listing.
        pipe_ids = self._abort_writes(queue_id)
        pipe_ids += [entry.pipe_id for entry in self._entries(queue_id)]
        there = [
            pipe.row.id
            for pipe in self._pipe_records(list(dict.fromkeys(pipe_ids)))
            if pipe is not None and pipe.row.queue_id == queue_id
        ]
        self._consume(there, queue_id)
        return there

    def _consume_pipes_of(self, queue_id: str, group_id: str) -> None:
        """Make the pipes that are for one group alone consumed."""
        rows = self._live(queue_id)
        self._consume([row.id for row in rows if row.group_id == group_id], queue_id)

    def _consume(self, pipe_ids: Iterable[str], queue_id: str) -> None:
        """Cost: a round of hints, a round of conditional writes."""
        left = list(pipe_ids)
        self._cql.write_many([(NOTE_CONSUMED, consumed_key(pipe_id)) for pipe_id in left])
        for _ in range(TRIES):
            answers = self._cql.apply_many([(cql.CONSUME, (each, queue_id)) for each in left])
            left = [each for each, done in zip(left, answers, strict=True) if done is None]
            if not left:
                return
        raise BackendTimeoutError(f"pipes of queue {queue_id} were not removed")

    def _has_pipes(self, queue_id: str) -> bool:
        pipe_ids = [entry.pipe_id for entry in self._entries(queue_id)]
        pipe_ids += self._all_staged(queue_id)
        return any(
            pipe is not None and pipe.row.queue_id == queue_id
            for pipe in self._pipe_records(pipe_ids)
        )

    def _forget_pipe_records(self, queue_id: str) -> None:
        for slice_, _, _ in self._cql.read(SLICES, (queue_id,)):
            if slice_ is not None:
                self._cql.write(DROP_ENTRIES, (queue_id, slice_))
        self._forget_writes(queue_id)
        self._cql.write(DROP_SLICES, (queue_id,))
        self._forget_totals(queue_id)
