"""What is due, in Cassandra: claims are looked through pipe by pipe, as they are remembered.

A partition is read anew when something in it may be due by what is remembered, and now and then
because others may have written there: the more rarely, the longer it has stood still. What this
process writes it knows at once.
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
RECHECK_MOST_MS = 1000  # of what has stood still for long
_STILL = 10  # what has stood still for so long times a pause is looked at after that pause


class DueClaims:
    """What is due, looked for in what is remembered."""

    def __init__(self, rows: CatalogRows, cursors: Cursors, memory: PartitionCaches) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._cursors = cursors
        self._memory = memory

    def due(
        self, group_id: str, now_ms: int, limit: int, *, without: Sequence[str] = ()
    ) -> list[Claim]:
        """Cost: one round of reads: of the pipes that may have something due, or were not looked
        at for `RECHECK_MS`."""
        found = self.all_due([group_id], now_ms, without)
        return heapq.nsmallest(limit, found, key=lambda row: (row.due_ms, row.pipe_id, row.start))

    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        """Cost: as `due`; none just after it."""
        known = self.looked_at([group_id], None, without)
        times = [each.due_ms for each in known]
        return min((due_ms for due_ms in times if due_ms is not None), default=None)

    def all_due(
        self, group_ids: Sequence[str], now_ms: int, without: Collection[str] = ()
    ) -> list[Claim]:
        """All that is due of some groups."""
        return [
            row
            for known in self.looked_at(group_ids, now_ms, without)
            for row in list(known.rows.values())
            if row.state is not ClaimState.DONE and row.due_ms <= now_ms
        ]

    def looked_at(
        self, group_ids: Sequence[str], until_ms: int | None, without: Collection[str]
    ) -> list[PartitionCache]:
        """What is known of the groups' pipes, fresh where something may be due by then."""
        now_ms = self._rows.keyspace.clock.boot_ms()
        stale = [
            group_id
            for group_id in group_ids
            if self._cursors.listed(group_id).read_ms is None
            or now_ms - self._cursors.listed(group_id).asked_ms >= RECHECK_MS
        ]
        known = list(self._known_of(group_ids, without))
        wanted = [each for each in known if _needs_look(each, now_ms, until_ms)]
        # Others need not read the same at the same time.
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
        self._read_partitions([each for each in known if each.read_ms is None])
        return known

    def _read_partitions(
        self, wanted: Sequence[PartitionCache], others: Sequence[Statement] = ()
    ) -> list[list[Row]]:
        """Read partitions anew; the answers to other statements that are asked with them."""
        writes = [each.writes for each in wanted]
        reads = [cql.read_statement(each.key, each.ack_seq) for each in wanted]
        answers = self._cql.read_many([*others, *reads])
        for each, before, rows in zip(wanted, writes, answers[len(others) :], strict=True):
            self._take_in(each, before, rows)
            if each.cursor is None:
                self._repair(each)
        return answers[: len(others)]

    def _take_in(self, known: PartitionCache, writes: int, rows: Sequence[Row]) -> None:
        """Remember what was read, unless this process has written there since."""
        with known.lock:
            if known.writes == writes:
                known.load(*cql.parted(known.key, rows), self._rows.keyspace.clock.boot_ms())

    def _repair(self, known: PartitionCache) -> None:
        """There is no cursor where there is a hint of one: it is not made yet, or the pipe went
        and somebody crashed."""
        pipe = self._rows.pipes.by_id(known.key[1])
        if pipe is None or pipe.row.state is PipeState.CONSUMED:
            self._cursors.unnote(known.key)

    def _known_of(
        self, group_ids: Iterable[str], without: Collection[str]
    ) -> Iterable[PartitionCache]:
        for group_id in group_ids:
            for pipe_id in list(self._cursors.listed(group_id).pipe_ids):
                if pipe_id not in without:
                    yield self._memory.of((group_id, pipe_id))


def _needs_look(known: PartitionCache, now_ms: int, until_ms: int | None) -> bool:
    """Whether a partition is to be read: what is remembered may be old."""
    if known.read_ms is None:
        return True
    pause = min(max((known.read_ms - known.changed_ms) // _STILL, RECHECK_MS), RECHECK_MOST_MS)
    if now_ms - max(known.read_ms, known.asked_ms) >= pause:
        return True
    # Whoever takes what is due bit by bit has written since, and knows what he has taken.
    due = until_ms is not None and known.due_ms is not None and known.due_ms <= until_ms
    return due and known.writes == known.writes_when_read
