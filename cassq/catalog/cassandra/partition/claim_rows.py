"""Cursors, claims, moves and removals as rows of one partition, and the statements on them.

A partition holds a group's rows in a pipe. Its static columns are the cursor. By `kind` its rows
are claims (followed by an *anchor* without columns, so that a read of claims always returns the
static columns), moves, removals, and a *mark* for each writer: the token of its last write, written
in the same batch. So a writer that got no answer reads its own mark to learn the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cassq.cassandra.session import Row, Statement
from cassq.catalog.cassandra.partition.pipe_rows import ABSENT
from cassq.message.frames import Place
from cassq.model.claims import marked, marks
from cassq.model.rows import Claim, ClaimState, Cursor, Move, Reason, Removed

ANCHOR = (1 << 63) - 1
CLOSED = -1  # as chain_seq: the pipe is about to move to another queue, and cannot be claimed from
NEVER = -2  # not a valid chain_seq

_KEY = "group_id = ? AND pipe_id = ?"
_ROW = f"{_KEY} AND kind = 0 AND seq = ?"
_CURSOR = "ack_seq, ack_pos, chain_seq, chain_pos, epoch, owner, start_seq"
_CLAIM = (
    "end_seq, pos, state, due_ms, deliveries, losses, joint, holder, version, acked, failure,"
    " priority"
)
_COLUMNS = _CLAIM.split(", ")

# The static columns, by the key of the anchor.
CURSOR = f"SELECT {_CURSOR}, seq FROM claims WHERE {_KEY} AND kind = 0 AND seq = {ANCHOR}"
# The claims from the ack offset on, with the static columns: a range of the key.
CLAIMS = f"SELECT seq, {_CLAIM}, {_CURSOR} FROM claims WHERE {_KEY} AND kind = 0 AND seq >= ?"
# The claims that begin in a range.
CLAIMS_OF = f"SELECT seq, {_CLAIM} FROM claims WHERE {_KEY} AND kind = 0 AND seq >= ? AND seq < ?"
# A writer's mark.
MARK = f"SELECT version FROM claims WHERE {_KEY} AND kind = 3 AND seq = ?"
PUT_MARK = f"UPDATE claims SET version = ? WHERE {_KEY} AND kind = 3 AND seq = ?"

PUT_CLAIM = (
    f"INSERT INTO claims (group_id, pipe_id, kind, seq, {_CLAIM})"
    " VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# The first cursor of a group in a pipe, and its anchor.
ADD_CURSOR = (
    "UPDATE claims SET ack_seq = ?, ack_pos = ?, chain_seq = ?, chain_pos = ?, epoch = 0,"
    f" owner = '', start_seq = ? WHERE {_KEY} IF chain_seq = null"
)
PUT_ANCHOR = f"INSERT INTO claims (group_id, pipe_id, kind, seq) VALUES (?, ?, 0, {ANCHOR})"
# Replaces a row that still has its version.
CHANGE_CLAIM = (
    f"UPDATE claims SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE {_ROW} IF version = ?"
)
DROP_CLAIM = f"DELETE FROM claims WHERE {_ROW} IF version = ?"
# Removes everything below the ack offset: range tombstones that cover one another.
DROP_BELOW = f"DELETE FROM claims WHERE {_KEY} AND kind = 0 AND seq < ?"
# Removes the rows joined into a done row. As it grows, each range tombstone covers the one before
# and the tombstones of single rows; those written with it are covered by the next one.
DROP_BETWEEN = f"DELETE FROM claims WHERE {_KEY} AND kind = 0 AND seq > ? AND seq < ?"
# Conditions on rows that are not changed: a claim still has this version, ...
CHECK_CLAIM = f"UPDATE claims SET pos = ? WHERE {_ROW} IF version = ?"
# ... and no done row is at a seq. `at_ms` is not a column of claims.
CHECK_OPEN = f"DELETE at_ms FROM claims WHERE {_ROW} IF state != 2"
# Removes a whole partition, in one batch with a condition that always holds. A value set by a batch
# survives whatever else the batch removes, so the condition is on a deletion, too.
DROP_PARTITION = f"DELETE FROM claims WHERE {_KEY}"
CHECK_ANY = f"DELETE owner FROM claims WHERE {_KEY} IF chain_seq != ?"

_MOVE = "reason, dest_pipe, dest_seq, at_ms, settled"
MOVES = f"SELECT seq, {_MOVE} FROM claims WHERE {_KEY} AND kind = 1 AND seq >= ? AND seq < ?"
_PUT_MOVE = (
    "UPDATE claims SET reason = ?, dest_pipe = ?, dest_seq = ?, at_ms = ?, settled = ?"
    f" WHERE {_KEY} AND kind = 1 AND seq = ?"
)
# Writes an intent: always, if there is none, or instead of a known one.
PUT_MOVE = _PUT_MOVE
FIRST_MOVE = f"{_PUT_MOVE} IF dest_pipe = null"
NEXT_MOVE = (
    f"{_PUT_MOVE} IF reason = ? AND dest_pipe = ? AND dest_seq = ? AND at_ms = ? AND settled = ?"
)
SETTLE = f"UPDATE claims SET settled = true WHERE {_KEY} AND kind = 1 AND seq = ?"
# Removes an intent, unless it is settled.
WITHDRAW = f"DELETE FROM claims WHERE {_KEY} AND kind = 1 AND seq = ? IF settled != true"

_REMOVED = "reason, end_seq, at_ms"
REMOVED = f"SELECT seq, {_REMOVED} FROM claims WHERE {_KEY} AND kind = 2"
PUT_REMOVED = (
    f"INSERT INTO claims (group_id, pipe_id, kind, seq, {_REMOVED}) VALUES (?, ?, 2, ?, ?, ?, ?)"
)

Key = tuple[str, str]  # group, pipe


def cursor_of(key: Key, row: Row) -> Cursor | None:
    """A cursor from the static columns; None if there is none."""
    if row[2] is None:
        return None
    return Cursor(*key, Place(row[0], row[1]), Place(row[2], row[3]), row[4], row[5] or "", row[6])


def claim_of(key: Key, row: Row) -> Claim:
    """A claim from its seq and columns."""
    acked, tried = marked(row[10] or b"")
    return Claim(
        *key,
        start=row[0],
        end=row[1],
        pos=row[2],
        state=ClaimState(row[3]),
        due_ms=row[4],
        deliveries=row[5],
        losses=row[6],
        joint=bool(row[7]),
        holder=row[8],
        version=row[9],
        failure=row[11],
        priority=row[12] or 0,
        acked=acked,
        tried=tried,
    )


def claims_of(key: Key, rows: Sequence[Row]) -> list[Claim]:
    """The claims among these rows, by start."""
    return [claim_of(key, row) for row in rows if row[0] != ANCHOR]


def read_statement(key: Key, from_seq: int) -> Statement:
    """The statement that reads a partition's claims and cursor."""
    return CLAIMS, (*key, from_seq)


