"""Due claims in Cassandra: found pipe by pipe, in the cached partitions.

A partition is read again when the cache says that something in it may be due, and now and then
because others may have written there; less often the longer it has been unchanged, and not at all
once the group has acked all of a sealed pipe. This process's own writes are cached at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence

from cassq.cassandra.session import Row, Statement
from cassq.catalog.cassandra.claims.cursor_tables import COVER_PIPES, LIST_PIPES, Cursors
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.partition_cache import PartitionCache, PartitionCaches
from cassq.model.rows import Claim, ClaimState, PipeState

RECHECK_MS = 100
RECHECK_MOST_MS = 1000  # for partitions long unchanged
_STILL = 10  # a partition unchanged for ten pauses is read again after one pause


class DueClaims:
    """Finds due claims in cached partitions."""

    def __init__(self, rows: CatalogRows, cursors: Cursors, memory: PartitionCaches) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._cursors = cursors
        self._memory = memory

    def due(
        self, group_id: str, now_ms: int, limit: int, without: Sequence[str], *, upward: bool
    ) -> list[Claim]:
        """Cost: one round of reads, of pipes that may have due claims or were not read for
        `RECHECK_MS`."""
        found = self.all_due([group_id], now_ms, without)
        sign = 1 if upward else -1
        return heapq.nsmallest(
            limit,
            found,
            key=lambda row: (sign * row.priority, row.due_ms, row.pipe_id, row.start),
        )

    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        """Cost: as `due`; none just after it."""
        known = self.looked_at([group_id], None, without)
        times = [each.due_ms for each in known]
        return min((due_ms for due_ms in times if due_ms is not None), default=None)

    def all_due(
        self, group_ids: Sequence[str], now_ms: int, without: Collection[str] = ()
    ) -> list[Claim]:
        """All due claims of these groups."""
        return [
            row
            for known in self.looked_at(group_ids, now_ms, without)
            for row in list(known.rows.values())
            if row.state is not ClaimState.DONE and row.due_ms <= now_ms
        ]

    def looked_at(
        self, group_ids: Sequence[str], until_ms: int | None, without: Collection[str]
    ) -> list[PartitionCache]:
        """The cached partitions of the groups, read again where claims may be due by `until_ms`."""
        now_ms = self._rows.keyspace.clock.boot_ms()
        stale = [
            group_id
            for group_id in group_ids
            if self._cursors.listed(group_id).read_ms is None
            or now_ms - self._cursors.listed(group_id).asked_ms >= RECHECK_MS
        ]
        known = list(self._known_of(group_ids, without))
        wanted = [each for each in known if self._needs_look(each, now_ms, until_ms)]
        # Other threads need not read the same at the same time.
        for group_id in stale:
            self._cursors.listed(group_id).asked_ms = now_ms
        for each in wanted:
            each.asked_ms = now_ms
        asked_us = self._cql.stamp() if stale else 0
        lists = self._read_partitions(wanted, [(LIST_PIPES, (each,)) for each in stale])
        if not stale:
            return known
        for group_id, rows in zip(stale, lists, strict=True):
            pipe_ids = [pipe_id for (pipe_id,) in rows]
            self._cursors.listed(group_id).pipe_ids = dict.fromkeys(pipe_ids)
            self._rows.keyspace.gaps.read(COVER_PIPES, (group_id,), pipe_ids, asked_us)
            self._cursors.listed(group_id).read_ms = now_ms
        known = list(self._known_of(group_ids, without))
        self._read_partitions([p for p in known if p.read_ms is None and not self._is_over(p)])
        return known

    def _read_partitions(
        self, wanted: Sequence[PartitionCache], others: Sequence[Statement] = ()
    ) -> list[list[Row]]:
        """Read partitions again; return the answers to other statements sent with the reads."""
        writes = [each.writes for each in wanted]
        reads = [cql.read_statement(each.key, each.ack_seq) for each in wanted]
        answers = self._cql.read_many([*others, *reads])
        for each, before, rows in zip(wanted, writes, answers[len(others) :], strict=True):
            self._take_in(each, before, rows)
            if each.cursor is None:
                self._repair(each)
        return answers[: len(others)]

    def _take_in(self, known: PartitionCache, writes: int, rows: Sequence[Row]) -> None:
        """Cache the rows, unless this process has written there since the read."""
        with known.lock:
            if known.writes == writes:
                known.load(*cql.parted(known.key, rows), self._rows.keyspace.clock.boot_ms())

    def _repair(self, known: PartitionCache) -> None:
        """Handle a hint without a cursor: the cursor is not created yet, or the pipe was removed by
        a client that crashed."""
        pipe = self._rows.pipes.by_id(known.key[1])
        if pipe is None or pipe.row.state is PipeState.CONSUMED:
            self._cursors.unnote(known.key)

    def _known_of(
        self, group_ids: Iterable[str], without: Collection[str]
    ) -> Iterable[PartitionCache]:
        left_out = frozenset(without)
        for group_id in group_ids:
            for pipe_id in list(self._cursors.listed(group_id).pipe_ids):
                if pipe_id not in left_out:
                    yield self._memory.of((group_id, pipe_id))

    def _needs_look(self, known: PartitionCache, now_ms: int, until_ms: int | None) -> bool:
        """Whether to read a partition again, because the cache may be stale."""
        if self._is_over(known):
            return False
        if known.read_ms is None:
            return True
        pause = min(max((known.read_ms - known.changed_ms) // _STILL, RECHECK_MS), RECHECK_MOST_MS)
        if now_ms - max(known.read_ms, known.asked_ms) >= pause:
            return True
        # A client that takes due claims one by one has written since, and knows its own writes.
        due = until_ms is not None and known.due_ms is not None and known.due_ms <= until_ms
        return due and known.writes == known.writes_when_read

    def _is_over(self, known: PartitionCache) -> bool:
        """Whether the group has acked the whole pipe, so that nothing in it comes due again."""
        end_seq = self._rows.known.end_seq(known.key[1])
        return end_seq is not None and known.ack_seq >= end_seq
