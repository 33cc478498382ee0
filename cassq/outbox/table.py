"""The outbox's tables: what they hold, how they are created, and the statements that use them.

`cassq_outbox` has a row for each message that was pushed and not yet forwarded.
`cassq_outbox_state` has one row: the version of the tables, the outbox's id, and the epoch, which
each relay raises when it takes over. `cassq_outbox_places` has the places in pipes where rows are,
or are about to be written.

Statements are written once for all databases, with `?` for each parameter; `in_style` translates
them for a driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from cassq.errors import ConfigError, InvalidPayloadError, UsageError
from cassq.message.columns import encode_headers
from cassq.producer.admission import check_key, check_payload

VERSION = 1
# The header that names the outbox and the row of a message, as its push returned them.
OUTBOX_HEADER = "cassq-outbox"
_HEADER_ROOM = 100
DIALECTS = ("sqlite", "postgresql")
# The types that the databases name differently.
_NUMBER = {"sqlite": "INTEGER", "postgresql": "BIGINT"}
_BYTES = {"sqlite": "BLOB", "postgresql": "BYTEA"}
# Ids are never used again, even after all rows are deleted.
_ROW = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
}
_NEW_ID = {
    "sqlite": "lower(hex(randomblob(12)))",
    "postgresql": "substr(md5(random()::text || clock_timestamp()::text), 1, 24)",
}

# The names of the columns that a push fills, in the order of `PushedRow`.
_COLUMNS = "queue, payload, headers, message_key, due_ms, priority, pushed_ms"

# Write a message, if the tables have this version; otherwise returns no row.
PUSH = (
    f"INSERT INTO cassq_outbox ({_COLUMNS})"
    f" SELECT ?, ?, ?, ?, ?, ?, ? FROM cassq_outbox_state WHERE version = {VERSION}"
    " RETURNING id, (SELECT outbox FROM cassq_outbox_state)"
)
# Write many messages, after `STATE` has shown the version.
PUSH_MANY = f"INSERT INTO cassq_outbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
# The one row of the state.
STATE = "SELECT version, outbox FROM cassq_outbox_state"
# Take over. Waits for a transaction of the relay before, whose next ones are refused.
LEAD = "UPDATE cassq_outbox_state SET epoch = epoch + 1 RETURNING epoch"
# Whether this relay still leads; the row is locked until the transaction ends.
LEADS = "UPDATE cassq_outbox_state SET epoch = epoch WHERE epoch = ? RETURNING epoch"
# The places of rows that may or may not have been pushed.
PLACES = "SELECT pipe, seq, queue_id, messages FROM cassq_outbox_places ORDER BY pipe, seq"
# Note a place before it is written.
NOTE = "INSERT INTO cassq_outbox_places (pipe, seq, queue_id, messages) VALUES (?, ?, ?, ?)"
# Forget a place, in the transaction that deletes its rows.
FORGET = "DELETE FROM cassq_outbox_places WHERE pipe = ? AND seq = ?"
# Delete forwarded rows with consecutive ids.
DELETE = "DELETE FROM cassq_outbox WHERE id BETWEEN ? AND ?"
# Rows and the age of the oldest, by queue. Reads the whole table.
WAITING = "SELECT queue, count(*), min(pushed_ms) FROM cassq_outbox GROUP BY queue ORDER BY queue"


def next_rows(without: int) -> str:
    """The rows to forward next, by id, leaving out `without` queues. A range of the primary key."""
    left_out = f" WHERE queue NOT IN ({', '.join('?' * without)})" if without else ""
    return f"SELECT id, {_COLUMNS} FROM cassq_outbox{left_out} ORDER BY id LIMIT ?"


class PushedRow(NamedTuple):
    """A message as a push writes it. headers: as in a frame; times in wall milliseconds."""

    queue: str
    payload: bytes
    headers: bytes | None
    key: bytes | None
    due_ms: int | None
    priority: int
    pushed_ms: int


class Row(NamedTuple):
    """A message that waits in the outbox."""

    id: int
    queue: str
    payload: bytes
    headers: bytes | None
    key: bytes | None
    due_ms: int | None
    priority: int
    pushed_ms: int


class LandingPlace(NamedTuple):
    """Where rows are, or are about to be: the first at `seq` of the pipe, the others after it."""

    pipe: str
    seq: int
    queue_id: str
    rows: tuple[int, ...]


def stored_headers(row: Row, outbox: str) -> bytes:
    """The headers of a row, encoded as in a frame, with the header that names the row.

    Raises InvalidPayloadError for a row that no push wrote: any program may write rows.
    """
    origin = f"{outbox}:{row.id}"
    try:
        check_payload(row.payload)
        check_key(row.key)
        if row.headers is None:
            return b'{"%s":"%s"}' % (OUTBOX_HEADER.encode(), origin.encode())
        found = json.loads(row.headers)
        if not isinstance(found, dict):
            raise InvalidPayloadError("its headers are not a JSON object")
        return encode_headers({**found, OUTBOX_HEADER: origin}, room=_HEADER_ROOM) or b""
    except (UsageError, ValueError) as exc:
        raise InvalidPayloadError(
            f"row {row.id} of cassq_outbox is not a message: {exc}",
            hint="correct or delete the row; the rows behind it for the same queue wait",
        ) from exc


def ddl(dialect: str) -> list[str]:
    """The statements that create the tables that do not exist. Raises UsageError for an unknown
    dialect."""
    check_dialect(dialect)
    number, binary = _NUMBER[dialect], _BYTES[dialect]
    state = (
        "CREATE TABLE IF NOT EXISTS cassq_outbox_state (single INTEGER PRIMARY KEY CHECK"
        " (single = 1), version INTEGER NOT NULL, outbox TEXT NOT NULL,"
        f" epoch {number} NOT NULL)"
    )
    first = (
        "INSERT INTO cassq_outbox_state (single, version, outbox, epoch)"
        f" VALUES (1, {VERSION}, {_NEW_ID[dialect]}, 0) ON CONFLICT DO NOTHING"
    )
    rows = (
        f"CREATE TABLE IF NOT EXISTS cassq_outbox (id {_ROW[dialect]}, queue TEXT NOT NULL,"
        f" payload {binary} NOT NULL, headers {binary}, message_key {binary}, due_ms {number},"
        f" priority INTEGER NOT NULL DEFAULT 0, pushed_ms {number} NOT NULL)"
    )
    places = (
        f"CREATE TABLE IF NOT EXISTS cassq_outbox_places (pipe TEXT NOT NULL, seq {number} NOT"
        " NULL, queue_id TEXT NOT NULL, messages TEXT NOT NULL, PRIMARY KEY (pipe, seq))"
    )
    return [state, first, rows, places]


def check_dialect(dialect: str) -> None:
    """Raise UsageError for a kind of database that cannot hold an outbox."""
    if dialect not in DIALECTS:
        raise UsageError(
            f"an outbox can be in SQLite or PostgreSQL, not in {dialect!r}",
            hint=f"the dialects are named {' and '.join(DIALECTS)}",
        )


def other_version(found: Sequence[tuple[object, ...]]) -> ConfigError:
    """The error for tables of another version. found: the rows of `STATE`."""
    version = found[0][0] if found else "none"
    return ConfigError(
        f"the outbox's tables have version {version}, but this cassq reads version {VERSION}",
        hint="use the version of cassq that created them until the relay has emptied them",
    )


def in_style(statement: str, marks: Callable[[int], str]) -> str:
    """A statement with its parameters marked as a driver wants them. marks: number → mark."""
    first, *others = statement.split("?")
    return first + "".join(f"{marks(number)}{part}" for number, part in enumerate(others))


def runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending ids as runs of consecutive ones: (first, last)."""
    first = last = ids[0] if ids else 0
    for each in ids[1:]:
        if each != last + 1:
            yield first, last
            first = each
        last = each
    if ids:
        yield first, last


def as_text(ids: Sequence[int]) -> str:
    """Ascending ids as a short text, as in "1-5000,5003"."""
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in runs(ids))


def from_text(text: str) -> tuple[int, ...]:
    """The ids of `as_text`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
