"""SQLite files beside the catalog, with tables of their own: queues never wait for their locks.

A file is created when it is first used. Each row has an expiry time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cassq.base.clock import Clock
from cassq.base.forking import take_at_forks
from cassq.catalog.sqlite.database import LOCK_WAIT_SECONDS, explained
from cassq.errors import ClosedError, InterruptedCallError

FORGET_MS = 10_000


class SideFile:
    """One such file. Thread-safe.

    create: statements that create its tables. forget: the statement that removes expired rows; its
    parameter is the wall time. synced: whether each write is synced before it returns.
    """

    def __init__(
        self, path: Path, clock: Clock, create: Sequence[str], forget: str, *, synced: bool
    ) -> None:
        self._path = path
        self.clock: Clock = clock
        self._create = create
        self._forget = forget
        self._synced = synced
        self._lock = threading.RLock()  # it knows its owner
        take_at_forks(self._lock, self._let_go)
        self._connection: sqlite3.Connection | None = None
        self._forgot_ms = clock.boot_ms()
        self._closed = False

    @property
    def exists(self) -> bool:
        """Whether anything was ever written."""
        return self._connection is not None or self._path.exists()

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """Gives this thread the connection for a block. Each statement is a transaction."""
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

    def forget(self, connection: sqlite3.Connection) -> None:
        """Remove expired rows, once in ten seconds at most. Cost: a range of an index."""
        if self.clock.boot_ms() - self._forgot_ms >= FORGET_MS:
            self._forgot_ms = self.clock.boot_ms()
            connection.execute(self._forget, (self.clock.wall_ms(),))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        """Close the connection, also before a fork: see `base/forking.py`. The next use opens the
        file again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def abandon(self) -> sqlite3.Connection | None:
        """Give up the connection without touching it: what a forked child must do."""
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._synced else 'NORMAL'}")
            for statement in self._create:
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection
