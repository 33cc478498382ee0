"""The user's connection: runs the outbox's statements in its current transaction.

Nothing here begins, commits or rolls back. A driver's errors pass unchanged, because a program that
tries again after a deadlock must see them. Only the driver of the connection is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cassq.errors import UsageError
from cassq.outbox.table import check_dialect, in_style

_KINDS = {
    ("sqlite3", "Connection"): "sqlite3",
    ("psycopg", "Connection"): "psycopg",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
    ("django", "BaseDatabaseWrapper"): "django",
    ("django", "ConnectionProxy"): "django",
}
_HINT = (
    "pass a connection of sqlite3 or psycopg 3, a Connection or Session of SQLAlchemy, or"
    " django.db.connection; in asyncio: await session.run_sync(lambda s: Outbox(s).push(...))"
)

Parameters = Sequence[Any]


class UserConnection(NamedTuple):
    """What the outbox does with a connection. dialect: of its database."""

    dialect: str
    execute: Callable[[str, Parameters], list[tuple[Any, ...]]]
    execute_many: Callable[[str, Sequence[Parameters]], object]


def user_connection(connection: Any) -> UserConnection:
    """A user's connection. Raises UsageError for anything else, or for an unsupported database."""
    names = [(each.__module__.partition(".")[0], each.__name__) for each in type(connection).mro()]
    match next((_KINDS[name] for name in names if name in _KINDS), None):
        case "sqlite3":
            found = _of_sqlite3(connection)
        case "psycopg":
            found = _of_psycopg(connection)
        case "sqlalchemy":
            found = _of_sqlalchemy(connection)
        case "django":
            found = _of_django(connection)
        case _:
            kind = ".".join(names[0])
            raise UsageError(f"an outbox cannot use a connection of type {kind}", hint=_HINT)
    check_dialect(found.dialect)
    return found


def _of_sqlite3(connection: Any) -> UserConnection:
    def execute(statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        cursor = connection.cursor()
        cursor.row_factory = None
        return list(cursor.execute(statement, parameters))

    def execute_many(statement: str, rows: Sequence[Parameters]) -> None:
        connection.cursor().executemany(statement, rows)

    return UserConnection("sqlite", execute, execute_many)


def _of_psycopg(connection: Any) -> UserConnection:
    from psycopg.rows import tuple_row

    def execute(statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        with connection.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(_percent(statement), parameters)
            return list(cursor) if cursor.description else []

    def execute_many(statement: str, rows: Sequence[Parameters]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(_percent(statement), rows)

    return UserConnection("postgresql", execute, execute_many)


def _of_django(connection: Any) -> UserConnection:
    def execute(statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(_percent(statement), parameters)
            return list(cursor.fetchall()) if cursor.description else []

    def execute_many(statement: str, rows: Sequence[Parameters]) -> None:
        with connection.cursor() as cursor:
            cursor.executemany(_percent(statement), rows)

    return UserConnection(connection.vendor, execute, execute_many)


def _of_sqlalchemy(connection: Any) -> UserConnection:
    from sqlalchemy import text

    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection

    def execute(statement: str, parameters: Parameters) -> list[tuple[Any, ...]]:
        found = connection.execute(text(_named(statement)), _by_name(parameters))
        return [tuple(row) for row in found] if found.returns_rows else []

    def execute_many(statement: str, rows: Sequence[Parameters]) -> None:
        connection.execute(text(_named(statement)), [_by_name(row) for row in rows])

    return UserConnection(bind.dialect.name, execute, execute_many)


def _percent(statement: str) -> str:
    return in_style(statement, lambda _: "%s")


def _named(statement: str) -> str:
    # `text` leaves casts ("::") alone, and statements with casts have no parameters.
    return in_style(statement, lambda number: f":p{number}")


def _by_name(parameters: Parameters) -> dict[str, Any]:
    return {f"p{number}": value for number, value in enumerate(parameters)}
