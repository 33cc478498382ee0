"""Pipes in Cassandra: their rows from open to gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cassq.cassandra.tries import UNSURE_MAX, unanswered
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.claim_rows import CURSOR, cursor_of
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.catalog.cassandra.partition.tombstones import REMOVED_MOST
from cassq.catalog.cassandra.pipes.listing import SLICES, Listing, PipeEntry
from cassq.catalog.cassandra.pipes.pipe_lists import DROP_ENTRIES, DROP_SLICES, PipeLists
from cassq.catalog.cassandra.pipes.retiring import Retiring
from cassq.catalog.cassandra.pipes.write_tables import CassandraWrites
from cassq.catalog.port import Pipes
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, PipeRow, PipeState, Retired, RetiredSum

LISTED_AT_ONCE = 64

# The newest pipe of a strict queue, by compare-and-set.
MOVE_TAIL = "UPDATE queues SET tail = ? WHERE queue_id = ? IF tail = ? AND deleted = false"


class CassandraPipes(Pipes):
    """Pipes from open to gone."""

    def __init__(self, rows: CatalogRows, writes: CassandraWrites, retiring: Retiring) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._listing = Listing(rows.keyspace)
        self._lists = PipeLists(rows, writes)
        self._writes = writes
        self._retiring = retiring
        self._totals = retiring.totals
        # By group and `unacked`: the pipes that the group has finished.
        self._done: dict[tuple[str, bool], set[str]] = {}

    # --- adding -------------------------------------------------------------------------------

    def add(self, row: PipeRow) -> bool:
        """Cost: a read, a round of hints, a conditional write, another read; in a strict queue also
        a read and a conditional write."""
        queue = self._rows.pipes.home(row)
        if queue is None:
            return False
        if row.stage:
            return self._stage_pipe(row)
        in_line = queue.policy.consistency == "cp" and not row.group_id
        after = 0
        if in_line:
            before = self._rows.pipes.by_id(row.predecessor) if row.predecessor else None
            if queue.tail != row.predecessor or (
                before is not None and before.row.state < PipeState.SEALED
            ):
                return False
            after = before.row.ordinal if before is not None else 0
        position = self._listing.announce(row.queue_id, row.id, after)
        if not self._rows.pipes.insert(replace(row, ordinal=position)):
            self._listing.unlist(row.queue_id, PipeEntry(position, row.id))
            return False
        # A client that deletes the queue or the group has either seen the listing, or is seen here.
        if self._rows.pipes.home(row) is None or (in_line and not self._become_tail(row)):
            self._rows.pipes.consume([row.id], row.queue_id)
            self.forget([row.id])
            return False
        self.urgent_added += row.priority > 0
        return True

    def _stage_pipe(self, row: PipeRow) -> bool:
        """Add a staged pipe. Cost: two reads, a hint, a conditional write, two reads again."""
        if not self._writes.takes(row):
            return False
        self._writes.note_staged(row)
        if not self._rows.pipes.insert(row):
            return False
        # A client that ends the write has either seen the note, or is seen here.
        if self._rows.pipes.home(row) is None or not self._writes.takes(row):
            self._rows.pipes.consume([row.id], row.queue_id)
            self.forget([row.id])
            return False
        return True

    def _become_tail(self, row: PipeRow) -> bool:
        values = (row.id, row.queue_id, row.predecessor)

        def is_tail() -> bool:
            queue = self._rows.queues.by_id(row.queue_id)
            return queue is not None and queue.tail == row.id

        return self._cql.apply_settled(MOVE_TAIL, values, is_tail)

    # --- live pipes ---------------------------------------------------------------------------

    def by_id(self, pipe_id: str) -> PipeRow | None:
        """Cost: two concurrent reads."""
        key = (pipe_id,)
        rows, beats = self._cql.read_many([(cql.PIPE, key), (cql.BEATS, key)])
        return cql.with_beats(cql.pipe_of(pipe_id, rows[0]).row, beats) if rows else None

    def live(self, queue_id: str) -> list[PipeRow]:
        """Cost: two rounds of reads, three for new slices; two reads per pipe."""
        return self._lists.live(queue_id)

    def ids(self) -> set[str]:
        """Cost: a scan of the whole table."""
        return {pipe_id for (pipe_id,) in self._cql.read(cql.ALL)}

    def beat(self, pipe_id: str, owner: str, state: PipeState, rate: int = 0) -> bool:
        """Cost: two concurrent reads, a plain write."""
        row = self.by_id(pipe_id)
        if row is None or row.owner != owner or row.state >= PipeState.SEALED:
            return False
        self._cql.write(cql.PUT_BEAT, (pipe_id, row.beat + 1, state != PipeState.READY, rate))
        return True

    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        """Cost: one conditional write; a read if an end was recorded before; for a staged pipe
        both, and another conditional write."""
        statement = cql.SEAL
        for _ in self._cql.attempts(UNSURE_MAX):
            (applied,) = self._cql.apply_many([(statement, (*end, pipe_id))])
            if applied:
                return end
            there = self._rows.pipes.serially(pipe_id)
            if there is None:
                return None
            row = there.row
            if row.end is not None or row.state is PipeState.CONSUMED:
                return row.end
            statement = cql.SEAL_STAGED if row.state is PipeState.STAGED else cql.SEAL
        raise unanswered(f"pipe {pipe_id} is sealed")

    def sealed_ms(self, pipe_ids: Sequence[str]) -> dict[str, int]:
        """Cost: one read each, concurrently."""
        found = self._cql.read_many([(cql.SEALED_AT, (pipe_id,)) for pipe_id in pipe_ids])
        return {
            pipe_id: rows[0][0] // 1000
            for pipe_id, rows in zip(pipe_ids, found, strict=True)
            if rows and rows[0][0] is not None
        }

    # --- unfinished pipes ---------------------------------------------------------------------

    def unclaimed(self, group: GroupRow, limit: int, *, unacked: bool = False) -> list[PipeRow]:
        """Cost: a round of reads, and one for each `LISTED_AT_ONCE` pipes not known to be done:
        pipes that a group has finished are cached. If there are more than `limit`, also one of
        those not read before."""
        done = self._done.setdefault((group.id, unacked), set())
        entries = self._lists.entries(group.queue_id)
        done &= {entry.pipe_id for entry in entries}
        left = [entry for entry in entries if entry.pipe_id not in done]
        found: list[PipeRow] = []
        for of_level in self._lists.by_priority(group.queue_id, left, limit):
            mine: list[PipeRow] = []
            while of_level and len(mine) < limit:
                part, of_level = of_level[:LISTED_AT_ONCE], of_level[LISTED_AT_ONCE:]
                rows = self._lists.live_of(group.queue_id, part)
                plain = [row for row in rows if row.timer_ms is None and row.is_for(group.id)]
                mine += self._unfinished(group.id, plain, done, unacked=unacked)
            found += mine[:limit]
        found.sort(key=lambda row: row.priority, reverse=True)
        return found

    def timers(self, group: GroupRow, until_ms: int, limit: int) -> list[PipeRow]:
        """Cost: a round of reads; one for timer pipes and pipes not read before; one for pipes that
        may be due."""
        timers = [
            row
            for row in self._lists.timers(group.queue_id)
            if row.timer_ms is not None and row.timer_ms < until_ms and row.is_for(group.id)
        ]
        left = self._unfinished(group.id, timers, set(), unacked=False)
        return sorted(left, key=lambda row: (row.timer_ms, row.ordinal))[:limit]

    def _unfinished(
        self, group_id: str, rows: Sequence[PipeRow], done: set[str], *, unacked: bool
    ) -> list[PipeRow]:
        """Pipes not sealed, or not claimed (acked) to their end. Cost: a round of reads."""
        ends = [(row.id, row.end.seq) for row in rows if row.end is not None]
        self._note_done([(group_id, *each, done) for each in ends], unacked=unacked)
        return [row for row in rows if row.id not in done]

    def _note_done(
        self, claims: Iterable[tuple[str, str, int, set[str]]], *, unacked: bool
    ) -> None:
        """Cache the pipes that groups have claimed (acked) to their ends. claims: each has the
        group, the pipe, its end, and the pipes that the group has finished. Cost: a round of
        reads."""
        asked = [
            ((group, pipe), end, done) for group, pipe, end, done in claims if pipe not in done
        ]
        answers = self._cql.read_many([(CURSOR, key) for key, _, _ in asked])
        for (key, end_seq, done), found in zip(asked, answers, strict=True):
            cursor = cursor_of(key, found[0]) if found else None
            at = 0 if cursor is None else (cursor.ack if unacked else cursor.chain).seq
            if at >= end_seq:
                done.add(key[1])

    # --- removing -----------------------------------------------------------------------------

    def consumed(self) -> list[PipeRow]:
        """Cost: 16 concurrent reads, then one per pipe."""
        pipes = self._rows.pipes.those(self._rows.consumed.ids())
        return [p.row for p in pipes if p is not None and p.row.state is PipeState.CONSUMED]

    def forget(self, pipe_ids: Sequence[str]) -> None:
        """Forgets them in listed order: in any other, each entry between removed ones keeps two
        gaps apart, and a read passes a tombstone for each. Cost: some writes per pipe, and a read
        of each queue's groups."""
        consumed: list[Pipe] = []
        for pipe_id, pipe in zip(pipe_ids, self._rows.pipes.those(pipe_ids), strict=True):
            if pipe is None:
                self._rows.consumed.drop(pipe_id)
            elif pipe.row.state is PipeState.CONSUMED:
                consumed.append(pipe)
        queue_ids = sorted({pipe.row.queue_id for pipe in consumed})
        homes = dict(zip(queue_ids, self._rows.queues.all_with_groups(queue_ids), strict=True))
        for queue_id, (queue, groups) in homes.items():
            mine = [pipe for pipe in consumed if pipe.row.queue_id == queue_id]
            self._retiring.clear_away(mine, queue, groups)
        rows = sorted((pipe.row for pipe in consumed), key=lambda row: row.ordinal)
        for at in range(0, len(rows), REMOVED_MOST):  # reads meanwhile pass few tombstones
            self._forget(rows[at : at + REMOVED_MOST])

    def _forget(self, rows: Sequence[PipeRow]) -> None:
        for row in rows:
            self._listing.unlist(row.queue_id, PipeEntry(row.ordinal, row.id))
            if row.stage:
                self._writes.unstage(row)
        self._cql.write_many([(cql.DROP_BEATS, (row.id,)) for row in rows])
        answers = self._cql.apply_many([(cql.FORGET, (row.id,)) for row in rows])
        for row, answer in zip(rows, answers, strict=True):
            if answer is not None:  # else it may still be there, for the next removal
                self._rows.consumed.drop(row.id)
                self._retiring.forget(row.id)

    def consume_all(self, queue_id: str) -> list[str]:
        """Make every pipe of a deleted queue consumed; return the ids of all that have rows."""
        # Staged pipes first: those listed meanwhile are seen in the listing.
        pipe_ids = self._writes.abort_all(queue_id)
        pipe_ids += [entry.pipe_id for entry in self._lists.entries(queue_id)]
        there = [
            pipe.row.id
            for pipe in self._rows.pipes.those(list(dict.fromkeys(pipe_ids)))
            if pipe is not None and pipe.row.queue_id == queue_id
        ]
        self._rows.pipes.consume(there, queue_id)
        return there

    def consume_of_group(self, queue_id: str, group_id: str) -> None:
        """Make the pipes for this group alone consumed."""
        rows = self._lists.live(queue_id)
        self._rows.pipes.consume([row.id for row in rows if row.group_id == group_id], queue_id)

    def has_any(self, queue_id: str) -> bool:
        """Whether a queue has any pipe, even a consumed one."""
        pipe_ids = [entry.pipe_id for entry in self._lists.entries(queue_id)]
        pipe_ids += self._writes.all_staged(queue_id)
        return any(
            pipe is not None and pipe.row.queue_id == queue_id
            for pipe in self._rows.pipes.those(pipe_ids)
        )

    def forget_all(self, queue_id: str) -> None:
        """Remove the listing of a deleted queue's pipes, and the totals of its retired ones."""
        for slice_, _, _ in self._cql.read(SLICES, (queue_id,)):
            if slice_ is not None:
                self._cql.write(DROP_ENTRIES, (queue_id, slice_))
        self._writes.forget(queue_id)
        self._cql.write(DROP_SLICES, (queue_id,))
        self._listing.forget(queue_id)
        self._totals.forget(queue_id)

    # --- candidates for the reaper ----------------------------------------------------------------

    def unsealed(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """Cost: three rounds of concurrent reads, some for each queue, and two for each pipe that
        is not known to be sealed."""
        found = self._lists.unsealed_in(self._rows.queues.scope(queue_ids))
        return _in_order(row for rows in found.values() for row in rows)

    def finished(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """Cost: as `unsealed`, without beats, and three rounds of reads: of the groups of queues
        with sealed pipes, of their cursors, and of the finished pipes. Pipes that a group has
        finished are cached."""
        sealed = self._lists.sealed_in(self._rows.queues.scope(queue_ids))
        wanted: list[tuple[str, PipeEntry, list[set[str]]]] = []
        looks: list[tuple[str, str, int, set[str]]] = []
        answers = self._rows.queues.all_with_groups(list(sealed))
        for (queue_id, pipes), (_, groups) in zip(sealed.items(), answers, strict=True):
            done = {group.id: self._done.setdefault((group.id, True), set()) for group in groups}
            listed = {entry.pipe_id for entry, _ in pipes}
            for some in done.values():
                some &= listed
            for entry, facts in pipes if groups else []:
                mine = [group.id for group in groups if facts.is_for(group.id)]
                end_seq = facts.end_seq or 0
                looks += [(group_id, entry.pipe_id, end_seq, done[group_id]) for group_id in mine]
                wanted.append((queue_id, entry, [done[group_id] for group_id in mine]))
        self._note_done(looks, unacked=True)
        found: dict[str, list[PipeEntry]] = {}
        for queue_id, entry, all_done in wanted:
            if all(entry.pipe_id in one for one in all_done):
                found.setdefault(queue_id, []).append(entry)
        rows = self._lists.rows(found, beats=False).values()
        return _in_order(row for some in rows for row in some if row.state is PipeState.SEALED)

    def live_queues(self) -> list[str]:
        """The ids of queues that have live pipes. Cost: two rounds of reads, one of the newest pipe
        of each queue, and one of all pipes of queues whose newest is not live."""
        return sorted(self._lists.with_live(self._rows.queues.scope(None)))

    # --- retiring and moving ------------------------------------------------------------------

    def retire(self, pipe_ids: Sequence[str], groups_version: int) -> list[str]:
        return self._retiring.retire(pipe_ids, groups_version)

    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        return self._retiring.repoint(pipe_id, queue_id, group_id)

    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        return self._totals.retired(queue_id, pipe_id)

    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        return self._totals.retired_sums(queue_id)


def _in_order(rows: Iterable[PipeRow]) -> list[PipeRow]:
    return sorted(rows, key=lambda row: row.ordinal)
