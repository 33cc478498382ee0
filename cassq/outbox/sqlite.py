"""The database of an outbox in an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cassq.errors import BackendError, BackendTimeoutError, CassqError, ConfigError
from cassq.outbox.session import Session, no_outbox, unavailable

BUSY_SECONDS = 5.0


class SqliteSession(Session):
    """A file; its journal mode and other settings are left as they are. busy_seconds: how long to
    wait for another writer."""

    def __init__(self, path: str, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self._busy_seconds = busy_seconds
        self._path = Path(path)
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated() as connection:
            return connection.execute(statement, parameters).fetchall()

    def some(
        self, statement: str, parameters: Sequence[Any], *, size: int, column: int
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        with self._translated() as connection:
            cursor = connection.execute(statement, parameters)
            for row in cursor:
                found.append(row)
                size -= len(row[column]) if isinstance(row[column], (bytes, str)) else 0
                if size <= 0:
                    break
            cursor.close()
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _translated(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._open()
        except sqlite3.Error as exc:
            raise _error(exc) from exc

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if not self._path.is_file():
                raise ConfigError(f"there is no database {self._path}")
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=self._busy_seconds, isolation_level=None
            )
        return self._connection


def _error(exc: sqlite3.Error) -> CassqError:
    name = getattr(exc, "sqlite_errorname", "")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return BackendTimeoutError(f"the database of the outbox: {exc}", hint="try again")
    if "no such table: cassq_outbox" in str(exc):
        return no_outbox(exc)
    if isinstance(exc, sqlite3.OperationalError):
        return unavailable(exc)
    return BackendError(f"the database of the outbox: {exc}", retryable=False)
