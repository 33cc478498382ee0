"""Queues and groups in Cassandra.

A queue and its groups are one partition, so that creating a group, deleting one and retiring a
pipe compare and set one `groups_version`. A queue's name is given away by a row of its own: whoever
finds it pointing at a queue that is deleted or gone may have it.

A deleted group leaves a row without a policy until all it had is removed, so that whoever comes
after a crash knows what is left to do.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from cassq.base.ids import made_at_ms
from cassq.cassandra.session import Row, settled
from cassq.catalog.cassandra.partition.parts import TRIES, Parts, contended
from cassq.message.frames import Place
from cassq.model.queues import OWN, GroupPolicy, QueuePolicy, group_policy, queue_policy, to_json
from cassq.model.rows import GroupRow, QueueRow

QueueAndGroups = tuple[QueueRow | None, list[GroupRow]]

logger: logging.Logger = logging.getLogger("cassq")

NAME_SLICES = 16
ORPHAN_MS = 3_600_000  # nobody takes so long to make a queue

_QUEUE = "queue_id, name, policy, version, groups_version, tail, deleted, wished_pipes, wished_ms"
# A queue alone: the static columns of its partition.
QUEUE = f"SELECT DISTINCT {_QUEUE} FROM queues WHERE queue_id = ?"
# A queue and its groups: its partition, bounded by its groups.
QUEUE_AND_GROUPS = (
    f"SELECT {_QUEUE}, group_name, group_id, group_policy, group_created_ms"
    " FROM queues WHERE queue_id = ?"
)
# A new queue with its first group.
ADD_QUEUE = (
    f"INSERT INTO queues ({_QUEUE}, group_name, group_id, group_policy, group_created_ms)"
    " VALUES (?, ?, ?, 1, 1, '', false, 1, 0, ?, ?, ?, ?) IF NOT EXISTS"
)
# Another policy.
CHANGE_POLICY = (
    "UPDATE queues SET policy = ?, version = ?"
    " WHERE queue_id = ? IF version = ? AND deleted = false"
)
MARK_DELETED = "UPDATE queues SET deleted = true WHERE queue_id = ? IF deleted = false"
# Together they remove a deleted queue's partition.
FORGET_QUEUE = (
    f"DELETE {_QUEUE.removeprefix('queue_id, ')} FROM queues WHERE queue_id = ? IF deleted = true",
    "DELETE FROM queues WHERE queue_id = ? AND group_name >= ''",
)

# Which queue has a name.
NAMED = "SELECT queue_id FROM queue_ids WHERE name = ?"
TAKE_NAME = "INSERT INTO queue_ids (name, queue_id) VALUES (?, ?) IF NOT EXISTS"
TAKE_NAME_OVER = "UPDATE queue_ids SET queue_id = ? WHERE name = ? IF queue_id = ?"
FREE_NAME = "DELETE FROM queue_ids WHERE name = ? IF queue_id = ?"
# Names with a prefix: a range in each slice.
LIST_NAMES = "SELECT name, queue_id FROM queue_names WHERE slice = ? AND name >= ? AND name < ?"
NOTE_NAME = "INSERT INTO queue_names (slice, name, queue_id) VALUES (?, ?, ?)"
COVER_NAMES = "DELETE FROM queue_names USING TIMESTAMP ? WHERE slice = ? AND name > ? AND name < ?"
UNNOTE_NAME = "DELETE FROM queue_names WHERE slice = ? AND name = ? AND queue_id = ?"

# Each group that comes or goes, and each pipe that retires.
RAISE_GROUPS_VERSION = (
    "UPDATE queues SET groups_version = ? WHERE queue_id = ?"
    " IF groups_version = ? AND deleted = false"
)
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
# Where a group's row is.
PLACE = "SELECT queue_id, name FROM group_places WHERE group_id = ?"
NOTE_PLACE = "INSERT INTO group_places (group_id, queue_id, name) VALUES (?, ?, ?)"
UNNOTE_PLACE = "DELETE FROM group_places WHERE group_id = ?"


def queue_row(row: Row) -> QueueRow:
    """A queue from the columns of `QUEUE`."""
    policy = queue_policy(row[2])
    return QueueRow(row[0], row[1], policy, row[3], row[4], row[5], row[6], row[7], row[8])


def name_slice(name: str) -> int:
    return zlib.crc32(name.encode()) % NAME_SLICES


class QueueTables(Parts):
    """The part of the catalog that knows queues and groups."""

    _replicas: int  # in the data centre that has the fewest
    _warned: bool

    # --- queues -------------------------------------------------------------------------------

    def create_queue(self, row: QueueRow, default: GroupRow) -> bool:
        """Cost: two hints side by side, two conditional writes."""
        values = (row.id, row.name, to_json(row.policy), *_group_values(default))
        self._cql.write_many(
            [
                (NOTE_NAME, (name_slice(row.name), row.name, row.id)),
                (NOTE_PLACE, (default.id, row.id, default.name)),
            ]
        )
        _until(
            lambda: self._cql.apply(ADD_QUEUE, values)[0],
            lambda: bool(self._cql.read(QUEUE, (row.id,), serial=True)),
        )
        if self._take_name(row.name, row.id):
            self._warn(row)
            return True
        self._cql.apply(MARK_DELETED, (row.id,))
        self.forget_queue(row.id)
        return False

    def _take_name(self, name: str, queue_id: str) -> bool:
        """Whether a name is now this queue's."""

        def is_ours() -> bool:
            return self._cql.read(NAMED, (name,), serial=True) == [(queue_id,)]

        def take_over(holder: str) -> bool:
            values = (queue_id, name, holder)
            return settled(lambda: self._cql.apply(TAKE_NAME_OVER, values)[0], is_ours)

        for _ in range(TRIES):
            if settled(lambda: self._cql.apply(TAKE_NAME, (name, queue_id))[0], is_ours):
                return True
            holder = self._cql.read(NAMED, (name,))
            if not holder:
                continue  # given up this moment
            held = self.queue_by_id(holder[0][0])
            if held is not None and not held.deleted:
                return held.id == queue_id
            if take_over(holder[0][0]):
                return True
        raise contended(f"the name {name!r}")

    def queue(self, name: str) -> QueueRow | None:
        """Cost: two reads, one after the other."""
        found = self._cql.read(NAMED, (name,))
        row = self.queue_by_id(found[0][0]) if found else None
        if row is None or row.deleted:
            return None
        self._warn(row)
        return row

    def _warn(self, row: QueueRow) -> None:
        """Say once that a cp queue cannot keep its promise."""
        if row.policy.strict and self._replicas == 1 and not self._warned:
            self._warned = True
            logger.warning(
                "queue %s is cp, but its keyspace has one replica: it stops while that server is"
                " away, and is lost with it; replicate the keyspace three times",
                row.name,
            )

    def queue_by_id(self, queue_id: str) -> QueueRow | None:
        """Cost: one read."""
        rows = self._cql.read(QUEUE, (queue_id,))
        return queue_row(rows[0]) if rows else None

    def queues_by_id(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        """Cost: a read each, side by side."""
        found = self._cql.read_many([(QUEUE, (queue_id,)) for queue_id in queue_ids])
        return [queue_row(rows[0]) if rows else None for rows in found]

    def _listed_queues(self) -> list[str]:
        """The ids of all queues that may be there, in order of their names. Cost: 16 reads side
        by side."""
        return [queue_id for _, queue_id in self._listed_names("")]

    def _listed_names(self, prefix: str) -> list[tuple[str, str]]:
        """Names with that prefix, and the ids of queues that may have them."""
        beyond = prefix + "\U0010ffff"
        asked_us = self._cql.stamp()
        listed = self._cql.read_many(
            [(LIST_NAMES, (slice_, prefix, beyond)) for slice_ in range(NAME_SLICES)]
        )
        if not prefix:
            for slice_, names in enumerate(listed):
                self._gaps.read(COVER_NAMES, (slice_,), [name for name, _ in names], asked_us)
        return sorted({(row[0], row[1]) for rows in listed for row in rows})

    def queues(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        """Cost: 16 reads side by side, then two a queue side by side."""
        queue_ids = [queue_id for _, queue_id in self._listed_names(prefix)]
        found = self.queues_by_id(queue_ids)
        rows = [row for row in found if row is not None and row.deleted == deleted]
        if deleted:
            return rows
        # One that lost its name to another before it was made has a row for a moment.
        owners = self._cql.read_many([(NAMED, (row.name,)) for row in rows])
        mine = [row for row, owner in zip(rows, owners, strict=True) if owner == [(row.id,)]]
        self._clear_orphans(set(rows) - set(mine))
        return mine

    def _clear_orphans(self, nameless: Iterable[QueueRow]) -> None:
        """Have those removed whose maker ended before they had a name, or lost it: what is old
        enough. The sweep does the rest. Cost: a conditional write each."""
        old_ms = self.now_ms() - ORPHAN_MS
        old = [row for row in nameless if (made_ms := made_at_ms(row.id)) and made_ms < old_ms]
        self._cql.apply_many([(MARK_DELETED, (row.id,)) for row in old])

    def update_queue(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        """Cost: one conditional write."""
        values = (to_json(policy), version + 1, queue_id, version)

        def is_ours() -> bool:
            rows = self._cql.read(QUEUE, (queue_id,), serial=True)
            found = queue_row(rows[0]) if rows else None
            return found is not None and (found.version, found.policy) == (version + 1, policy)

        return settled(lambda: self._cql.apply(CHANGE_POLICY, values)[0], is_ours)

    def delete_queue(self, queue_id: str) -> list[str]:
        """Cost: a read, two conditional writes, and one a pipe side by side."""
        row = self.queue_by_id(queue_id)
        if row is None:
            return []
        if not row.deleted:

            def is_marked() -> bool:
                found = self._cql.read(QUEUE, (queue_id,), serial=True)
                return not found or queue_row(found[0]).deleted

            _until(lambda: self._cql.apply(MARK_DELETED, (queue_id,))[0], is_marked)
        # A name that is not freed for a crash is freed by who wants it next.
        self._cql.apply(FREE_NAME, (row.name, queue_id))
        return self._consume_pipes(queue_id)

    def forget_queue(self, queue_id: str) -> None:
        """Cost: some reads and writes a group, and for each slice of its records."""
        row = self.queue_by_id(queue_id)
        if row is None or not row.deleted or self._has_pipes(queue_id):
            return
        for found in self._cql.read(QUEUE_AND_GROUPS, (queue_id,)):
            if found[10] is not None:
                self._drop_group_records(queue_id, found[10])
        self._forget_pipe_records(queue_id)
        self._forget_records(queue_id)
        self._cql.apply(FREE_NAME, (row.name, queue_id))
        self._cql.apply_batch([(statement, (queue_id,)) for statement in FORGET_QUEUE])
        self._cql.write(UNNOTE_NAME, (name_slice(row.name), row.name, queue_id))

    # --- groups -------------------------------------------------------------------------------

    def create_group(self, row: GroupRow, starts: Mapping[str, Place], groups_version: int) -> bool:
        """Cost: a read, a hint, what the cursors cost, one conditional batch."""
        queue, groups = self._queue_and_groups(row.queue_id)
        taken = row.name in (group.name for group in groups)
        if queue is None or queue.deleted or queue.groups_version != groups_version or taken:
            return False
        self._cql.write(NOTE_PLACE, (row.id, row.queue_id, row.name))
        self._start_cursors(row, starts)
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
        return self._queue_and_groups(queue_id)[1]

    def _queue_and_groups(self, queue_id: str) -> QueueAndGroups:
        return self._queues_and_groups([queue_id])[0]

    def _queues_and_groups(self, queue_ids: Sequence[str]) -> list[QueueAndGroups]:
        found = self._cql.read_many([(QUEUE_AND_GROUPS, (queue_id,)) for queue_id in queue_ids])
        return [_with_groups(rows) for rows in found]

    def _group(self, group_id: str) -> GroupRow | None:
        place = self._cql.read(PLACE, (group_id,))
        groups = self._queue_and_groups(place[0][0])[1] if place else []
        return next((group for group in groups if group.id == group_id), None)

    def update_group(self, group_id: str, policy: GroupPolicy) -> bool:
        """Cost: a read, one conditional write."""
        place = self._cql.read(PLACE, (group_id,))
        if not place:
            return False
        values = (to_json(policy), *place[0], group_id)

        def is_ours() -> bool:
            row = self._group(group_id)
            return row is not None and row.policy == policy

        return settled(lambda: self._cql.apply(CHANGE_GROUP, values)[0], is_ours)

    def delete_group(self, group_id: str) -> bool:
        """Cost: three reads, two conditional writes, and what its cursors cost."""
        for _ in range(TRIES):
            group = self._group(group_id)
            queue = self.queue_by_id(group.queue_id) if group else None
            if group is None or queue is None:
                return False
            if self._delete_group(group, queue.groups_version):
                self._finish_deleting(queue.id)
                return True
        raise contended(f"group {group_id}")

    def _delete_group(self, group: GroupRow, version: int) -> bool:
        """Leave of a group the row that says what is still to be removed."""
        leftover = f"{OWN}{group.id}"  # no group can be given that name
        batch = [
            (RAISE_GROUPS_VERSION_ALWAYS, (version + 1, group.queue_id, version)),
            (DROP_GROUP, (group.queue_id, group.name, group.id)),
            (ADD_GROUP, (group.queue_id, leftover, group.id, None, None)),
        ]

        def is_done() -> bool:
            found = self._cql.read(QUEUE_AND_GROUPS, (group.queue_id,), serial=True)
            return any(row[9] == leftover for row in found)

        return settled(lambda: self._cql.apply_batch(batch), is_done)

    def _finish_deleting(self, queue_id: str) -> None:
        """Remove what deleted groups of a queue have left."""
        for row in self._cql.read(QUEUE_AND_GROUPS, (queue_id,)):
            if row[9] is not None and row[11] is None:
                self._drop_group_records(queue_id, row[10])
                self._cql.apply(DROP_GROUP, (queue_id, row[9], row[10]))

    def _drop_group_records(self, queue_id: str, group_id: str) -> None:
        self._drop_cursors(queue_id, group_id)
        self._forget_members(group_id)
        self._cql.write(UNNOTE_PLACE, (group_id,))

    def _raise_groups_version(self, queue_id: str, expected: int) -> bool:
        return self._cql.apply(RAISE_GROUPS_VERSION, (expected + 1, queue_id, expected))[0]


def _with_groups(rows: Sequence[Row]) -> QueueAndGroups:
    """The rows of a queue's partition."""
    groups = [
        GroupRow(row[10], row[0], row[9], group_policy(row[11]), row[12])
        for row in rows
        if row[11] is not None
    ]
    return (queue_row(rows[0]) if rows else None), groups


def _group_values(row: GroupRow) -> tuple[str, str, str, int]:
    return row.name, row.id, to_json(row.policy), row.created_ms


def _until(act: Callable[[], bool], look: Callable[[], bool]) -> None:
    """Have a conditional write applied, which does no harm if it is twice."""
    for _ in range(TRIES):
        if settled(act, look) or look():
            return
    raise contended("a queue")
