"""The rows of an outbox as the relay takes them, and the notes of where they go.

One relay leads at a time. A relay that takes over raises the *epoch*. From then on the writes of
earlier relays are refused: each transaction checks that the epoch is still its relay's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from cassq import extras
from cassq.errors import ConfigError, FencedError
from cassq.outbox import table
from cassq.outbox.session import Session
from cassq.outbox.sqlite import SqliteSession
from cassq.outbox.table import LandingPlace, Row

_PAYLOAD = Row._fields.index("payload")


class WaitingRows(NamedTuple):
    """What waits in an outbox for a queue. oldest_ms: wall time when the oldest was pushed."""

    queue: str
    waiting: int
    oldest_ms: int


class OutboxDatabase:
    """An outbox's database. Not thread-safe. Its methods raise the errors of `Session`."""

    def __init__(self, session: Session, dialect: str) -> None:
        self._session = session
        self._dialect = dialect

    def create(self) -> None:
        """Create the tables that do not exist."""
        with self._session.transaction():
            for statement in table.ddl(self._dialect):
                self._session.execute(statement)

    def outbox(self) -> str:
        """The outbox's id. Raises ConfigError for tables of another version."""
        found = self._session.execute(table.STATE)
        if not found or found[0][0] != table.VERSION:
            raise table.other_version(found)
        return str(found[0][1])

    def lead(self) -> int:
        """Take over; returns the new epoch. By then each transaction of an earlier relay has ended,
        or will be refused."""
        with self._session.transaction():
            ((epoch,),) = self._session.execute(table.LEAD)
        return int(epoch)

    def places(self) -> list[LandingPlace]:
        """The places that are noted."""
        return [
            LandingPlace(pipe, seq, queue_id, table.from_text(messages))
            for pipe, seq, queue_id, messages in self._session.execute(table.PLACES)
        ]

    def rows(self, most: int, size: int, without: Collection[str] = ()) -> list[Row]:
        """The next rows by id: at most `most`, with about `size` bytes of payloads. without: queues
        to leave out."""
        names = sorted(without)
        statement = table.next_rows(len(names))
        found = self._session.some(statement, [*names, most], size=size, column=_PAYLOAD)
        return [Row(*row) for row in found]

    def note(self, epoch: int, place: LandingPlace) -> None:
        """Note, durably, where rows are about to be. Raises FencedError if another relay has taken
        over."""
        with self._leading(epoch):
            text = table.as_text(place.rows)
            self._session.execute(table.NOTE, (place.pipe, place.seq, place.queue_id, text))

    def done(self, epoch: int, rows: Sequence[int], places: Sequence[LandingPlace]) -> None:
        """Delete rows that are in their queues, and notes, in one transaction. Raises FencedError
        if another relay has taken over."""
        with self._leading(epoch):
            # Only ids that were read: an id in between may be of a transaction that commits later.
            for run in table.runs(sorted(rows)):
                self._session.execute(table.DELETE, run)
            for place in places:
                self._session.execute(table.FORGET, (place.pipe, place.seq))

    @contextmanager
    def _leading(self, epoch: int) -> Iterator[None]:
        with self._session.transaction():
            if not self._session.execute(table.LEADS, (epoch,)):
                raise FencedError("another relay of this outbox has taken over")
            yield

    def waiting(self) -> list[WaitingRows]:
        """What waits for each queue, by name. Reads the whole table."""
        return [WaitingRows(*row) for row in self._session.execute(table.WAITING)]

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


def database_of(dsn: str) -> OutboxDatabase:
    """The database at a path, `sqlite:///PATH` or a `postgresql://` URL. It is opened when it is
    first used. Raises ConfigError for anything else, and MissingExtraError."""
    if not isinstance(dsn, str) or not dsn:
        raise ConfigError(f"a database must be named by a non-empty str, not {dsn!r}")
    scheme, found, rest = dsn.partition("://")
    scheme = scheme.partition("+")[0]  # in SQLAlchemy's URLs a driver may follow
    if not found:
        return OutboxDatabase(SqliteSession(dsn), "sqlite")
    match scheme:
        case "sqlite" if rest[:1] == "/" and len(rest) > 1:
            # As in SQLAlchemy: three slashes before a relative path, four before an absolute one.
            return OutboxDatabase(SqliteSession(rest[1:]), "sqlite")
        case "postgresql" | "postgres":
            with extras.wanted("postgresql: URLs need", "psycopg", "postgresql"):
                from cassq.outbox.postgresql import PostgresqlSession
            return OutboxDatabase(PostgresqlSession(f"{scheme}://{rest}"), "postgresql")
    raise ConfigError(
        f"there can be no outbox at {scheme}:",
        hint="write a path, sqlite:///app.db, sqlite:////srv/app.db or postgresql://HOST/DATABASE",
    )
