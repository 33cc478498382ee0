"""Queues, groups and leases in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from cassq.catalog.port import Catalog
from cassq.catalog.sqlite.database import Database, Row
from cassq.message.frames import Place
from cassq.model.queues import GroupPolicy, QueuePolicy, group_policy, queue_policy, to_json
from cassq.model.rows import GroupRow, PipeState, QueueRow

QUEUE_COLUMNS = "id, name, policy, version, groups_version, tail, deleted, wished_pipes, wished_ms"
GROUP_COLUMNS = "id, queue_id, name, policy, created_ms"

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
# The lock of a pipe that is gone.
FORGET_LOCK = """
DELETE FROM leases WHERE name = ?1
AND NOT EXISTS (SELECT 1 FROM pipes WHERE id = ?2 AND state < 3)"""
# Rows of one group, by key ranges.
DROP_GROUP = (
    "DELETE FROM claims WHERE group_id = ?",
    "DELETE FROM cursors WHERE group_id = ?",
    "DELETE FROM moves WHERE group_id = ?",
    "DELETE FROM removed WHERE group_id = ?",
    "DELETE FROM members WHERE group_id = ?",
    "DELETE FROM samples WHERE subject = ?",
    # Pipes for it alone are for nobody now.
    "UPDATE pipes SET state = 3 WHERE group_id = ? AND group_id <> ''",
    "DELETE FROM leases WHERE name >= 'pop:' || ?1 || ':' AND name < 'pop:' || ?1 || ';'",
    "DELETE FROM groups WHERE id = ?",
)


def queue_row(row: Row) -> QueueRow:
    policy = queue_policy(row[2])
    return QueueRow(row[0], row[1], policy, row[3], row[4], row[5], bool(row[6]), row[7], row[8])


def group_row(row: Row) -> GroupRow:
    policy = group_policy(row[3])
    return GroupRow(row[0], row[1], row[2], policy, row[4])


def _insert_group(tx: sqlite3.Connection, row: GroupRow) -> None:
    tx.execute(
        f"INSERT INTO groups ({GROUP_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
        (row.id, row.queue_id, row.name, to_json(row.policy), row.created_ms),
    )


def _raise_groups_version(tx: sqlite3.Connection, queue_id: str, expected: int) -> bool:
    changed = tx.execute(
        "UPDATE queues SET groups_version = groups_version + 1"
        " WHERE id = ? AND groups_version = ? AND deleted = 0",
        (queue_id, expected),
    )
    return changed.rowcount == 1


class QueueTables(Catalog):
    """The part of the catalog that knows queues, groups and leases."""

    _db: Database

    def create_queue(self, row: QueueRow, default: GroupRow) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(QUEUE_BY_NAME, (row.name,)).fetchone():
                return False
            tx.execute(
                "INSERT INTO queues (id, name, policy) VALUES (?, ?, ?)",
                (row.id, row.name, to_json(row.policy)),
            )
            _insert_group(tx, default)
            return True

    def queue(self, name: str) -> QueueRow | None:
        rows = self._db.read(QUEUE_BY_NAME, (name,))
        return queue_row(rows[0]) if rows else None

    def queue_by_id(self, queue_id: str) -> QueueRow | None:
        rows = self._db.read(QUEUE_BY_ID, (queue_id,))
        return queue_row(rows[0]) if rows else None

    def queues(self, prefix: str = "", *, deleted: bool = False) -> list[QueueRow]:
        beyond = prefix + "\U0010ffff"
        return [queue_row(row) for row in self._db.read(QUEUES, (prefix, beyond, int(deleted)))]

    def update_queue(self, queue_id: str, version: int, policy: QueuePolicy) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            changed = tx.execute(
                "UPDATE queues SET policy = ?, version = version + 1"
                " WHERE id = ? AND version = ? AND deleted = 0",
                (to_json(policy), queue_id, version),
            )
            return changed.rowcount == 1

    def delete_queue(self, queue_id: str) -> list[str]:
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute("UPDATE queues SET deleted = 1 WHERE id = ?", (queue_id,))
            tx.execute(
                "UPDATE pipes SET state = ? WHERE queue_id = ? AND state <> 3",
                (PipeState.CONSUMED, queue_id),
            )
            tx.execute("UPDATE writes SET state = 2 WHERE queue_id = ? AND state = 0", (queue_id,))
            rows = tx.execute("SELECT id FROM pipes WHERE queue_id = ?", (queue_id,))
            return [pipe_id for (pipe_id,) in rows]

    def forget_queue(self, queue_id: str) -> None:
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
            tx.execute(
                "UPDATE queues SET groups_version = groups_version + 1 WHERE id = ?", (row[0],)
            )
            for statement in DROP_GROUP:
                tx.execute(statement, (group_id,))
            return True

    def take_lease(self, name: str, owner: str, ttl_ms: int) -> int | None:
        now_ms = self.now_ms()
        with self._db.lock, self._db.write(synced=False) as tx:
            row = tx.execute(
                "SELECT owner, epoch, due_ms FROM leases WHERE name = ?", (name,)
            ).fetchone()
            if row is None:
                epoch = 1
            elif row[0] == owner and row[2] > now_ms:
                epoch = row[1]
            elif row[2] <= now_ms:
                epoch = row[1] + 1
            else:
                return None
            tx.execute(
                "INSERT INTO leases (name, owner, epoch, due_ms) VALUES (?1, ?2, ?3, ?4)"
                " ON CONFLICT (name) DO UPDATE SET owner = ?2, epoch = ?3, due_ms = ?4",
                (name, owner, epoch, now_ms + ttl_ms),
            )
            return int(epoch)

    def drop_lease(self, name: str, owner: str) -> None:
        # The row stays with its epoch, so that the next holder's is higher.
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute(
                "UPDATE leases SET due_ms = 0, owner = '' WHERE name = ? AND owner = ?",
                (name, owner),
            )
            if name.startswith("pop:"):
                # Taken while its pipe was being retired: nobody will ever ask for it again.
                tx.execute(FORGET_LOCK, (name, name.rpartition(":")[2]))
