"""The database of an outbox in PostgreSQL, by psycopg 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from cassq.errors import BackendError, CassqError
from cassq.outbox.session import Session, no_outbox, unavailable
from cassq.outbox.table import in_style

CONNECT_SECONDS = 10
ROWS_AT_ONCE_MIN, ROWS_AT_ONCE_MAX = 16, 4096  # how many rows one fetch reads


class PostgresqlSession(Session):
    """A server, at an address as libpq takes it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: Any = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated() as connection, connection.transaction():
            yield

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated() as connection:
            cursor = connection.execute(_percent(statement), parameters)
            return list(cursor) if cursor.description else []

    def some(
        self, statement: str, parameters: Sequence[Any], *, size: int, column: int
    ) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        # A server-side cursor, in a transaction, so that large rows do not all come at once.
        with self._translated() as connection, connection.transaction():
            with connection.cursor(name="cassq_outbox_rows") as cursor:
                cursor.execute(_percent(statement), parameters)
                count = ROWS_AT_ONCE_MIN
                while size > 0 and (rows := cursor.fetchmany(count)):
                    found += rows
                    read = sum(len(row[column]) for row in rows)
                    size -= read
                    # Fetch more at once only while rows are small.
                    if 16 * read <= size:
                        count = min(4 * count, ROWS_AT_ONCE_MAX)
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _translated(self) -> Iterator[Any]:
        try:
            yield self._open()
        except (psycopg.OperationalError, psycopg.InterfaceError) as exc:
            self.close()
            raise unavailable(exc) from exc
        except psycopg.Error as exc:
            raise _error(exc) from exc

    def _open(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(
                self._address, autocommit=True, connect_timeout=CONNECT_SECONDS
            )
        return self._connection


def _error(exc: psycopg.Error) -> CassqError:
    if isinstance(exc, psycopg.errors.UndefinedTable):
        return no_outbox(exc)
    return BackendError(f"the database of the outbox: {exc}", retryable=False)


def _percent(statement: str) -> str:
    return in_style(statement, lambda _: "%s")
