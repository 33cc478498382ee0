"""Queues and groups in SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence

from cassq.catalog.port import Queues
from cassq.catalog.sqlite.database import Database, Row
from cassq.catalog.sqlite.pipe_tables import UNSEALED_OF, pipe_row
from cassq.catalog.sqlite.record_tables import ADD_SAMPLE
from cassq.message.frames import Place
from cassq.model.queues import GroupPolicy, QueuePolicy, group_policy, queue_policy, to_json
from cassq.model.rows import GroupRow, PipeRow, PipeState, QueueRow, Sample

QUEUE_COLUMNS = "id, name, policy, version, groups_version, tail, deleted, wished_pipes, wished_ms"
GROUP_COLUMNS = "id, queue_id, name, policy, created_ms, polled_ms"

# One queue, by the unique index of names.
QUEUE_BY_NAME = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE name = ? AND deleted = 0"
# One queue, by key.
QUEUE_BY_ID = f"SELECT {QUEUE_COLUMNS} FROM queues WHERE id = ?"
# Queues whose name begins with a prefix: a range of the index of names.
QUEUES = (
    f"SELECT {QUEUE_COLUMNS} FROM queues WHERE name >= ? AND name < ? AND deleted = ? ORDER BY name"
)
# The groups of one queue, by its unique index.
GROUPS = f"SELECT {GROUP_COLUMNS} FROM groups WHERE queue_id = ? ORDER BY name"
# Groups that expire: their partial index. The condition is the index's, word for word.
EXPIRING = (
    f"SELECT {GROUP_COLUMNS} FROM groups INDEXED BY groups_expiring"
    " WHERE json_extract(policy, '$.group_expires') IS NOT NULL"
)
# Notes a popper: by key.
POLL_GROUP = "UPDATE groups SET polled_ms = ? WHERE id = ?"
# Queues with limits: their partial index. The condition is the index's, word for word.
LIMITED = f"""
SELECT {QUEUE_COLUMNS} FROM queues INDEXED BY queues_limited WHERE deleted = 0 AND (
    json_extract(policy, '$.message_ttl') IS NOT NULL
    OR json_extract(policy, '$.retain_unconsumed') IS NOT NULL
    OR json_extract(policy, '$.max_length') IS NOT NULL
    OR json_extract(policy, '$.dedup_window') > 0)"""
# Queues that are pushed to, or should have several pipes: two partial indexes.
BUSY = """
SELECT DISTINCT queue_id FROM pipes INDEXED BY pipes_unsealed WHERE state < 2 AND rate > 0
UNION SELECT id FROM queues WHERE wished_pipes > 1 AND deleted = 0"""
# Sets the desired number of pipes, by compare-and-set: by key.
SET_DESIRED_PIPES = """
UPDATE queues SET wished_pipes = ?1, wished_ms = ?2
WHERE id = ?3 AND wished_pipes = ?4 AND wished_ms = ?5 AND deleted = 0"""
# Queues with live pipes: steps from queue to queue in the partial index of live pipes.
LIVE_QUEUES = """
WITH RECURSIVE found (id) AS (
    SELECT min(queue_id) FROM pipes WHERE state < 3
    UNION ALL
    SELECT (SELECT min(queue_id) FROM pipes WHERE state < 3 AND queue_id > found.id)
    FROM found WHERE found.id IS NOT NULL)
