"""The outbox as its user sees it: pushes become rows, written in the user's own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from cassq.base.clock import Clock, SystemClock
from cassq.message.columns import encode_headers
from cassq.model.priorities import check_priority
from cassq.model.queues import check_queue_name
from cassq.outbox.connections import user_connection
from cassq.outbox.table import PUSH, PUSH_MANY, STATE, VERSION, PushedRow, ddl, other_version
from cassq.producer.admission import (
    check_columns,
    check_delay_ms,
    check_key,
    check_payload,
    check_payloads,
)

_NO_TABLE = "if the outbox's tables do not exist yet, cassq.Outbox.create(connection) creates them"


class Outbox:
    """Pushes messages as part of a database transaction: they exist only if it commits.

    connection: of `sqlite3` or psycopg 3, a Connection or Session of SQLAlchemy, or Django's
    `connection`. The outbox itself commits nothing. `cassq outbox relay` forwards the messages to
    their queues. As thread-safe as the connection. Raises UsageError for any other connection.
    """

    def __init__(self, connection: Any, *, clock: Clock | None = None) -> None:
        self._connection = user_connection(connection)
        self._clock = clock or SystemClock()

    @staticmethod
    def create(connection: Any) -> None:
        """Create the tables of the outbox that do not exist, in the connection's transaction; a
        connection that is in none, as `sqlite3` allows, commits them at once. Raises UsageError for
        a connection that an outbox cannot use."""
        found = user_connection(connection)
        for statement in ddl(found.dialect):
            found.execute(statement, ())

    @staticmethod
    def ddl(dialect: str) -> str:
        """The SQL that creates the tables, for a migration. dialect: "sqlite" or "postgresql".
        Raises UsageError for another."""
        return "".join(f"{statement};\n" for statement in ddl(dialect))

    def push(
        self,
        queue: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        priority: int = 0,
    ) -> str:
        """Write one message. Returns `OUTBOX:ROW`, the value that its header `cassq-outbox` will
        have.

        The arguments are those of `Pusher.push`; delay: in seconds from now. Raises
        InvalidPayloadError, MessageTooLargeError and UsageError for arguments that no queue takes,
        and ConfigError for tables of another version; the driver's errors pass unchanged. Only the
        relay checks whether the queue exists. Cost: one INSERT.
        """
        check_queue_name(queue)
        now_ms = self._clock.wall_ms()
        row = PushedRow(
            queue,
            check_payload(payload),
            encode_headers(headers),
            check_key(key),
            self._due_ms(delay, due, now_ms),
            check_priority(priority),
            now_ms,
        )
        found = self._execute(PUSH, row)
        if not found:
            raise other_version(self._execute(STATE, ()))
        row_id, outbox = found[0]
        return f"{outbox}:{row_id}"

    def push_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        priority: int = 0,
    ) -> int:
        """Write messages in order; returns how many. headers, keys: one entry per payload. Raises
        as `push`, before anything is written. Cost: a SELECT, and an INSERT for each message, all
        passed to the driver at once."""
        check_queue_name(queue)
        found, _ = check_payloads(payloads)
        check_columns(len(found), headers=headers, keys=keys, dedup_ids=None)
        now_ms = self._clock.wall_ms()
        due_ms, level = self._due_ms(delay, due, now_ms), check_priority(priority)
        nothing = [None] * len(found)
        rows = [
            PushedRow(queue, payload, encode_headers(header), check_key(key), due_ms, level, now_ms)
            for payload, header, key in zip(found, headers or nothing, keys or nothing, strict=True)
        ]
        state = self._execute(STATE, ())
        if not state or state[0][0] != VERSION:
            raise other_version(state)
        if rows:
            self._connection.execute_many(PUSH_MANY, rows)
        return len(rows)

    def _due_ms(self, delay: float | None, due: datetime | None, now_ms: int) -> int | None:
        if delay is None and due is None:
            return None
        return now_ms + check_delay_ms(delay, due, now_ms)

    def _execute(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement, parameters)
        except Exception as exc:
            if "cassq_outbox" in str(exc):
                exc.add_note(_NO_TABLE)
            raise
