"""Plain rows in SQLite, as one would write them by hand: insert, mark leased, delete. Once more
without the lease, which one consumer alone can do without."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import ClassVar

from bench.peers.peer import Peer, Place, Traits, poll, slices

LEASE_NS = 30 * 10**9

CREATE = """\
CREATE TABLE queue (
    id INTEGER PRIMARY KEY,
    leased_until INTEGER NOT NULL DEFAULT 0,
    payload BLOB NOT NULL
)"""
INSERT = "INSERT INTO queue (payload) VALUES (?)"
# The primary key alone finds and marks a batch; a further index would only slow every write.
SELECT = "SELECT id, payload FROM queue WHERE leased_until < ? ORDER BY id LIMIT ?"
LEASE = "UPDATE queue SET leased_until = ? WHERE id BETWEEN ? AND ? AND leased_until < ?"
# The lease's own deadline is the token: a row leased anew by somebody else is left alone.
DELETE = "DELETE FROM queue WHERE id BETWEEN ? AND ? AND leased_until = ?"
CREATE_UNLEASED = "CREATE TABLE queue (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)"
SELECT_UNLEASED = "SELECT id, payload FROM queue ORDER BY id LIMIT ?"
DELETE_UNLEASED = "DELETE FROM queue WHERE id BETWEEN ? AND ?"


class SqlitePeer(Peer):
    name = "sqlite"
    title = "SQLite rows"
    traits = Traits(deep=True, note="WAL, synchronous=FULL; transactions of 5,000 rows")
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 5_000}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lock = threading.Lock()
        self._leases: list[tuple[int, int, int]] = []

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.place.directory / "queue.db",
            isolation_level=None,
            check_same_thread=False,
            timeout=60.0,
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA cache_size = -65536")
        return connection

    def create(self) -> None:
        self._connection.execute(CREATE)

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        connection = self._connection
        for batch in slices(chunks, self.batch):
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(INSERT, zip(batch))
            connection.execute("COMMIT")

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # SQLite has one writer at a time: a lock hands over faster than its busy handler does.
        connection, lock = self._connection, self._lock

        def push_one(payload: bytes) -> None:
            with lock:
                connection.execute(INSERT, (payload,))

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return poll(lambda: self._lease(limit), wait_s)

    def _lease(self, limit: int) -> list[bytes]:
        connection = self._connection
        now_ns = time.time_ns()
        if connection.execute(SELECT, (now_ns, 1)).fetchone() is None:
            return []  # A look at an empty queue takes no write lock.
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(SELECT, (now_ns, limit)).fetchall()
        if rows:
            lease = (rows[0][0], rows[-1][0], now_ns + LEASE_NS)
            connection.execute(LEASE, (lease[2], lease[0], lease[1], now_ns))
            self._leases.append(lease)
        connection.execute("COMMIT")
        return [payload for _, payload in rows]

    def ack(self) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(DELETE, self._leases)
        connection.execute("COMMIT")
        self._leases = []

    def settle(self) -> None:
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._connection.close()


class SqliteUnleasedPeer(SqlitePeer):
    """What is read is deleted in the same transaction, which `ack` ends: a second consumer waits
    for it, and nothing counts what was delivered before a crash."""

    name = "sqlite-unleased"
    title = "SQLite rows, no leases"
    traits = Traits(
        only=("through",),
        note="the same rows without a lease: read and deleted in one transaction, by one consumer",
    )

    def create(self) -> None:
        self._connection.execute(CREATE_UNLEASED)

    def _lease(self, limit: int) -> list[bytes]:
        connection = self._connection
        if not connection.in_transaction:
            connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(SELECT_UNLEASED, (limit,)).fetchall()
        if not rows:
            connection.execute("ROLLBACK")
            return []
        connection.execute(DELETE_UNLEASED, (rows[0][0], rows[-1][0]))
        return [payload for _, payload in rows]

    def ack(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