SELECT id FROM found WHERE id IS NOT NULL"""
# Rows of one group, by key ranges.
DROP_GROUP = (
    "DELETE FROM claims WHERE group_id = ?",
    "DELETE FROM cursors WHERE group_id = ?",
    "DELETE FROM moves WHERE group_id = ?",
    "DELETE FROM removed WHERE group_id = ?",
    "DELETE FROM members WHERE group_id = ?",
    "DELETE FROM samples WHERE subject = ?",
    # Pipes for this group alone are not needed any more.
    "UPDATE pipes SET state = 3 WHERE group_id = ? AND group_id <> ''",
    "DELETE FROM leases WHERE name >= 'pop:' || ?1 || ':' AND name < 'pop:' || ?1 || ';'",
    "DELETE FROM leases WHERE name IN ('rate:' || ?1, 'permits:' || ?1)",
    "DELETE FROM leases WHERE name IN ('released:' || ?1, 'line:' || ?1)",
    "DELETE FROM groups WHERE id = ?",
)


def queue_row(row: Row) -> QueueRow:
    policy = queue_policy(row[2])
    return QueueRow(row[0], row[1], policy, row[3], row[4], row[5], bool(row[6]), row[7], row[8])


def group_row(row: Row) -> GroupRow:
    policy = group_policy(row[3])
    return GroupRow(row[0], row[1], row[2], policy, row[4], row[5])


def _insert_group(tx: sqlite3.Connection, row: GroupRow) -> None:
    tx.execute(
        f"INSERT INTO groups ({GROUP_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
        (row.id, row.queue_id, row.name, to_json(row.policy), row.created_ms, row.polled_ms),
    )


def _drop_group(tx: sqlite3.Connection, queue_id: str, group_id: str) -> None:
    tx.execute("UPDATE queues SET groups_version = groups_version + 1 WHERE id = ?", (queue_id,))
    for statement in DROP_GROUP:
        tx.execute(statement, (group_id,))


def _raise_groups_version(tx: sqlite3.Connection, queue_id: str, expected: int) -> bool:
    changed = tx.execute(
        "UPDATE queues SET groups_version = groups_version + 1"
        " WHERE id = ? AND groups_version = ? AND deleted = 0",
        (queue_id, expected),
    )
    return changed.rowcount == 1


class SqliteQueues(Queues):
    """Queues and groups: rows of two tables."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def create(self, row: QueueRow, default: GroupRow) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(QUEUE_BY_NAME, (row.name,)).fetchone():
                return False
            tx.execute(
                "INSERT INTO queues (id, name, policy) VALUES (?, ?, ?)",
                (row.id, row.name, to_json(row.policy)),
            )
            _insert_group(tx, default)
            return True

    def named(self, name: str) -> QueueRow | None:
        rows = self._db.read(QUEUE_BY_NAME, (name,))
        return queue_row(rows[0]) if rows else None

    def by_ids(self, queue_ids: Sequence[str]) -> list[QueueRow | None]:
        found = [self._db.read(QUEUE_BY_ID, (queue_id,)) for queue_id in queue_ids]
        return [queue_row(rows[0]) if rows else None for rows in found]

    def listed(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        beyond = prefix + "\U0010ffff"
        return [queue_row(row) for row in self._db.read(QUEUES, (prefix, beyond, int(deleted)))]

    def update(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            changed = tx.execute(
                "UPDATE queues SET policy = ?, version = version + 1"
                " WHERE id = ? AND version = ? AND deleted = 0",
                (to_json(policy), queue_id, version),
            )
            return changed.rowcount == 1

    def delete(self, queue_id: str) -> list[str]:
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute("UPDATE queues SET deleted = 1 WHERE id = ?", (queue_id,))
            tx.execute(
                "UPDATE pipes SET state = ? WHERE queue_id = ? AND state <> 3",
                (PipeState.CONSUMED, queue_id),
            )
            tx.execute("UPDATE writes SET state = 2 WHERE queue_id = ? AND state = 0", (queue_id,))
            rows = tx.execute("SELECT id FROM pipes WHERE queue_id = ?", (queue_id,))
            return [pipe_id for (pipe_id,) in rows]

    def forget(self, queue_id: str) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            row = tx.execute(QUEUE_BY_ID, (queue_id,)).fetchone()
            if row is None or not queue_row(row).deleted:
                return
            if tx.execute("SELECT 1 FROM pipes WHERE queue_id = ?", (queue_id,)).fetchone():
                return
            for (group_id,) in tx.execute(
                "SELECT id FROM groups WHERE queue_id = ?", (queue_id,)
            ).fetchall():
                for statement in DROP_GROUP:
                    tx.execute(statement, (group_id,))
            tx.execute("DELETE FROM retired WHERE queue_id = ?", (queue_id,))
            tx.execute("DELETE FROM retired_sheets_full WHERE queue_id = ?", (queue_id,))
            tx.execute("DELETE FROM dedups WHERE queue_id = ?", (queue_id,))
            tx.execute("DELETE FROM writes WHERE queue_id = ?", (queue_id,))
            tx.execute("DELETE FROM samples WHERE subject = ?", (queue_id,))
            tx.execute("DELETE FROM queues WHERE id = ? AND deleted = 1", (queue_id,))

    def create_group(self, row: GroupRow, starts: Mapping[str, Place], groups_version: int) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            taken = tx.execute(
                "SELECT 1 FROM groups WHERE queue_id = ? AND name = ?", (row.queue_id, row.name)
            ).fetchone()
            if taken or not _raise_groups_version(tx, row.queue_id, groups_version):
                return False
            _insert_group(tx, row)
            tx.executemany(
                "INSERT INTO cursors (group_id, pipe_id, start_seq, ack_seq, ack_pos, chain_seq,"
                " chain_pos) SELECT ?1, id, ?3, ?3, ?4, ?3, ?4 FROM pipes"
                " WHERE id = ?2 AND state < 3",
                [(row.id, pipe_id, place.seq, place.pos) for pipe_id, place in starts.items()],
            )
            return True

    def groups(self, queue_id: str) -> list[GroupRow]:
        return [group_row(row) for row in self._db.read(GROUPS, (queue_id,))]

    def update_group(self, group_id: str, policy: GroupPolicy) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            changed = tx.execute(
                "UPDATE groups SET policy = ? WHERE id = ?",
                (to_json(policy), group_id),
            )
            return changed.rowcount == 1

    def delete_group(self, group_id: str) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            row = tx.execute("SELECT queue_id FROM groups WHERE id = ?", (group_id,)).fetchone()
            if row is None:
                return False
            _drop_group(tx, row[0], group_id)
            return True

    def poll_group(self, group: GroupRow, at_ms: int) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            return tx.execute(POLL_GROUP, (at_ms, group.id)).rowcount == 1

    def expiring(self, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        found = [group_row(row) for row in self._db.read(EXPIRING)]
        return [row for row in found if queue_ids is None or row.queue_id in queue_ids]

    def expire_group(self, group: GroupRow, removal: Sample) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            row = tx.execute("SELECT polled_ms FROM groups WHERE id = ?", (group.id,)).fetchone()
            if row is None or row[0] != group.polled_ms:
                return False
            at_ms, key = removal.at_ms, (removal.subject, removal.step_ms)
            while not tx.execute(ADD_SAMPLE, (*key, at_ms, removal.data)).rowcount:
                at_ms += 1
            _drop_group(tx, group.queue_id, group.id)
            return True

    def limited(self, queue_ids: Collection[str] | None = None) -> list[QueueRow]:
        found = [queue_row(row) for row in self._db.read(LIMITED)]
        return [row for row in found if queue_ids is None or row.id in queue_ids]

    def busy(self, queue_ids: Collection[str] | None = None) -> dict[str, list[PipeRow]]:
        found = [queue_id for (queue_id,) in self._db.read(BUSY)]
        pipes = {each: list[PipeRow]() for each in found if queue_ids is None or each in queue_ids}
        if pipes:
            for row in map(pipe_row, self._db.read(UNSEALED_OF, (json.dumps(list(pipes)),))):
                pipes[row.queue_id].append(row)
        return pipes

    def set_desired_pipes(self, queue: QueueRow, pipes: int, at_ms: int) -> bool:
        with self._db.lock, self._db.write(synced=False) as tx:
            values = (pipes, at_ms, queue.id, queue.desired_pipes, queue.desired_ms)
            return tx.execute(SET_DESIRED_PIPES, values).rowcount == 1

    def live(self) -> list[str]:
        return [queue_id for (queue_id,) in self._db.read(LIVE_QUEUES)]
