"""Pushes into an outbox: what is written by which connections, and when it exists."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import cassq
from cassq.errors import ConfigError, InvalidNameError, InvalidPayloadError, UsageError
from cassq.outbox.relay import Relay
from tests.integration.outbox.databases import left
from tests.integration.stage import drain, payloads

ROOT = Path(__file__).resolve().parents[3]


def forwarded(client: cassq.Client, dsn: str | Path, queue: str = "jobs") -> list[bytes]:
    """What a relay brings to a queue."""
    client.create_queue(queue)
    with Relay(client, str(dsn)) as relay:
        relay.forward()
    return payloads(drain(client.queue(queue).popper()))


# --- transactions ---------------------------------------------------------------------------


def test_what_is_rolled_back_leaves_nothing(
    client: cassq.Client, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    connection.execute("INSERT INTO users VALUES ('Ann')")
    outbox.push("jobs", b"lost")
    outbox.push_many("jobs", [b"lost too"])
    connection.rollback()
    assert (left(file), forwarded(client, file)) == ((0, 0), [])


def test_nothing_is_there_before_the_commit(
    file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    outbox.push("jobs", b"1")
    assert left(file) == (0, 0)
    assert connection.in_transaction
    connection.commit()
    assert left(file) == (1, 0)


def test_a_message_arrives_as_it_was_pushed(
    client: cassq.Client, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    origin = outbox.push("jobs", b"\0\xff", headers={"a": "ü"}, key=b"k", priority=7)
    connection.commit()
    queue = client.create_queue("jobs")
    with Relay(client, str(file)) as relay:
        assert relay.forward().forwarded == 1
    with queue.popper() as popper:
        (message,) = popper.pop()
        assert (message.payload, message.key, message.priority) == (b"\0\xff", b"k", 7)
        assert message.headers == {"a": "ü", "cassq-outbox": origin}
    assert client.explain(message.id).queue == "jobs"


def test_a_delay_counts_from_the_push(
    client: cassq.Client, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    outbox.push("jobs", b"later", delay=3600)
    outbox.push("jobs", b"due", due=datetime.now(UTC) - timedelta(seconds=1))
    outbox.push_many("jobs", [b"late 1", b"late 2"], delay=7200)
    connection.commit()
    assert forwarded(client, file) == [b"due"]
    stats = client.queue("jobs").stats().groups["default"]
    assert (stats.delayed, left(file)) == (3, (0, 0))


# --- connections ----------------------------------------------------------------------------


def test_a_connection_of_sqlite3_may_make_rows_and_texts_as_it_likes(
    client: cassq.Client, file: Path
) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.row_factory = lambda _cursor, row: {"columns": len(row)}
        connection.text_factory = bytes
        assert cassq.Outbox(connection).push("jobs", b"1").endswith(":1")
        assert cassq.Outbox(connection).push_many("jobs", [b"2"]) == 1
    assert forwarded(client, file) == [b"1", b"2"]


def test_sessions_of_sqlalchemy(client: cassq.Client, file: Path) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        cassq.Outbox(connection).push("jobs", b"1")
    with Session(engine) as session:
        cassq.Outbox(session).push_many("jobs", [b"lost"])
        session.rollback()
        cassq.Outbox(session).push("jobs", b"2", headers={"a": ":b ? %s"})
        session.commit()
    scoped = scoped_session(sessionmaker(engine))
    cassq.Outbox(scoped).push_many("jobs", [b"3", b"4"], keys=[b"k", None])
    scoped.commit()
    scoped.remove()
    engine.dispose()
    assert forwarded(client, f"sqlite:///{file}") == [b"1", b"2", b"3", b"4"]


DJANGO = """
import sys
from django.conf import settings
database = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1]}
settings.configure(DATABASES={"default": database})
from django.db import connection, connections, transaction
import cassq

cassq.Outbox.create(connection)
with transaction.atomic():
    assert cassq.Outbox(connection).push("jobs", b"1 %s", headers={"a": "%s"}).endswith(":1")
