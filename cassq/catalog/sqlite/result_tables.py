"""Results of tasks in SQLite: in a file of their own, so that nothing of the queues waits for them.

The file is made when the first result is written. It is never synced but by SQLite's checkpoints: a
power cut may lose the last results, and nothing else.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cassq.base.clock import Clock
from cassq.catalog.result_port import Results
from cassq.catalog.sqlite.database import LOCK_WAIT_SECONDS, explained
from cassq.errors import ClosedError, InterruptedCallError

CREATE = """
CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, value BLOB NOT NULL, until_ms INTEGER)
WITHOUT ROWID"""
CREATE_INDEX = "CREATE INDEX IF NOT EXISTS results_until ON results (until_ms)"
PUT = "INSERT OR REPLACE INTO results (key, value, until_ms) VALUES (?, ?, ?)"
# What is there and over is as if it were not.
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
FORGET_MS = 10_000
KEYS_MAX = 500  # in one statement


class SqliteResults(Results):
    """Results in the file `path`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.RLock()  # it knows its owner
        self._connection: sqlite3.Connection | None = None
        self._forgot_ms = clock.boot_ms()
        self._closed = False

    def put(self, key: str, value: bytes, kept_seconds: float) -> None:
        now_ms = self._clock.wall_ms()
        with self._opened() as connection:
            connection.execute(PUT, (key, value, now_ms + round(kept_seconds * 1000)))
            if self._clock.boot_ms() - self._forgot_ms >= FORGET_MS:
                self._forgot_ms = self._clock.boot_ms()
                connection.execute(FORGET, (now_ms,))

    def put_new(self, key: str, value: bytes, kept_seconds: float) -> bytes:
        now_ms = self._clock.wall_ms()
        row = (key, value, now_ms + round(kept_seconds * 1000), now_ms, now_ms)
        with self._opened() as connection:
            ((found,),) = connection.execute(PUT_NEW, row).fetchall()
        return bytes(found)

    def find(self, keys: Sequence[str]) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        if self._connection is None and not self._path.exists():
            return found
        with self._opened() as connection:
            for first in range(0, len(keys), KEYS_MAX):
                some = keys[first : first + KEYS_MAX]
                statement = FIND.format(",".join("?" * len(some)))
                found.update(connection.execute(statement, (self._clock.wall_ms(), *some)))
        return found

    def drop(self, keys: Sequence[str]) -> None:
        with self._opened() as connection:
            connection.executemany(DROP, [(key,) for key in keys])

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def abandon(self) -> sqlite3.Connection | None:
        """Give up the connection without touching it: what a forked child must do."""
        return self._connection

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise InterruptedCallError()
        try:
            with self._lock:
                if self._connection is None:
                    if self._closed:
                        raise ClosedError()
                    self._connection = self._open()
                yield self._connection
        except sqlite3.Error as exc:
            raise explained(exc, str(self._path)) from exc

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(CREATE)
            connection.execute(CREATE_INDEX)
        except BaseException:
            connection.close()
            raise
        return connection
