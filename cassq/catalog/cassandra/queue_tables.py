"""Queues and groups in Cassandra.

A queue and its groups are one partition, so that creating a group, deleting one and retiring a
pipe compare and set one `groups_version`. A queue's name is assigned by a separate row: a new queue
may take the name if that row points to a queue that is deleted or gone.

A deleted group leaves a row without a policy until all its data is removed, so that after a crash
the next client knows what is left to do.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple

from cassq.base.clock import contended
from cassq.base.ids import made_at_ms
from cassq.cassandra.session import Statement, settled
from cassq.catalog.cassandra.claims.cursor_tables import Cursors
from cassq.catalog.cassandra.lease_tables import FORGET_LEASE
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.queue_rows import (
    PLACE,
    QUEUE,
    QUEUE_AND_GROUPS,
    QUEUE_COLUMNS,
    RAISE_GROUPS_VERSION,
    QueueAndGroups,
    name_slice,
    queue_row,
)
from cassq.catalog.cassandra.pipes.pipe_tables import CassandraPipes
from cassq.catalog.cassandra.record_tables import CassandraRecords
from cassq.catalog.cassandra.replication import least_replicas
from cassq.catalog.port import Queues, limit_names, line_name, released_name
from cassq.message.frames import Place
from cassq.model.queues import OWN, GroupPolicy, QueuePolicy, to_json
from cassq.model.rows import GroupRow, PipeRow, QueueRow, Sample

logger: logging.Logger = logging.getLogger("cassq")

ORPHAN_MS = 3_600_000  # creating a queue never takes this long

# A new queue with its first group.
ADD_QUEUE = (
    f"INSERT INTO queues ({QUEUE_COLUMNS}, group_name, group_id, group_policy, group_created_ms)"
    " VALUES (?, ?, ?, 1, 1, '', false, 1, 0, ?, ?, ?, ?) IF NOT EXISTS"
)
# Changes the policy.
CHANGE_POLICY = (
    "UPDATE queues SET policy = ?, version = ?"
    " WHERE queue_id = ? IF version = ? AND deleted = false"
)
MARK_DELETED = "UPDATE queues SET deleted = true WHERE queue_id = ? IF deleted = false"
# Together these remove a deleted queue's partition.
FORGET_QUEUE = (
    (
        f"DELETE {QUEUE_COLUMNS.removeprefix('queue_id, ')} FROM queues WHERE queue_id = ?"
        " IF deleted = true"
    ),
    "DELETE FROM queues WHERE queue_id = ? AND group_name >= ''",
)

# The queue that has a name.
NAMED = "SELECT queue_id FROM queue_ids WHERE name = ?"
TAKE_NAME = "INSERT INTO queue_ids (name, queue_id) VALUES (?, ?) IF NOT EXISTS"
TAKE_NAME_OVER = "UPDATE queue_ids SET queue_id = ? WHERE name = ? IF queue_id = ?"
FREE_NAME = "DELETE FROM queue_ids WHERE name = ? IF queue_id = ?"
NOTE_NAME = "INSERT INTO queue_names (slice, name, queue_id) VALUES (?, ?, ?)"
UNNOTE_NAME = "DELETE FROM queue_names WHERE slice = ? AND name = ? AND queue_id = ?"

RAISE_GROUPS_VERSION_ALWAYS = (
    "UPDATE queues SET groups_version = ? WHERE queue_id = ? IF groups_version = ?"
)
ADD_GROUP = (
    "INSERT INTO queues (queue_id, group_name, group_id, group_policy, group_created_ms)"
    " VALUES (?, ?, ?, ?, ?) IF NOT EXISTS"
)
CHANGE_GROUP = (
    "UPDATE queues SET group_policy = ? WHERE queue_id = ? AND group_name = ? IF group_id = ?"
)
DROP_GROUP = "DELETE FROM queues WHERE queue_id = ? AND group_name = ? IF group_id = ?"
# The same for a group that expires, if no popper was noted since.
EXPIRE_GROUP = f"{DROP_GROUP} AND group_polled_ms = ?"
# What an expired group leaves: like any deleted group, and the sample that records it.
ADD_EXPIRED = (
    "INSERT INTO queues (queue_id, group_name, group_id, group_removal)"
    " VALUES (?, ?, ?, ?) IF NOT EXISTS"
)
# Notes a popper.
POLL_GROUP = (
    "UPDATE queues SET group_polled_ms = ? WHERE queue_id = ? AND group_name = ? IF group_id = ?"
)
NOTE_PLACE = "INSERT INTO group_places (group_id, queue_id, name) VALUES (?, ?, ?)"
UNNOTE_PLACE = "DELETE FROM group_places WHERE group_id = ?"

# Sets the desired number of pipes, by compare-and-set.
SET_DESIRED_PIPES = (
    "UPDATE queues SET wished_pipes = ?, wished_ms = ? WHERE queue_id = ?"
    " IF wished_pipes = ? AND wished_ms = ? AND deleted = false"
)


class CassandraQueues(Queues):
    """Queues and groups."""

    def __init__(
        self, rows: CatalogRows, pipes: CassandraPipes, cursors: Cursors, records: CassandraRecords
    ) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._pipes = pipes
        self._cursors = cursors
        self._records = records
        self._warned = False

    # --- queues -------------------------------------------------------------------------------

    def create(self, row: QueueRow, default: GroupRow) -> bool:
        """Cost: two concurrent hints, two conditional writes."""
        values = (row.id, row.name, to_json(row.policy), *_group_values(default))
        self._cql.write_many(
            [
                (NOTE_NAME, (name_slice(row.name), row.name, row.id)),
                (NOTE_PLACE, (default.id, row.id, default.name)),
            ]
        )

        def is_there() -> bool:
            return bool(self._cql.read(QUEUE, (row.id,), serial=True))

        self._cql.apply_until(ADD_QUEUE, values, is_there, f"queue {row.name!r} was created")
        if self._take_name(row.name, row.id):
            self._warn(row)
            return True
        self._cql.apply(MARK_DELETED, (row.id,))
        self.forget(row.id)
        return False

    def _take_name(self, name: str, queue_id: str) -> bool:
        """Take a name for a queue; False if another queue has it."""

        def is_ours() -> bool:
            return self._cql.read(NAMED, (name,), serial=True) == [(queue_id,)]

        def take_over(holder: str) -> bool:
            values = (queue_id, name, holder)
            return self._cql.apply_settled(TAKE_NAME_OVER, values, is_ours)

        for _ in self._cql.attempts():
            if self._cql.apply_settled(TAKE_NAME, (name, queue_id), is_ours):
                return True
            holder = self._cql.read(NAMED, (name,))
            if not holder:
                continue  # given up this moment
            held = self._rows.queues.by_id(holder[0][0])
            if held is not None and not held.deleted:
                return held.id == queue_id
            if take_over(holder[0][0]):
                return True
        raise contended(f"the name {name!r}")

    def named(self, name: str) -> QueueRow | None:
        """Cost: two reads, one after the other."""
        found = self._cql.read(NAMED, (name,))
        row = self._rows.queues.by_id(found[0][0]) if found else None
        if row is None or row.deleted:
            return None
        self._warn(row)
        return row

    def by_ids(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        return self._rows.queues.by_ids(queue_ids)

    def _warn(self, row: QueueRow) -> None:
        """Warn once that a cp queue cannot keep its promises."""
        if row.policy.strict and not self._warned and least_replicas(self._cql) == 1:
            self._warned = True
            logger.warning(
                "queue %s is cp, but its keyspace has one replica: it stops while that server is"
                " down, and its messages are lost with that server; use three replicas",
                row.name,
            )

    def listed(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        """Cost: 16 concurrent reads, then two per queue, concurrently."""
        queue_ids = [queue_id for _, queue_id in self._rows.queues.names(prefix)]
        found = self._rows.queues.by_ids(queue_ids)
        rows = [row for row in found if row is not None and row.deleted == deleted]
        if deleted:
            return rows
        # A queue that lost its name to another while being created has a row for a moment.
        owners = self._cql.read_many([(NAMED, (row.name,)) for row in rows])
        mine = [row for row, owner in zip(rows, owners, strict=True) if owner == [(row.id,)]]
        self._clear_orphans(set(rows) - set(mine))
        return mine

    def _clear_orphans(self, nameless: Iterable[QueueRow]) -> None:
        """Delete old queues that never got a name, because their creator died or lost it. The sweep
        does the rest. Cost: a conditional write each."""
        old_ms = self._rows.keyspace.now_ms() - ORPHAN_MS
        old = [row for row in nameless if (made_ms := made_at_ms(row.id)) and made_ms < old_ms]
        self._cql.apply_many([(MARK_DELETED, (row.id,)) for row in old])

    def update(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        """Cost: one conditional write."""
        values = (to_json(policy), version + 1, queue_id, version)

        def is_ours() -> bool:
            rows = self._cql.read(QUEUE, (queue_id,), serial=True)
            found = queue_row(rows[0]) if rows else None
            return found is not None and (found.version, found.policy) == (version + 1, policy)

        return self._cql.apply_settled(CHANGE_POLICY, values, is_ours)

    def delete(self, queue_id: str) -> list[str]:
        """Cost: a read, two conditional writes, and one per pipe, concurrently."""
        row = self._rows.queues.by_id(queue_id)
        if row is None:
            return []
        if not row.deleted:

            def is_marked() -> bool:
                found = self._cql.read(QUEUE, (queue_id,), serial=True)
                return not found or queue_row(found[0]).deleted

            what = f"queue {row.name!r} is deleted"
            self._cql.apply_until(MARK_DELETED, (queue_id,), is_marked, what)
        # If a crash keeps the name from being freed here, the next queue of that name takes it.
        self._cql.apply(FREE_NAME, (row.name, queue_id))
        return self._pipes.consume_all(queue_id)

    def forget(self, queue_id: str) -> None:
        """Cost: some reads and writes per group, and per slice of its records."""
        row = self._rows.queues.by_id(queue_id)
        if row is None or not row.deleted or self._pipes.has_any(queue_id):
            return
        for found in self._cql.read(QUEUE_AND_GROUPS, (queue_id,)):
            if found[10] is not None:
                self._drop_group_records(queue_id, found[10])
        self._pipes.forget_all(queue_id)
        self._records.forget_queue(queue_id)
        self._cql.apply(FREE_NAME, (row.name, queue_id))
        self._cql.apply_batch([(statement, (queue_id,)) for statement in FORGET_QUEUE])
        self._cql.write(UNNOTE_NAME, (name_slice(row.name), row.name, queue_id))

    # --- groups -------------------------------------------------------------------------------

    def create_group(self, row: GroupRow, starts: Mapping[str, Place], groups_version: int) -> bool:
        """Cost: a read, a hint, the cost of the cursors, one conditional batch."""
        queue, groups = self._rows.queues.with_groups(row.queue_id)
        taken = row.name in (group.name for group in groups)
        if queue is None or queue.deleted or queue.groups_version != groups_version or taken:
            return False
        self._cql.write(NOTE_PLACE, (row.id, row.queue_id, row.name))
        self._cursors.start(row, starts)
        version = (groups_version + 1, row.queue_id, groups_version)
        batch = [
            (RAISE_GROUPS_VERSION, version),
            (ADD_GROUP, (row.queue_id, *_group_values(row))),
        ]
        if settled(lambda: self._cql.apply_batch(batch), lambda: self._has_group(row)):
            return True
        self._drop_group_records(row.queue_id, row.id)
        return False

    def _has_group(self, row: GroupRow) -> bool:
        found = self._cql.read(QUEUE_AND_GROUPS, (row.queue_id,), serial=True)
        return any(each[9:11] == (row.name, row.id) for each in found)

    def groups(self, queue_id: str) -> list[GroupRow]:
        """Cost: one read."""
        return self.with_groups(queue_id)[1]

    def with_groups(self, queue_id: str) -> QueueAndGroups:
        """A consistent view of both. Cost: one read."""
        return self._rows.queues.with_groups(queue_id)

    def update_group(self, group_id: str, policy: GroupPolicy) -> bool:
        """Cost: a read, one conditional write."""
        place = self._cql.read(PLACE, (group_id,))
        if not place:
            return False
        values = (to_json(policy), *place[0], group_id)

        def is_ours() -> bool:
            row = self._rows.queues.group(group_id)
            return row is not None and row.policy == policy

        return self._cql.apply_settled(CHANGE_GROUP, values, is_ours)

    def delete_group(self, group_id: str) -> bool:
        """Cost: three reads, two conditional writes, and the cost of its cursors."""
        for _ in self._cql.attempts():
            group = self._rows.queues.group(group_id)
            queue = self._rows.queues.by_id(group.queue_id) if group else None
            if group is None or queue is None:
                return False
            if self._delete_group(group, queue.groups_version):
                self._finish_deleting(queue.id)
                return True
        raise contended(f"group {group_id}")

    def poll_group(self, group: GroupRow, at_ms: int) -> bool:
        """Cost: one conditional write."""

        def is_noted() -> bool:
            row = self._rows.queues.group(group.id)
            return row is not None and row.polled_ms >= at_ms

        values = (at_ms, group.queue_id, group.name, group.id)
        return self._cql.apply_settled(POLL_GROUP, values, is_noted)

    def expiring(self, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        """Cost: a read per queue, concurrently."""
        wanted = self._rows.queues.scope(queue_ids)
        return [
            group
            for _, groups in self._rows.queues.all_with_groups(wanted)
            for group in groups
            if group.expires_ms is not None
        ]

    def expire_group(self, group: GroupRow, removal: Sample) -> bool:
        """Cost: as `delete_group`, and that of a sample."""
        for _ in self._cql.attempts():
            queue, groups = self._rows.queues.with_groups(group.queue_id)
            now = next((each for each in groups if each.id == group.id), None)
            if queue is None or now is None or now.polled_ms != group.polled_ms:
                return False
            if self._delete_group(now, queue.groups_version, removal):
                self._finish_deleting(queue.id)
                return True
        raise contended(f"group {group.id}")

    def _delete_group(self, group: GroupRow, version: int, removal: Sample | None = None) -> bool:
        """Replace a group's row by one that records what must still be removed. removal: the group
        is removed only if no popper was noted since, and this sample is added later."""
        leftover = f"{OWN}{group.id}"  # no group can be given that name
        key = (group.queue_id, group.name, group.id)
        if removal is None:
            drop: Statement = (DROP_GROUP, key)
            add: Statement = (ADD_GROUP, (group.queue_id, leftover, group.id, None, None))
        else:
            drop = (EXPIRE_GROUP, (*key, group.polled_ms or None))
            add = (ADD_EXPIRED, (group.queue_id, leftover, group.id, json.dumps(astuple(removal))))
        batch: list[Statement] = [
            (RAISE_GROUPS_VERSION_ALWAYS, (version + 1, group.queue_id, version)),
            drop,
            add,
        ]

        def is_done() -> bool:
            found = self._cql.read(QUEUE_AND_GROUPS, (group.queue_id,), serial=True)
            return any(row[9] == leftover for row in found)

        return settled(lambda: self._cql.apply_batch(batch), is_done)

    def _finish_deleting(self, queue_id: str) -> None:
        """Remove the remains of a queue's deleted groups."""
        for row in self._cql.read(QUEUE_AND_GROUPS, (queue_id,)):
            if row[9] is not None and row[11] is None:
                if row[14] is not None:
                    self._records.add_next(Sample(*json.loads(row[14])))
                self._drop_group_records(queue_id, row[10])
                self._cql.apply(DROP_GROUP, (queue_id, row[9], row[10]))

    def _drop_group_records(self, queue_id: str, group_id: str) -> None:
        self._cursors.drop_all(group_id)
        self._pipes.consume_of_group(queue_id, group_id)
        self._records.forget_group(group_id)
        self._cql.write(UNNOTE_PLACE, (group_id,))
        names = (*limit_names(group_id), released_name(group_id), line_name(group_id))
        self._cql.apply_many([(FORGET_LEASE, (name,)) for name in names])

    # --- candidates for the reaper ----------------------------------------------------------------

    def limited(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        """Cost: a read per queue, concurrently."""
        return [row for row in self._rows.queues.those(queue_ids) if _is_limited(row)]

    def busy(self, queue_ids: Collection[str] | None = None) -> dict[str, list[PipeRow]]:
        """Cost: as `Pipes.unsealed`, and as `limited`."""
        rows = self._rows.queues.those(queue_ids)
        pipes = {row.id: list[PipeRow]() for row in rows}
        for pipe in self._pipes.unsealed(list(pipes)):
            pipes[pipe.queue_id].append(pipe)
        several = {row.id for row in rows if row.desired_pipes > 1}
        return {
            queue_id: pipes[queue_id]
            for queue_id in sorted(pipes)
            if queue_id in several or any(pipe.rate > 0 for pipe in pipes[queue_id])
        }

    def set_desired_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        """Cost: one conditional write."""
        values = (pipes, at_ms, queue.id, queue.desired_pipes, queue.desired_ms)

        def is_set() -> bool:
            row = self._rows.queues.by_id(queue.id)
            return row is not None and (row.desired_pipes, row.desired_ms) == (pipes, at_ms)

        return self._cql.apply_settled(SET_DESIRED_PIPES, values, is_set)

    def live(self) -> list[str]:
        """Cost: as `Pipes.unsealed`."""
        return self._pipes.live_queues()


def _is_limited(row: QueueRow) -> bool:
    """Whether its messages expire, are limited in number, or are deduplicated."""
    policy = row.policy
    limits = (policy.message_ttl, policy.retain_unconsumed, policy.max_length)
    return any(limit is not None for limit in limits) or bool(policy.dedup_window)


def _group_values(row: GroupRow) -> tuple[str, str, str, int]:
    return row.name, row.id, to_json(row.policy), row.created_ms