try:
    with transaction.atomic():
        cassq.Outbox(connections["default"]).push("jobs", b"lost")
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    cassq.Outbox(connection).push_many("jobs", [b"2", b"3"])
"""


def test_connections_of_django(client: cassq.Client, tmp_path: Path) -> None:
    path = tmp_path / "django.db"
    subprocess.run([sys.executable, "-c", DJANGO, path], cwd=ROOT, check=True, env=os.environ)
    assert forwarded(client, path) == [b"1 %s", b"2", b"3"]


def test_connections_of_psycopg(client: cassq.Client, postgres: str) -> None:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(postgres, row_factory=dict_row) as connection:
        outbox = cassq.Outbox(connection)
        outbox.push("jobs", b"lost")
        connection.rollback()
        outbox.push("jobs", b"\0 1", headers={"a": "%s"}, key=b"k")
        outbox.push_many("jobs", [b"2", b"3"])
        connection.commit()
    assert forwarded(client, postgres) == [b"\0 1", b"2", b"3"]


def test_sessions_of_sqlalchemy_on_postgresql(client: cassq.Client, postgres: str) -> None:
    from sqlalchemy import create_engine

    url = postgres.replace("postgresql:", "postgresql+psycopg:")
    engine = create_engine(url)
    with engine.begin() as connection:
        cassq.Outbox.create(connection)
        cassq.Outbox(connection).push("jobs", b"1", headers={"a": "b"}, delay=None)
        cassq.Outbox(connection).push_many("jobs", [b"2"], keys=[b"k"])
    engine.dispose()
    assert forwarded(client, url) == [b"1", b"2"]


@pytest.mark.parametrize("connection", [None, "app.db", object()])
def test_what_is_not_a_connection_is_refused(connection: object) -> None:
    with pytest.raises(UsageError, match="cannot use a connection of type"):
        cassq.Outbox(connection)


def test_another_database_is_refused() -> None:
    from sqlalchemy import create_engine

    with closing(create_engine("sqlite://").connect()) as connection:
        connection.dialect.name = "oracle"
        with pytest.raises(UsageError, match="not in 'oracle'"):
            cassq.Outbox(connection)


# --- bad input ------------------------------------------------------------------------------


def test_what_no_queue_takes_is_refused_before_it_is_written(
    file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    with pytest.raises(InvalidPayloadError, match="must be bytes"):
        outbox.push("jobs", "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError, match="must be bytes"):
        outbox.push_many("jobs", [b"1", 2])  # type: ignore[list-item]
    with pytest.raises(InvalidPayloadError, match="a key must be bytes"):
        outbox.push("jobs", b"1", key="k")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayloadError, match="headers"):
        outbox.push_many("jobs", [b"1", b"2"], headers=[{}])
    with pytest.raises(InvalidNameError):
        outbox.push("no name", b"1")
    with pytest.raises(UsageError, match="priority"):
        outbox.push("jobs", b"1", priority=10)
    with pytest.raises(UsageError, match="only one of them"):
        outbox.push("jobs", b"1", delay=1, due=datetime.now(UTC))
    connection.commit()
    assert left(file) == (0, 0)


def test_a_database_without_an_outbox_says_how_it_is_made(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        with pytest.raises(sqlite3.OperationalError, match="no such table") as caught:
            cassq.Outbox(connection).push("jobs", b"1")
        assert any("cassq.Outbox.create" in note for note in caught.value.__notes__)


def test_a_closed_connection_raises_what_its_driver_raises(file: Path) -> None:
    connection = sqlite3.connect(file)
    outbox = cassq.Outbox(connection)
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        outbox.push("jobs", b"1")


def test_tables_of_another_version_take_nothing(
    client: cassq.Client, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    connection.execute("UPDATE cassq_outbox_state SET version = 7")
    with pytest.raises(ConfigError, match="have version 7"):
        outbox.push("jobs", b"1")
    with pytest.raises(ConfigError, match="have version 7"):
        outbox.push_many("jobs", [b"1"])
    connection.commit()
    with Relay(client, str(file)) as relay, pytest.raises(ConfigError, match="have version 7"):
        relay.forward()
    assert left(file) == (0, 0)


def test_creating_it_again_changes_nothing(
    client: cassq.Client, file: Path, connection: sqlite3.Connection, outbox: cassq.Outbox
) -> None:
    before = outbox.push("jobs", b"1").partition(":")[0]
    cassq.Outbox.create(connection)
    assert outbox.push("jobs", b"2").partition(":")[0] == before
    connection.commit()
    assert forwarded(client, file) == [b"1", b"2"]


def test_its_sql_makes_the_same_tables(client: cassq.Client, tmp_path: Path) -> None:
    path = tmp_path / "migrated.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(cassq.Outbox.ddl("sqlite"))
        cassq.Outbox(connection).push("jobs", b"1")
        connection.commit()
    assert forwarded(client, path) == [b"1"]
    with pytest.raises(UsageError, match="not in 'mysql'"):
        cassq.Outbox.ddl("mysql")
