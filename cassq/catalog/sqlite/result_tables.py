"""Results of tasks in SQLite: in a file of their own.

Only SQLite's checkpoints sync it: a power cut may lose the last results, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cassq.base.clock import Clock
from cassq.catalog.result_port import Results
from cassq.catalog.sqlite.side_file import SideFile

CREATE = """
CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value BLOB NOT NULL, until_ms INTEGER)
WITHOUT ROWID"""
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS results_until ON results (until_ms)"
PUT = "INSERT OR REPLACE INTO results (key, value, until_ms) VALUES (?, ?, ?)"
# An expired row counts as absent.
PUT_NEW = """
INSERT INTO results (key, value, until_ms) VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET
value = iif(until_ms > ?, value, excluded.value),
until_ms = iif(until_ms > ?, until_ms, excluded.until_ms)
RETURNING value"""
FIND = "SELECT key, value FROM results WHERE until_ms > ? AND key IN ({})"
DROP = "DELETE FROM results WHERE key = ?"
# Bounded: a range of the index.
FORGET = """
DELETE FROM results WHERE key IN
(SELECT key FROM results WHERE until_ms <= ? ORDER BY until_ms LIMIT 10000)"""
KEYS_MAX = 500  # in one statement


class SqliteResults(Results):
    """Results in the file `path`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.file: SideFile = SideFile(path, clock, (CREATE, CREATE_INDEX), FORGET, synced=False)

    def put(self, key: str, value: bytes, kept_seconds: float) -> None:
        until_ms = self.file.clock.wall_ms() + round(kept_seconds * 1000)
        with self.file.opened() as connection:
            connection.execute(PUT, (key, value, until_ms))
            self.file.forget(connection)

    def put_new(self, key: str, value: bytes, kept_seconds: float) -> bytes:
        now_ms = self.file.clock.wall_ms()
        row = (key, value, now_ms + round(kept_seconds * 1000), now_ms, now_ms)
        with self.file.opened() as connection:
            ((found,),) = connection.execute(PUT_NEW, row).fetchall()
        return bytes(found)

    def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if not self.file.exists:
            return found
        with self.file.opened() as connection:
            for first in range(0, len(keys), KEYS_MAX):
                some = keys[first : first + KEYS_MAX]
                statement = FIND.format(",".join("?" * len(some)))
                found.update(connection.execute(statement, (self.file.clock.wall_ms(), *some)))
        return found

    def drop(self, keys: Sequence[str]) -> None:
        with self.file.opened() as connection:
            connection.executemany(DROP, [(key,) for key in keys])
