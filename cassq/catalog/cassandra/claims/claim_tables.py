"""Cursors, claims and moves in Cassandra: each operation is a conditional batch on one partition.

`claim_plans` decides what to write; `conditional_writer` writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.claims.arrivals import Arrivals
from cassq.catalog.cassandra.claims.cursor_tables import Cursors
from cassq.catalog.cassandra.claims.due_tables import DueClaims
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.claim_plans import (
    ConditionalBatch,
    PartitionChanges,
    PlannedBatch,
    SettledFacts,
    in_rounds,
    plan_claim,
    plan_fence,
    plan_mend,
    plan_replace,
)
from cassq.catalog.cassandra.partition.conditional_writer import (
    ConditionalWriter,
    Plan,
)
from cassq.catalog.cassandra.partition.partition_cache import PartitionCache
from cassq.catalog.cover import fault
from cassq.catalog.port import Claims
from cassq.errors import BackendError, CassqError, CorruptionError
from cassq.message.frames import Place
from cassq.model.rows import Claim, ClaimState, Cursor, GroupRow, Move, Removed

logger: logging.Logger = logging.getLogger("cassq")

SEQ_MAX = cql.ANCHOR


# The marks in a failure record, as stored, that make a free claim urgent.
MARKS = ('"doomed":', '"moving":', '"leaving":')


class CassandraClaims(Claims):
    """Cursors, claims and moves."""

    def __init__(
        self, rows: CatalogRows, partitions: ConditionalWriter, cursors: Cursors, arrivals: Arrivals
    ) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._partitions = partitions
        self._cursors = cursors
        self._due = DueClaims(rows, cursors, partitions.memory)
        self._arrivals = arrivals

    # --- cursors ------------------------------------------------------------------------------

    def cursors_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[Cursor | None]:
        return self._cursors.cursors_in(group_id, pipe_ids)

    def cursors(self, group_id: str, pipe_ids: Sequence[str] | None = None) -> list[Cursor]:
        return self._cursors.cursors(group_id, pipe_ids)

    # --- claims -------------------------------------------------------------------------------

    reserves = True

    def claim(
        self,
        cursor: Cursor,
        chain: Place,
        rows: Sequence[Claim],
        *,
        removed: Sequence[Removed] = (),
        synced: bool = False,
        reserve: Claim | None = None,
    ) -> bool:
        """Cost: one conditional batch. `synced` changes nothing: a quorum has it either way.
        After a refusal it backs off, so that competing claimers do not keep colliding."""
        if cursor.owner and self.turn_into_row(cursor):
            return False

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            return plan_claim(known, cursor, chain, rows, removed, reserve, fresh=fresh)

        step = self._partitions.change((cursor.group_id, cursor.pipe_id), plan)
        known = self._partitions.memory.of((cursor.group_id, cursor.pipe_id))
        if step.results == [True]:
            known.refused = 0
        elif not step.sure:
            self._partitions.back_off(known)
        return step.results == [True]

    def fence_all(self, cursors: Sequence[Cursor], owner: str) -> list[Cursor | None]:
        """Cost: one round of conditional batches."""

        def plan_of(cursor: Cursor) -> Plan:
            def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
                if not fresh:
                    known.see(cursor)
                step = plan_fence(known, cursor, owner)
                return None if not fresh and not step.sure else step

            return plan

        plans = {(each.group_id, each.pipe_id): plan_of(each) for each in cursors}
        fenced: list[Cursor | None] = []
        for step in self._partitions.change_all(plans):
            if not isinstance(step, PlannedBatch):
                raise step
            fenced.append(step.cursor if step.results == [True] else None)
        return fenced

    def rows_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Claim]]:
        """Cost: one round of reads, of the rows from the ack offsets on."""
        return self._partitions.read_all([(group_id, pipe_id) for pipe_id in pipe_ids])

    def rows(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Claim]:
        """Cost: one read, of the rows that begin between the ack offset and `seqs.stop`."""
        known = self._partitions.memory.of((group_id, pipe_id))
        if seqs is None:
            return self.rows_in(group_id, [pipe_id])[0]
        values = (group_id, pipe_id, known.ack_seq, min(seqs.stop, SEQ_MAX))
        rows = cql.claims_of(known.key, self._partitions.read_of(known, cql.CLAIMS_OF, values))
        return cql.joined(row for row in rows if row.end > seqs.start)

    def replace(
        self,
        old: Claim,
        new: Sequence[Claim],
        *,
        epoch: int | None = None,
        settle: Sequence[Move] = (),
        withdraw: Sequence[Move] = (),
        removed: Sequence[Removed] = (),
    ) -> bool:
        """Cost: one conditional batch; plus a round of plain writes for withdrawn moves."""
        key = (old.group_id, old.pipe_id)
        facts = SettledFacts(settle, withdraw, removed)

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            nonlocal facts
            if fresh and facts.withdraw:
                facts = self._without_settled(key, facts)
            step = plan_replace(known, [(old, new)], epoch, facts)
            return step if step is None or fresh or step.sure else None

        done = self._partitions.change(key, plan).results == [True]
        if done and (settle or withdraw):
            self._forget_arrivals(settle, withdraw)
        return done

    def _forget_arrivals(self, settled: Sequence[Move], withdrawn: Sequence[Move]) -> None:
        """Forget announcements. A failure does no harm: they expire by themselves."""
        try:
            self._arrivals.settled(settled, withdrawn=False)
            self._arrivals.settled(withdrawn, withdrawn=True)
        except BackendError as exc:
            logger.info("announcements of moves could not be deleted, and will expire: %s", exc)

    def _without_settled(self, key: cql.Key, facts: SettledFacts) -> SettledFacts:
        """The facts without withdrawals of moves that others have settled."""
        seqs = [move.seq for move in facts.withdraw]
        values = (*key, min(seqs), max(seqs) + 1)
        there = cql.moves_of(key, self._cql.read(cql.MOVES, values, serial=True))
        settled = {move.seq for move in there if move.settled}
        left = [move for move in facts.withdraw if move.seq not in settled]
        return SettledFacts(facts.settle, left, facts.removed)

    def mend(
        self, cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place
    ) -> bool:
        """Cost: a read, one conditional batch."""

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            return plan_mend(known, cursor, old, new, chain) if fresh else None

        return self._partitions.change((cursor.group_id, cursor.pipe_id), plan).results == [True]

    def replace_many(
        self,
        changes: Sequence[tuple[Claim, Sequence[Claim]]],
        *,
        epochs: Sequence[int | None] | None = None,
        synced: bool = True,
    ) -> list[bool]:
        """Cost: a round of conditional batches, one per (group, pipe). Always as durable as the
        keyspace makes it."""
        results = [False] * len(changes)
        failures: list[CassqError] = []
        for parts in in_rounds(changes, epochs or [None] * len(changes)):
            for part, done in zip(parts, self._replace_parts(parts), strict=True):
                if isinstance(done, CorruptionError):
                    # A problem with one pipe must not cost another pipe its acks.
                    logger.warning("cannot write the acks of pipe %s: %s", part.key[1], done)
                elif isinstance(done, CassqError):
                    failures.append(done)
                else:
                    for at, one in zip(part.numbers, done, strict=True):
                        results[at] = one
            if failures:
                raise _for_all(failures, some_done=any(results))
        return results

    def _replace_parts(self, parts: Sequence[PartitionChanges]) -> list[list[bool] | CassqError]:
        """Change several partitions; return the results for each, or its error."""
        if len(parts) == 1 and parts[0].epoch is None:
            try:
                return [self._partitions.replace_together(parts[0].key, parts[0].changes)]
            except CassqError as exc:
                return [exc]
        done = self._partitions.change_all({part.key: part.plan for part in parts})
        return [each.results if isinstance(each, PlannedBatch) else each for each in done]

    # --- moves --------------------------------------------------------------------------------

    def intend(
        self, move: Move, instead_of: Move | None = None, *, held: Claim | None = None
    ) -> Move | None:
        """Cost: one plain write, one conditional batch."""
        key = (move.group_id, move.pipe_id)
        batch = ConditionalBatch(key)
        if held is not None:
            batch.rows.append(_check(held))
        if instead_of is None:
            batch.rows.append(cql.put_move(cql.FIRST_MOVE, move))
        else:
            batch.rows.append(cql.put_move(cql.NEXT_MOVE, move, instead_of))
        self._arrivals.note([move])
        there: Move | None = None

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            nonlocal there
            if fresh:
                there = next(iter(self._moves(key, range(move.seq, move.seq + 1))), None)
                if held is not None and not _holds(known, held):
                    there = None
                    return PlannedBatch(None, [False])
                if there is not None and there != instead_of:
                    return PlannedBatch(None, [False])
                if there is None and instead_of is not None:
                    batch.rows[-1] = cql.put_move(cql.FIRST_MOVE, move)
            return PlannedBatch(batch, [True], known.cursor)

        return move if self._partitions.change(key, plan).results == [True] else there

    def intend_many(self, moves: Sequence[Move], held: Claim) -> bool:
        """Cost: a round of plain writes, one conditional batch."""
        batch = ConditionalBatch((held.group_id, held.pipe_id), rows=[_check(held)])
        batch.rows += (cql.put_move(cql.PUT_MOVE, move) for move in moves)
        self._arrivals.note(moves)

        def plan(known: PartitionCache, fresh: bool) -> PlannedBatch | None:
            return PlannedBatch(batch, [True], known.cursor, final=True)

        return self._partitions.change(batch.key, plan).results == [True]

    def moves(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Move]:
        """Cost: one read."""
        key = (group_id, pipe_id)
        first, last = (0, SEQ_MAX) if seqs is None else (seqs.start, seqs.stop)
        return cql.moves_of(key, self._cql.read(cql.MOVES, (*key, first, last)))

    def moves_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Move]]:
        """Cost: one round of reads."""
        keys = [(group_id, pipe_id) for pipe_id in pipe_ids]
        listed = self._cql.read_many((cql.MOVES, (*key, 0, SEQ_MAX)) for key in keys)
        return [cql.moves_of(key, rows) for key, rows in zip(keys, listed, strict=True)]

    def _moves(self, key: cql.Key, seqs: range) -> list[Move]:
        values = (*key, seqs.start, seqs.stop)
        return cql.moves_of(key, self._cql.read(cql.MOVES, values, serial=True))

    def removed(self, group_id: str, pipe_id: str) -> list[Removed]:
        """Cost: one read."""
        return self.removed_in(group_id, [pipe_id])[0]

    def removed_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[list[Removed]]:
        """Cost: one round of reads."""
        keys = [(group_id, pipe_id) for pipe_id in pipe_ids]
        listed = self._cql.read_many((cql.REMOVED, key) for key in keys)
        return [
            [cql.removed_of(key, row) for row in rows]
            for key, rows in zip(keys, listed, strict=True)
        ]

    # --- due claims ---------------------------------------------------------------------------

    def due(
        self,
        group_id: str,
        now_ms: int,
        limit: int,
        *,
        without: Sequence[str] = (),
        upward: bool = False,
    ) -> list[Claim]:
        return self._due.due(group_id, now_ms, limit, without, upward=upward)

    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        return self._due.next_due_ms(group_id, without=without)

    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """Cost: a read per queue, concurrently, then as `due` for all groups together."""
        found = self._rows.queues.all_with_groups(self._rows.queues.scope(queue_ids))
        groups = {
            group.id: group
            for queue, some in found
            if queue is not None and not queue.deleted
            for group in some
        }
        due = {row.group_id for row in self._due.all_due(sorted(groups), now_ms)}
        return [groups[group_id] for group_id in sorted(due)]

    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        """Cost: a read per queue, concurrently, then as `next_due_ms` for all groups together:
        the caches are searched."""
        answers = self._rows.queues.all_with_groups(self._rows.queues.scope(queue_ids))
        groups = [group.id for queue, some in answers if queue is not None for group in some]
        found: list[tuple[str, str]] = []
        for known in self._due.looked_at(groups, None, ()):
            with known.lock:
                cursor, rows = known.cursor, [known.rows[start] for start in known.starts]
            if (
                cursor is not None
                and cursor.chain.seq != cql.CLOSED
                and fault(cursor, cql.joined(rows))
            ):
                found.append(known.key)
        return found

    def all_overdue(
        self, deliveries: Mapping[str, int], now_ms: int, limit: int
    ) -> dict[str, list[Claim]]:
        """Cost: as `due` for all groups together."""
        found: dict[str, list[Claim]] = {group_id: [] for group_id in deliveries}
        for row in self._due.all_due(list(deliveries), now_ms):
            if (
                row.state is ClaimState.HELD
                or row.deliveries >= deliveries[row.group_id]
                or any(mark in row.failure for mark in MARKS)
            ):
                found[row.group_id].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row.state, row.due_ms, row.pipe_id, row.start))
        return {group_id: rows[:limit] for group_id, rows in found.items()}


def _check(held: Claim) -> Statement:
    """The condition that a claim row still has its version."""
    return cql.CHECK_CLAIM, (held.pos, held.group_id, held.pipe_id, held.start, held.version)


def _holds(known: PartitionCache, held: Claim) -> bool:
    row = known.rows.get(held.start)
    return row is not None and row.version == held.version


def _for_all(failures: Sequence[CassqError], *, some_done: bool) -> CassqError:
    """One error for several changes: the first, whose `outcome_unknown` is that of all."""
    first = failures[0]
    unknown = some_done or any(getattr(each, "outcome_unknown", False) for each in failures)
    if isinstance(first, BackendError):
        first.outcome_unknown = unknown
    return first