def parted(key: Key, rows: Sequence[Row]) -> tuple[Cursor | None, list[Claim]]:
    """The cursor, and the claims from its ack offset on, in the rows of `read_statement`."""
    if not rows:
        return None, []
    cursor = cursor_of(key, rows[-1][13:])
    if cursor is None:
        return None, []
    return cursor, [claim for claim in claims_of(key, rows) if claim.start >= cursor.ack.seq]


def joined(rows: Iterable[Claim]) -> list[Claim]:
    """Rows by start, with adjacent done rows joined. In the table some may stay adjacent for a
    while: see `claim_plans`."""
    found: list[Claim] = []
    for row in rows:
        last = found[-1] if found else None
        if last is None or row.state is not ClaimState.DONE or not touches(last, row):
            found.append(row)
        else:
            found[-1] = replace(last, end=row.end)
    return found


def touches(left: Claim, right: Claim) -> bool:
    """Whether two rows are done and adjacent."""
    both = left.state is ClaimState.DONE and right.state is ClaimState.DONE
    return both and left.end == right.start


def claim_columns(claim: Claim) -> Row:
    return (
        claim.end,
        claim.pos,
        int(claim.state),
        claim.due_ms,
        claim.deliveries,
        claim.losses,
        claim.joint,
        claim.holder,
        claim.version,
        marks(claim),
        claim.failure,
        claim.priority or ABSENT,
    )


def move_of(key: Key, row: Row) -> Move:
    return Move(*key, row[0], row[1], row[2], row[3], row[4], bool(row[5]))


def moves_of(key: Key, rows: Sequence[Row]) -> list[Move]:
    """The moves among these rows, without rows that were settled but never had an intent."""
    return [move_of(key, row) for row in rows if row[2] is not None]


def move_columns(move: Move) -> Row:
    return move.reason, move.dest_pipe, move.dest_seq, move.at_ms, move.settled


def put_move(text: str, move: Move, instead_of: Move | None = None) -> Statement:
    """The statement that writes an intent."""
    before = move_columns(instead_of) if instead_of is not None else ()
    return text, (*move_columns(move), move.group_id, move.pipe_id, move.seq, *before)


def put_removed(row: Removed) -> Statement:
    return PUT_REMOVED, (row.group_id, row.pipe_id, row.start, str(row.reason), row.end, row.at_ms)


def removed_of(key: Key, row: Row) -> Removed:
    return Removed(*key, row[0], row[2], Reason(row[1]), row[3])
