"""What may have something to do, in Cassandra: looked for queue by queue.

There is no index over all queues: what is asked of all is asked of each, side by side. Where names
are all that is known of a queue, as it may be for a moment, it has no pipes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cassq.cassandra.session import settled
from cassq.catalog.cassandra.claims.due_tables import DueTables
from cassq.catalog.cassandra.partition.claim_rows import CLOSED, joined
from cassq.catalog.cassandra.pipes.pipe_tables import PipeTables
from cassq.catalog.cover import fault
from cassq.model.rows import Claim, ClaimState, GroupRow, PipeRow, PipeState, QueueRow

# The compare-and-set of a wish.
WISH = (
    "UPDATE queues SET wished_pipes = ?, wished_ms = ? WHERE queue_id = ?"
    " IF wished_pipes = ? AND wished_ms = ? AND deleted = false"
)
# The marks of a failure record by which a free claim is to be looked at, as they stand in it.
MARKS = ('"doomed":', '"moving":', '"leaving":')


class HintTables(PipeTables, DueTables):
    """The part of the catalog that knows where something may be to do."""

    def unsealed_pipes(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """Cost: three rounds of reads, of some for each queue and pipe side by side."""
        found = self._live_in(self._scope(queue_ids))
        rows = (row for live in found.values() for row in live)
        return _in_order(row for row in rows if row.state < PipeState.SEALED)

    def finished_pipes(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        """Cost: as `unsealed_pipes`, and two rounds of reads: of the groups of queues with sealed
        pipes, and of how far they are. What a group has done with is remembered."""
        live = self._live_in(self._scope(queue_ids))
        sealed = {
            queue_id: rows
            for queue_id, some in live.items()
            if (rows := [row for row in some if row.state is PipeState.SEALED])
        }
        wanted: list[tuple[PipeRow, list[set[str]]]] = []
        looks: list[tuple[str, PipeRow, set[str]]] = []
        answers = self._queues_and_groups(list(sealed))
        for rows, (_, groups) in zip(sealed.values(), answers, strict=True):
            done = {group.id: self._done.setdefault((group.id, True), set()) for group in groups}
            for row in rows if groups else []:
                mine = [group.id for group in groups if row.is_for(group.id)]
                looks += [(group_id, row, done[group_id]) for group_id in mine]
                wanted.append((row, [done[group_id] for group_id in mine]))
        self._note_done(looks, unacked=True)
        return _in_order(row for row, all_done in wanted if all(row.id in one for one in all_done))

    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """Cost: a read a queue side by side, then as `due` for all groups together."""
        found = self._queues_and_groups(self._scope(queue_ids))
        groups = {
            group.id: group
            for queue, some in found
            if queue is not None and not queue.deleted
            for group in some
        }
        due = {row.group_id for row in self._due(sorted(groups), now_ms)}
        return [groups[group_id] for group_id in sorted(due)]

    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        """Cost: a read a queue side by side, then as `next_due_ms` for all groups together: what
        is remembered is looked through."""
        answers = self._queues_and_groups(self._scope(queue_ids))
        groups = [group.id for queue, some in answers if queue is not None for group in some]
        found: list[tuple[str, str]] = []
        for known in self._looked_at(groups, None, ()):
            with known.lock:
                cursor, rows = known.cursor, [known.rows[start] for start in known.starts]
            if cursor is not None and cursor.chain.seq != CLOSED and fault(cursor, joined(rows)):
                found.append(known.key)
        return found

    def overdue(self, group_id: str, now_ms: int, deliveries: int, limit: int) -> list[Claim]:
        """Cost: as `due`."""
        return self.all_overdue({group_id: deliveries}, now_ms, limit)[group_id]

    def all_overdue(
        self, deliveries: Mapping[str, int], now_ms: int, limit: int
    ) -> dict[str, list[Claim]]:
        """Cost: as `due` for all groups together."""
        found: dict[str, list[Claim]] = {group_id: [] for group_id in deliveries}
        for row in self._due(list(deliveries), now_ms):
            if (
                row.state is ClaimState.HELD
                or row.deliveries >= deliveries[row.group_id]
                or any(mark in row.failure for mark in MARKS)
            ):
                found[row.group_id].append(row)
        for rows in found.values():
            rows.sort(key=lambda row: (row.state, row.due_ms, row.pipe_id, row.start))
        return {group_id: rows[:limit] for group_id, rows in found.items()}

    def limited_queues(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        """Cost: a read a queue, side by side."""
        return [row for row in self._queue_rows(queue_ids) if _is_limited(row)]

    def busy_queues(self, queue_ids: Collection[str] | None = None) -> list[str]:
        """Cost: as `unsealed_pipes`, and as `limited_queues`."""
        rows = self._queue_rows(queue_ids)
        wished = {row.id for row in rows if row.wished_pipes > 1}
        rest = [row.id for row in rows if row.id not in wished]
        pushed = {row.queue_id for row in self.unsealed_pipes(rest) if row.rate > 0}
        return sorted(wished | pushed)

    def wish_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        """Cost: one conditional write."""
        values = (pipes, at_ms, queue.id, queue.wished_pipes, queue.wished_ms)

        def is_wished() -> bool:
            row = self.queue_by_id(queue.id)
            return row is not None and (row.wished_pipes, row.wished_ms) == (pipes, at_ms)

        return settled(lambda: self._cql.apply(WISH, values)[0], is_wished)

    def live_queues(self) -> list[str]:
        """Cost: as `unsealed_pipes`."""
        return sorted(self._live_in(self._scope(None)))

    def _scope(self, queue_ids: Collection[str] | None) -> list[str]:
        return list(queue_ids) if queue_ids is not None else self._listed_queues()

    def _queue_rows(self, queue_ids: Collection[str] | None) -> list[QueueRow]:
        rows = self.queues_by_id(self._scope(queue_ids))
        return [row for row in rows if row is not None and not row.deleted]


def _in_order(rows: Iterable[PipeRow]) -> list[PipeRow]:
    return sorted(rows, key=lambda row: row.ordinal)


def _is_limited(row: QueueRow) -> bool:
    """Whether its messages expire, are limited in number, or are deduplicated."""
    policy = row.policy
    limits = (policy.message_ttl, policy.retain_unconsumed, policy.max_length)
    return any(limit is not None for limit in limits) or bool(policy.dedup_window)
