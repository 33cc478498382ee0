"""A PostgreSQL table: COPY in, and batches out with FOR UPDATE SKIP LOCKED."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import psycopg
from psycopg import sql

from bench.peers.peer import Peer, Place, Traits, slices

# Pages are filled by half, so that a lease is marked within its page and no index entry is written
# for it: that makes popping nearly twice as fast.
CREATE = """\
CREATE TABLE {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    leased_until timestamptz NOT NULL DEFAULT '-infinity',
    payload bytea NOT NULL
) WITH (fillfactor = 50)"""
COPY = "COPY {table} (payload) FROM STDIN (FORMAT BINARY)"
INSERT = "INSERT INTO {table} (payload) VALUES (%b)"
INSERT_AND_NOTIFY = """\
WITH inserted AS (INSERT INTO {table} (payload) VALUES (%b) RETURNING id)
SELECT pg_notify(%s, '') FROM inserted"""
LEASE = """\
UPDATE {table} AS message SET leased_until = now() + interval '30 s'
FROM (
    SELECT id FROM {table} WHERE leased_until < now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
) AS waiting
WHERE message.id = waiting.id
RETURNING message.id, message.payload"""
DELETE = "DELETE FROM {table} WHERE id = ANY(%b)"

CREATE_UNLEASED = """\
CREATE TABLE {table} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    payload bytea NOT NULL
)"""
LOCK = "SELECT id, payload FROM {table} ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"


class PostgresqlPeer(Peer):
    """Marks a batch leased, durably, before it hands it out, and deletes it when acknowledged."""

    name = "postgresql"
    title = "PostgreSQL"
    traits = Traits(
        server="postgresql",
        deep=True,
        note="Unix socket, binary COPY, SKIP LOCKED with leases; transactions of 5,000 rows "
        "(100 B), 2,000 (1 KB)",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 2_000}
    create_statement = CREATE

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._held: list[int] = []

    def _text(self, template: str) -> sql.Composed:
        return sql.SQL(template).format(table=sql.Identifier(self.place.queue))

    @cached_property
    def _connection(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.place.address, autocommit=True)

    @cached_property
    def _listener(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(self.place.address, autocommit=True)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.place.queue)))
        return connection

    def create(self) -> None:
        self._connection.execute(self._text(self.create_statement))

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        copy_text = self._text(COPY)
        connection = self._connection
        for batch in slices(chunks, self.batch):
            with connection.cursor() as cursor, cursor.copy(copy_text) as copy:
                for payload in batch:
                    copy.write_row((payload,))

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # A connection a thread: the server groups the commits of all sessions.
        execute = psycopg.connect(self.place.address, autocommit=True).execute
        insert = self._text(INSERT_AND_NOTIFY if wakes else INSERT)
        values = (self.place.queue,) if wakes else ()

        def push_one(payload: bytes) -> None:
            execute(insert, (payload, *values), prepare=True)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        deadline = time.monotonic() + wait_s
        listener = self._listener if wait_s else None
        found = self._take(limit)
        while listener is not None and not found and (left := deadline - time.monotonic()) > 0:
            for _ in listener.notifies(timeout=left, stop_after=1):
                pass
            found = self._take(limit)
        return found

    def _query(self, template: str, limit: int) -> list[bytes]:
        """Run a statement that returns ids and payloads; remember the ids, oldest first."""
        with self._connection.cursor(binary=True) as cursor:
            rows = cursor.execute(self._text(template), (limit,), prepare=True).fetchall()
        rows.sort()
        self._held += [key for key, _ in rows]
        return [payload for _, payload in rows]

    def _take(self, limit: int) -> list[bytes]:
        return self._query(LEASE, limit)

    def ack(self) -> None:
        self._connection.execute(self._text(DELETE), (self._held,), prepare=True)
        self._held = []

    def settle(self) -> None:
        self._connection.execute(self._text("VACUUM (ANALYZE) {table}"))
        self._connection.execute("CHECKPOINT")

    def close(self) -> None:
        for name in ("_connection", "_listener"):
            if name in self.__dict__:
                self.__dict__[name].close()

    def drop(self) -> None:
        with psycopg.connect(self.place.address, autocommit=True) as connection:
            connection.execute(self._text("DROP TABLE {table}"))


class PostgresqlHeldPeer(PostgresqlPeer):
    """Hands a batch out under row locks and keeps the transaction open until the acknowledgement.

    One write a message less. In exchange nothing durable says that a message was handed out, and
    the transaction lasts as long as the work does.
    """

    name = "postgresql-held"
    title = "PostgreSQL, locks held"
    traits = Traits(
        server="postgresql",
        only=("through",),
        note="row locks held from pop to ack instead of a lease; transactions of 10,000 rows "
        "(100 B), 5,000 (1 KB)",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 10_000, 1_000: 5_000}
    create_statement = CREATE_UNLEASED

    def _take(self, limit: int) -> list[bytes]:
        if not self._held:
            self._connection.execute("BEGIN")
        found = self._query(LOCK, limit)
        if not self._held:
            self._connection.execute("COMMIT")
        return found

    def ack(self) -> None:
        super().ack()
        self._connection.execute("COMMIT")
