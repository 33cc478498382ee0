"""Steps of tasks in SQLite: in a file of their own, whose writes are synced."""

from __future__ import annotations

from pathlib import Path

from cassq.base.clock import Clock
from cassq.catalog.sqlite.side_file import SideFile
from cassq.catalog.step_port import Steps

CREATE = """
CREATE TABLE IF NOT EXISTS steps (
    task_id TEXT, key TEXT, value BLOB NOT NULL, until_ms INTEGER, PRIMARY KEY (task_id, key)
) WITHOUT ROWID"""
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS steps_until ON steps (until_ms)"
# The records of one task: a range of the key.
FIND = "SELECT key, value FROM steps WHERE task_id = ? AND until_ms > ?"
# The value of one record, by key.
VALUE = "SELECT value FROM steps WHERE task_id = ? AND key = ?"
# Writes of one record, by key, and of all of a task: a range of it. Expired ones count as absent.
ADD = """
INSERT INTO steps (task_id, key, value, until_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (task_id, key) DO UPDATE SET value = excluded.value, until_ms = excluded.until_ms
WHERE steps.until_ms <= ?"""
CHANGE = """
UPDATE steps SET value = ?, until_ms = ?
WHERE task_id = ? AND key = ? AND value = ? AND until_ms > ?"""
KEEP = "UPDATE steps SET until_ms = ? WHERE task_id = ? AND until_ms > ?"
# Bounded: a range of the index.
FORGET = """
DELETE FROM steps WHERE (task_id, key) IN
(SELECT task_id, key FROM steps WHERE until_ms <= ? ORDER BY until_ms LIMIT 10000)"""


class SqliteSteps(Steps):
    """Steps in the file `path`. durable: False leaves syncing to the operating system."""

    def __init__(self, path: Path, clock: Clock, *, durable: bool) -> None:
        self.file: SideFile = SideFile(path, clock, (CREATE, CREATE_INDEX), FORGET, synced=durable)

    def find(self, task_id: str) -> dict[str, bytes]:
        if not self.file.exists:
            return {}
        with self.file.opened() as connection:
            return dict(connection.execute(FIND, (task_id, self.file.clock.wall_ms())).fetchall())

    def add(self, task_id: str, key: str, value: bytes, kept_seconds: float) -> bytes:
        now_ms = self.file.clock.wall_ms()
        row = (task_id, key, value, _until_ms(now_ms, kept_seconds), now_ms)
        with self.file.opened() as connection:
            self.file.forget(connection)
            while connection.execute(ADD, row).rowcount != 1:
                found = connection.execute(VALUE, (task_id, key)).fetchone()
                if found is not None:  # else another process removed it in between
                    return bytes(found[0])
        return value

    def change(self, task_id: str, key: str, old: bytes, new: bytes, kept_seconds: float) -> bool:
        now_ms = self.file.clock.wall_ms()
        values = (new, _until_ms(now_ms, kept_seconds), task_id, key, old, now_ms)
        with self.file.opened() as connection:
            return connection.execute(CHANGE, values).rowcount == 1

    def keep(self, task_id: str, kept_seconds: float) -> None:
        now_ms = self.file.clock.wall_ms()
        with self.file.opened() as connection:
            connection.execute(KEEP, (_until_ms(now_ms, kept_seconds), task_id, now_ms))


def _until_ms(now_ms: int, kept_seconds: float) -> int:
    return now_ms + round(kept_seconds * 1000)
