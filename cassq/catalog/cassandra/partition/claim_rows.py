"""Cursors, claims, moves and removals as rows of one partition, and the statements on them.

A partition is a group in a pipe. Its statics are the cursor. By `kind` its rows are claims (and
behind them all an *anchor* without columns, so that a read of claims brings the statics along
whatever there is), moves, removals, and a *mark* for each writer: the token of what it wrote last,
in the same batch. So a writer that had no answer reads its own mark back, and knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cassq.cassandra.session import Row, Statement
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor, Move, Reason, Removed

ANCHOR = (1 << 63) - 1
CLOSED = -1  # as chain_seq: the pipe is about to go to another queue, and nobody may claim
NEVER = -2  # no chain_seq

_KEY = "group_id = ? AND pipe_id = ?"
_ROW = f"{_KEY} AND kind = 0 AND seq = ?"
_CURSOR = "ack_seq, ack_pos, chain_seq, chain_pos, epoch, owner, start_seq"
_CLAIM = "end_seq, pos, state, due_ms, deliveries, losses, joint, holder, version, acked, failure"
_COLUMNS = _CLAIM.split(", ")

# The statics, by the key of the anchor.
CURSOR = f"SELECT {_CURSOR}, seq FROM claims WHERE {_KEY} AND kind = 0 AND seq = {ANCHOR}"
# The claims from the ack offset on, and the statics with them: a range of the key.
CLAIMS = f"SELECT seq, {_CLAIM}, {_CURSOR} FROM claims WHERE {_KEY} AND kind = 0 AND seq >= ?"
# The claims that begin in a range.
CLAIMS_OF = f"SELECT seq, {_CLAIM} FROM claims WHERE {_KEY} AND kind = 0 AND seq >= ? AND seq < ?"
# What a writer wrote last, with the statics.
MARK = f"SELECT version FROM claims WHERE {_KEY} AND kind = 3 AND seq = ?"
PUT_MARK = f"UPDATE claims SET version = ? WHERE {_KEY} AND kind = 3 AND seq = ?"

PUT_CLAIM = (
    f"INSERT INTO claims (group_id, pipe_id, kind, seq, {_CLAIM})"
    " VALUES (?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# The first cursor of a group in a pipe, and its anchor.
ADD_CURSOR = (
    "UPDATE claims SET ack_seq = ?, ack_pos = ?, chain_seq = ?, chain_pos = ?, epoch = 0,"
    f" owner = '', start_seq = ? WHERE {_KEY} IF chain_seq = null"
)
PUT_ANCHOR = f"INSERT INTO claims (group_id, pipe_id, kind, seq) VALUES (?, ?, 0, {ANCHOR})"
# Another row in the place of one that is still as it was known.
CHANGE_CLAIM = (
    f"UPDATE claims SET {', '.join(f'{name} = ?' for name in _COLUMNS)} WHERE {_ROW} IF version = ?"
)
DROP_CLAIM = f"DELETE FROM claims WHERE {_ROW} IF version = ?"
# What is below the ack offset: range tombstones that cover one another.
DROP_BELOW = f"DELETE FROM claims WHERE {_KEY} AND kind = 0 AND seq < ?"
# What a done row has taken in: as it grows, each range tombstone covers the one before it, and the
# tombstones of the single rows. Those that are written together with it the next one covers.
DROP_BETWEEN = f"DELETE FROM claims WHERE {_KEY} AND kind = 0 AND seq > ? AND seq < ?"
# Conditions on rows that stay as they are: a claim that is still held in that version, ...
CHECK_CLAIM = f"UPDATE claims SET pos = ? WHERE {_ROW} IF version = ?"
# ... and no done row at a seq. `at_ms` is no column of claims.
CHECK_OPEN = f"DELETE at_ms FROM claims WHERE {_ROW} IF state != 2"
# A whole partition, in one batch with a condition that always holds. What a batch sets is there
# after it, whatever else it removes: so the condition is on a removal, too.
DROP_PARTITION = f"DELETE FROM claims WHERE {_KEY}"
CHECK_ANY = f"DELETE owner FROM claims WHERE {_KEY} IF chain_seq != ?"

_MOVE = "reason, dest_pipe, dest_seq, at_ms, settled"
MOVES = f"SELECT seq, {_MOVE} FROM claims WHERE {_KEY} AND kind = 1 AND seq >= ? AND seq < ?"
_PUT_MOVE = (
    "UPDATE claims SET reason = ?, dest_pipe = ?, dest_seq = ?, at_ms = ?, settled = ?"
    f" WHERE {_KEY} AND kind = 1 AND seq = ?"
)
# An intent in the place of any, where none is, and in the place of one that is known.
PUT_MOVE = _PUT_MOVE
FIRST_MOVE = f"{_PUT_MOVE} IF dest_pipe = null"
NEXT_MOVE = (
    f"{_PUT_MOVE} IF reason = ? AND dest_pipe = ? AND dest_seq = ? AND at_ms = ? AND settled = ?"
)
SETTLE = f"UPDATE claims SET settled = true WHERE {_KEY} AND kind = 1 AND seq = ?"
# An intent that led to nothing more: what is settled stays.
WITHDRAW = f"DELETE FROM claims WHERE {_KEY} AND kind = 1 AND seq = ? IF settled != true"

_REMOVED = "reason, end_seq, at_ms"
REMOVED = f"SELECT seq, {_REMOVED} FROM claims WHERE {_KEY} AND kind = 2"
PUT_REMOVED = (
    f"INSERT INTO claims (group_id, pipe_id, kind, seq, {_REMOVED}) VALUES (?, ?, 2, ?, ?, ?, ?)"
)

Key = tuple[str, str]  # group, pipe


def cursor_of(key: Key, row: Row) -> Cursor | None:
    """A cursor from the statics; None when there is none."""
    if row[2] is None:
        return None
    return Cursor(*key, Place(row[0], row[1]), Place(row[2], row[3]), row[4], row[5] or "", row[6])


def claim_of(key: Key, row: Row) -> Claim:
    """A claim from its seq and columns."""
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
        acked=RangeSet.from_bytes(row[10] or b""),
        failure=row[11],
    )


def claims_of(key: Key, rows: Sequence[Row]) -> list[Claim]:
    """The claims among rows that were read, by start."""
    return [claim_of(key, row) for row in rows if row[0] != ANCHOR]


def read_statement(key: Key, from_seq: int) -> Statement:
    """The read of a partition's claims and cursor."""
    return CLAIMS, (*key, from_seq)


