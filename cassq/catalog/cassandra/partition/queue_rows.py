"""Reads of queues and groups in Cassandra, for all other parts.

A queue and its groups are one partition; a hint tells which one a group's row is in.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

from cassq.cassandra.session import Row
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.model.queues import group_policy, queue_policy
from cassq.model.rows import GroupRow, QueueRow

QueueAndGroups = tuple[QueueRow | None, list[GroupRow]]

NAME_SLICES = 16

QUEUE_COLUMNS = (
    "queue_id, name, policy, version, groups_version, tail, deleted, wished_pipes, wished_ms"
)
# A queue alone: the static columns of its partition.
QUEUE = f"SELECT DISTINCT {QUEUE_COLUMNS} FROM queues WHERE queue_id = ?"
# A queue and its groups: its partition, bounded by its groups.
QUEUE_AND_GROUPS = (
    f"SELECT {QUEUE_COLUMNS}, group_name, group_id, group_policy, group_created_ms,"
    " group_polled_ms, group_removal FROM queues WHERE queue_id = ?"
)
# Names with a prefix: a range in each slice.
LIST_NAMES = "SELECT name, queue_id FROM queue_names WHERE slice = ? AND name >= ? AND name < ?"
COVER_NAMES = "DELETE FROM queue_names USING TIMESTAMP ? WHERE slice = ? AND name > ? AND name < ?"
# Raised by each group that is created or deleted, and each pipe that is retired.
RAISE_GROUPS_VERSION = (
    "UPDATE queues SET groups_version = ? WHERE queue_id = ?"
    " IF groups_version = ? AND deleted = false"
)
# The place of a group's row.
PLACE = "SELECT queue_id, name FROM group_places WHERE group_id = ?"


def queue_row(row: Row) -> QueueRow:
    """A queue from the columns of `QUEUE`."""
    policy = queue_policy(row[2])
    return QueueRow(row[0], row[1], policy, row[3], row[4], row[5], row[6], row[7], row[8])


def name_slice(name: str) -> int:
    return zlib.crc32(name.encode()) % NAME_SLICES


class QueueRows:
    """Reads queues and groups."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql
        self._gaps = keyspace.gaps
        self._homes: dict[str, str] = {}  # the queue of each group read; that never changes

    def home_of(self, group_id: str) -> str | None:
        """The queue of a group that was read before; None if it was not."""
        return self._homes.get(group_id)

    def by_id(self, queue_id: str) -> QueueRow | None:
        """A queue, even while it is being deleted. Cost: one read."""
        return self.by_ids([queue_id])[0]

    def by_ids(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        """Cost: a read each, concurrently."""
        found = self._cql.read_many([(QUEUE, (queue_id,)) for queue_id in queue_ids])
        return [queue_row(rows[0]) if rows else None for rows in found]

    def with_groups(self, queue_id: str) -> QueueAndGroups:
        """A consistent view of a queue and its groups, by name. Cost: one read of one partition."""
        return self.all_with_groups([queue_id])[0]

    def all_with_groups(self, queue_ids: Sequence[str]) -> list[QueueAndGroups]:
        """`with_groups` for several queues. Cost: one read each, concurrently."""
        found = self._cql.read_many([(QUEUE_AND_GROUPS, (queue_id,)) for queue_id in queue_ids])
        both = [queue_and_groups(rows) for rows in found]
        self._homes.update((group.id, group.queue_id) for _, groups in both for group in groups)
        return both

    def group(self, group_id: str) -> GroupRow | None:
        """The group with this id. Cost: two reads."""
        place = self._cql.read(PLACE, (group_id,))
        groups = self.with_groups(place[0][0])[1] if place else []
        return next((group for group in groups if group.id == group_id), None)

    def ids(self) -> list[str]:
        """The ids of all queues that may exist, in order of their names. Cost: 16 concurrent
        reads."""
        return [queue_id for _, queue_id in self.names("")]

    def names(self, prefix: str) -> list[tuple[str, str]]:
        """Names with a prefix, and the ids of queues that may have them."""
        beyond = prefix + "\U0010ffff"
        asked_us = self._cql.stamp()
        listed = self._cql.read_many(
            [(LIST_NAMES, (slice_, prefix, beyond)) for slice_ in range(NAME_SLICES)]
        )
        if not prefix:
            for slice_, names in enumerate(listed):
                self._gaps.read(COVER_NAMES, (slice_,), [name for name, _ in names], asked_us)
        return sorted({(row[0], row[1]) for rows in listed for row in rows})

    def raise_groups_version(self, queue_id: str, expected: int) -> bool:
        """Raise `groups_version` by one if it is `expected` and the queue is not deleted. Raises if
        the outcome is unknown. Cost: one conditional write."""
        return self._cql.apply(RAISE_GROUPS_VERSION, (expected + 1, queue_id, expected))[0]

    def scope(self, queue_ids: Collection[str] | None) -> list[str]:
        """The ids of these queues; None: of all that may exist."""
        return list(queue_ids) if queue_ids is not None else self.ids()

    def those(self, queue_ids: Collection[str] | None) -> list[QueueRow]:
        """The rows of these queues (None: of all queues) without deleted ones."""
        rows = self.by_ids(self.scope(queue_ids))
        return [row for row in rows if row is not None and not row.deleted]


def queue_and_groups(rows: Sequence[Row]) -> QueueAndGroups:
    """A queue and its groups, from the rows of a partition."""
    groups = [
        GroupRow(row[10], row[0], row[9], group_policy(row[11]), row[12], row[13] or 0)
        for row in rows
        if row[11] is not None
    ]
    return (queue_row(rows[0]) if rows else None), groups