def parted(key: Key, rows: Sequence[Row]) -> tuple[Cursor | None, list[Claim]]:
    """What `read_statement` gave: the cursor, and the claims from its ack offset on."""
    if not rows:
        return None, []
    cursor = cursor_of(key, rows[-1][12:])
    if cursor is None:
        return None, []
    return cursor, [claim for claim in claims_of(key, rows) if claim.start >= cursor.ack.seq]


def joined(rows: Iterable[Claim]) -> list[Claim]:
    """Rows by start, those that are done joined with done neighbours. In the table some may stand
    side by side for a while: see `claim_plans`."""
    found: list[Claim] = []
    for row in rows:
        last = found[-1] if found else None
        if last is None or row.state is not ClaimState.DONE or not touches(last, row):
            found.append(row)
        else:
            found[-1] = replace(last, end=row.end)
    return found


def touches(left: Claim, right: Claim) -> bool:
    """Whether two rows are done, and one follows the other."""
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
        claim.acked.to_bytes(),
        claim.failure,
    )


def move_of(key: Key, row: Row) -> Move:
    return Move(*key, row[0], row[1], row[2], row[3], row[4], bool(row[5]))


def moves_of(key: Key, rows: Sequence[Row]) -> list[Move]:
    """The moves among rows that were read: a move that was settled though nobody had intended it
    is none."""
    return [move_of(key, row) for row in rows if row[2] is not None]


def move_columns(move: Move) -> Row:
    return move.reason, move.dest_pipe, move.dest_seq, move.at_ms, move.settled


def put_move(text: str, move: Move, instead_of: Move | None = None) -> Statement:
    """An intent, written by one of the statements above."""
    before = move_columns(instead_of) if instead_of is not None else ()
    return text, (*move_columns(move), move.group_id, move.pipe_id, move.seq, *before)


def put_removed(row: Removed) -> Statement:
    return PUT_REMOVED, (row.group_id, row.pipe_id, row.start, str(row.reason), row.end, row.at_ms)


def removed_of(key: Key, row: Row) -> Removed:
    return Removed(*key, row[0], row[2], Reason(row[1]), row[3])
