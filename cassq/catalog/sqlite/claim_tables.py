"""Cursors, claims and moves in SQLite: two small transactions per claim, whatever its size.

A first claim is committed unsynced: it survives the death of the process, and the next sync
makes it durable. Acks and take-overs are synced. Acks of groups that are not exclusive are synced
after they were committed, so that other processes need not wait for the sync; this is also faster.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter

from cassq.catalog.cover import wedged
from cassq.catalog.port import Claims
from cassq.catalog.sqlite.database import Database, Row
from cassq.catalog.sqlite.queue_tables import GROUP_COLUMNS, group_row
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY
from cassq.model import claims
from cassq.model.priorities import PRIORITIES
from cassq.model.rows import Claim, ClaimState, Cursor, GroupRow, Move, Reason, Removed

_CURSOR = "group_id, pipe_id, ack_seq, ack_pos, chain_seq, chain_pos, epoch, owner, start_seq"
CLAIM_COLUMNS = (
    "group_id, pipe_id, start_seq, end_seq, pos, state, due_ms, deliveries, losses, holder,"
    " version, acked, failure, joint, priority"
)
_KEY = "group_id = ? AND pipe_id = ? AND start_seq = ?"

# One cursor, by key.
CURSOR = f"SELECT {_CURSOR} FROM cursors WHERE group_id = ? AND pipe_id = ?"
# The first cursor of a group in a live pipe.
ADD_CURSOR = """
INSERT OR IGNORE INTO cursors (group_id, pipe_id, ack_seq, ack_pos, chain_seq, chain_pos)
SELECT ?1, p.id, 0, 0, 0, 0 FROM pipes p JOIN groups g ON g.queue_id = p.queue_id
WHERE p.id = ?2 AND p.state < 3 AND g.id = ?1"""
# The compare-and-set that makes a claim: by key.
MOVE_CHAIN = (
    "UPDATE cursors SET chain_seq = ?, chain_pos = ?"
    " WHERE group_id = ? AND pipe_id = ? AND chain_seq = ? AND epoch = ?"
)
# The same, with a reservation of the next message.
MOVE_AND_RESERVE = MOVE_CHAIN.replace(" WHERE", ", epoch = epoch + 1, owner = ? WHERE")
# Raises the epoch, if it has not changed.
FENCE = (
    "UPDATE cursors SET epoch = epoch + 1, owner = ?"
    " WHERE group_id = ? AND pipe_id = ? AND epoch = ?"
)
ADD_CLAIM = (
    f"INSERT INTO claims ({CLAIM_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
# The claims of a (group, pipe): a range of the primary key, which starts at the ack offset.
CLAIMS = f"SELECT {CLAIM_COLUMNS} FROM claims WHERE group_id = ? AND pipe_id = ? ORDER BY start_seq"
# Those with seqs in a range: from the row that begins at or before it.
CLAIMS_OF = (
    f"SELECT {CLAIM_COLUMNS} FROM claims WHERE group_id = ?1 AND pipe_id = ?2 AND end_seq > ?3"
    " AND start_seq < ?4 AND start_seq >= coalesce((SELECT max(start_seq) FROM claims"
    " WHERE group_id = ?1 AND pipe_id = ?2 AND start_seq <= ?3), 0) ORDER BY start_seq"
)
# Claims whose time has come: a range of a partial index without done rows.
DUE = (
    f"SELECT {CLAIM_COLUMNS} FROM claims WHERE group_id = ? AND due_ms <= ? AND state < 2{{}}"
    " ORDER BY due_ms, pipe_id, start_seq LIMIT ?"
)
# The same of one priority: a range of the partial index of those with one ...
DUE_URGENT = (
    f"SELECT {CLAIM_COLUMNS} FROM claims INDEXED BY claims_urgent WHERE group_id = ?"
    " AND due_ms <= ? AND state < 2{} AND priority > 0 AND priority = ?"
    " ORDER BY due_ms, pipe_id, start_seq LIMIT ?"
)
# ... or of those without: it passes over the others that are due.
DUE_PLAIN = DUE.replace(" ORDER BY", " AND priority = 0 ORDER BY")
NEXT_DUE = "SELECT min(due_ms) FROM claims WHERE group_id = ? AND state < 2{}"
DROP_CLAIM = f"DELETE FROM claims WHERE {_KEY} AND version = ?"
HAS_CLAIM = f"SELECT 1 FROM claims WHERE {_KEY} AND version = ?"
# Only a claim's marks changed: no index has these columns.
CHANGE_MARKS = f"UPDATE claims SET acked = ?, version = ? WHERE {_KEY} AND version = ?"
MARK_DONE = (
    "UPDATE claims SET state = 2, acked = x'', holder = '', failure = '', version = ?"
    f" WHERE {_KEY} AND version = ?"
)
# The row before and the row after one: steps in the primary key.
BEFORE = (
    "SELECT start_seq, end_seq, state FROM claims WHERE group_id = ? AND pipe_id = ?"
    " AND start_seq < ? ORDER BY start_seq DESC LIMIT 1"
)
FIRST = (
    "SELECT start_seq, end_seq, pos, state FROM claims WHERE group_id = ? AND pipe_id = ?"
    " ORDER BY start_seq LIMIT 1"
)
# The cursor that is mended, if it is still as it was read: by key.
MEND = (
    "UPDATE cursors SET chain_seq = ?, chain_pos = ?, epoch = epoch + 1 WHERE group_id = ?"
    " AND pipe_id = ? AND ack_seq = ? AND chain_seq = ? AND epoch = ?"
)
VERSIONS = "SELECT version FROM claims WHERE group_id = ? AND pipe_id = ? ORDER BY start_seq"
DROP_CLAIMS = "DELETE FROM claims WHERE group_id = ? AND pipe_id = ?"
MOVE_ACK = "UPDATE cursors SET ack_seq = ?, ack_pos = ? WHERE group_id = ? AND pipe_id = ?"
# A removal is written once; repeating it changes nothing.
ADD_REMOVED = (
    "INSERT OR IGNORE INTO removed (group_id, pipe_id, start_seq, end_seq, reason, at_ms)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
REMOVED = (
    "SELECT group_id, pipe_id, start_seq, end_seq, reason, at_ms FROM removed"
    " WHERE group_id = ? AND pipe_id = ? ORDER BY start_seq"
)
_MOVE = "group_id, pipe_id, seq, reason, dest_pipe, dest_seq, at_ms, settled"
MOVE = f"SELECT {_MOVE} FROM moves WHERE group_id = ? AND pipe_id = ? AND seq = ?"
MOVES = (
    f"SELECT {_MOVE} FROM moves WHERE group_id = ? AND pipe_id = ? AND seq >= ? AND seq < ?"
    " ORDER BY seq"
)
SEQ_MAX = (1 << 63) - 1
_PRIORITY = attrgetter("priority")
# An intent, replacing any other: by key.
PUT_MOVE = f"INSERT OR REPLACE INTO moves ({_MOVE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
SETTLE = "UPDATE moves SET settled = 1 WHERE group_id = ? AND pipe_id = ? AND seq = ?"
# Removes an intent, unless it is settled.
WITHDRAW = "DELETE FROM moves WHERE group_id = ? AND pipe_id = ? AND seq = ? AND settled = 0"

_GROUP = ", ".join(f"g.{name}" for name in GROUP_COLUMNS.split(", "))
_CHUNK = 1000  # cursors read in one statement, so that other threads do not wait long
# Groups with something due: steps from group to group in the partial index of open claims.
DUE_GROUPS = f"""
WITH RECURSIVE holders (id) AS (
    SELECT min(group_id) FROM claims WHERE state < 2
    UNION ALL
    SELECT (SELECT min(group_id) FROM claims WHERE state < 2 AND group_id > holders.id)
    FROM holders WHERE holders.id IS NOT NULL)
SELECT {_GROUP} FROM holders CROSS JOIN groups g ON g.id = holders.id
WHERE (SELECT min(due_ms) FROM claims WHERE group_id = g.id AND state < 2) <= ?1
ORDER BY g.id"""
# The same of some queues: one step for each of their groups.
DUE_GROUPS_OF = f"""
SELECT {_GROUP} FROM json_each(?2) q CROSS JOIN groups g ON g.queue_id = q.value
WHERE (SELECT min(due_ms) FROM claims WHERE group_id = g.id AND state < 2) <= ?1
ORDER BY g.id"""
# A group's claims that are overdue or may be spent: a range of the partial index of open claims.
OVERDUE = f"""
SELECT {CLAIM_COLUMNS} FROM claims
WHERE group_id = ?1 AND due_ms <= ?2 AND state < 2
    AND (state = 0 OR deliveries >= ?3
        OR instr(failure, '"doomed":') OR instr(failure, '"moving":')
        OR instr(failure, '"leaving":'))
ORDER BY state, due_ms, pipe_id, start_seq LIMIT ?4"""

# Whether the rows of a cursor `c` overlap, or leave gaps between ack and chain: a range
# of their primary key.
_WEDGED = """
(coalesce((SELECT k.end_seq FROM claims k WHERE k.group_id = c.group_id AND k.pipe_id = c.pipe_id
    ORDER BY k.start_seq DESC LIMIT 1), c.ack_seq) <> c.chain_seq
OR EXISTS (SELECT 1 FROM (
    SELECT k.start_seq, k.end_seq, lag(k.end_seq) OVER (ORDER BY k.start_seq) AS last_seq
    FROM claims k WHERE k.group_id = c.group_id AND k.pipe_id = c.pipe_id) AS r
    WHERE r.end_seq <= r.start_seq OR r.start_seq <> coalesce(r.last_seq, c.ack_seq)))"""
# A chunk of all cursors: a range of the key. Retired pipes have none.
WEDGED = f"""
SELECT c.group_id, c.pipe_id FROM cursors c
WHERE (c.group_id, c.pipe_id) > (?1, ?2) AND (c.group_id, c.pipe_id) <= (?3, ?4) AND {_WEDGED}"""
# Where a chunk ends.
CURSORS_END = """
SELECT group_id, pipe_id FROM (SELECT group_id, pipe_id FROM cursors
    WHERE (group_id, pipe_id) > (?1, ?2) ORDER BY group_id, pipe_id LIMIT ?3)
ORDER BY group_id DESC, pipe_id DESC LIMIT 1"""
# The same of some queues: ranges of the key, one for each of their groups.
WEDGED_OF = f"""
SELECT c.group_id, c.pipe_id FROM json_each(?1) q CROSS JOIN groups g ON g.queue_id = q.value
CROSS JOIN cursors c ON c.group_id = g.id WHERE {_WEDGED}"""


def _left_out(pipe_ids: Sequence[str]) -> tuple[str, list[str]]:
    """A condition that leaves out pipes, and its parameters: one, however many they are."""
    if not pipe_ids:
        return "", []
    return " AND pipe_id NOT IN (SELECT value FROM json_each(?))", [json.dumps(pipe_ids)]


def _cursor_row(row: Row) -> Cursor:
    return Cursor(
        row[0], row[1], Place(row[2], row[3]), Place(row[4], row[5]), row[6], row[7], row[8]
    )


def claim_row(row: Row) -> Claim:
    acked, tried = claims.marked(row[11]) if row[11] else (EMPTY, None)
    return Claim(
        group_id=row[0],
        pipe_id=row[1],
        start=row[2],
        end=row[3],
        pos=row[4],
        state=ClaimState(row[5]),
        due_ms=row[6],
        deliveries=row[7],
        losses=row[8],
        holder=row[9],
        version=row[10],
        failure=row[12],
        joint=bool(row[13]),
        priority=row[14],
        acked=acked,
        tried=tried,
    )


def _claim_values(claim: Claim) -> Row:
    return (
        claim.group_id,
        claim.pipe_id,
        claim.start,
        claim.end,
        claim.pos,
        int(claim.state),
        claim.due_ms,
        claim.deliveries,
        claim.losses,
        claim.holder,
        claim.version,
        claims.marks(claim) if claim.tried is not None or claim.acked.ranges else b"",
        claim.failure,
        claim.joint,
        claim.priority,
    )


def _move_row(row: Row) -> Move:
    return Move(row[0], row[1], row[2], row[3], row[4], row[5], row[6], bool(row[7]))


def _move_key(move: Move) -> Row:
    return move.group_id, move.pipe_id, move.seq


def _move_values(move: Move) -> Row:
    place = (move.dest_pipe, move.dest_seq, move.at_ms)
    return (*_move_key(move), move.reason, *place, move.settled)


def _removed_values(row: Removed) -> Row:
    return row.group_id, row.pipe_id, row.start, row.end, str(row.reason), row.at_ms


# A group, a pipe, and the epoch that their cursor must have; None: it does not matter.
Fence = tuple[str, str, int | None]


class SqliteClaims(Claims):
    """Cursors, claims and moves."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def cursors_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[Cursor | None]:
        return [self._cursor(group_id, pipe_id) for pipe_id in pipe_ids]

    def _cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        rows = self._db.read(CURSOR, (group_id, pipe_id))
        if rows:
            return _cursor_row(rows[0])
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute(ADD_CURSOR, (group_id, pipe_id))
            row = tx.execute(CURSOR, (group_id, pipe_id)).fetchone()
            return _cursor_row(row) if row else None

    def cursors(self, group_id: str, pipe_ids: Sequence[str] | None = None) -> list[Cursor]:
        if pipe_ids is None:
            rows = self._db.read(f"SELECT {_CURSOR} FROM cursors WHERE group_id = ?", (group_id,))
        else:
            rows = [row for each in pipe_ids for row in self._db.read(CURSOR, (group_id, each))]
        return [_cursor_row(row) for row in rows]

    def claim(
        self,
        cursor: Cursor,
        chain: Place,
        rows: Sequence[Claim],
        *,
        removed: Sequence[Removed] = (),
        synced: bool = False,
        reserve: Claim | None = None,
    ) -> bool:
        if cursor.owner and self.turn_into_row(cursor):
            return False
        was = (cursor.group_id, cursor.pipe_id, cursor.chain.seq, cursor.epoch)
        with self._db.lock, self._db.write(synced=synced) as tx:
            if reserve is None:
                moved = tx.execute(MOVE_CHAIN, (*chain, *was))
            else:
                moved = tx.execute(MOVE_AND_RESERVE, (*chain, claims.as_owner(reserve), *was))
            if moved.rowcount != 1:
                return False
            try:
                tx.executemany(ADD_CLAIM, map(_claim_values, rows))
            except sqlite3.IntegrityError as exc:
                why = f"a claim row covers seq {cursor.chain.seq}, or more, which was not claimed"
                raise wedged(cursor.pipe_id, why) from exc
            if removed:
                tx.executemany(ADD_REMOVED, map(_removed_values, removed))
            done = [row for row in rows if row.state is ClaimState.DONE]
            if done:
                self._settle_done(tx, done)
            return True

    def _settle_done(self, tx: sqlite3.Connection, done: Sequence[Claim]) -> None:
        """Join done rows with their neighbours, and move the ack offset over those at the front."""
        for piece in done:
            self._merge_left(tx, piece)
        self._advance(tx, done[0].group_id, done[0].pipe_id)

    def fence_all(self, cursors: Sequence[Cursor], owner: str) -> list[Cursor | None]:
        fenced: list[Cursor | None] = []
        with self._db.lock, self._db.write(synced=True) as tx:
            for each in cursors:
                key = (each.group_id, each.pipe_id)
                done = tx.execute(FENCE, (owner, *key, each.epoch)).rowcount == 1
                fenced.append(_cursor_row(tx.execute(CURSOR, key).fetchone()) if done else None)
        return fenced

    def rows(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Claim]:
        if seqs is None:
            rows = self._db.read(CLAIMS, (group_id, pipe_id))
        else:
            rows = self._db.read(CLAIMS_OF, (group_id, pipe_id, seqs.start, seqs.stop))
        return [claim_row(row) for row in rows]

    def due(
        self,
        group_id: str,
        now_ms: int,
        limit: int,
        *,
        without: Sequence[str] = (),
        upward: bool = False,
    ) -> list[Claim]:
        left_out, pipes = _left_out(without)
        rows = self._db.read(DUE.format(left_out), (group_id, now_ms, *pipes, limit))
        if len(rows) == limit:  # those that come first may not be among them
            rows = []
            for level in PRIORITIES if upward else reversed(PRIORITIES):
                statement = (DUE_URGENT if level else DUE_PLAIN).format(left_out)
                which = (*pipes, level) if level else pipes
                values = (group_id, now_ms, *which, limit - len(rows))
                rows += self._db.read(statement, values)
        found = [claim_row(row) for row in rows]
        found.sort(key=_PRIORITY, reverse=not upward)  # stable: in each, the earliest first
        return found

    def next_due_ms(self, group_id: str, *, without: Sequence[str] = ()) -> int | None:
        left_out, pipes = _left_out(without)
        rows = self._db.read(NEXT_DUE.format(left_out), (group_id, *pipes))
        due_ms: int | None = rows[0][0]
        return due_ms

    def replace(
        self,
        old: Claim,
        new: Sequence[Claim],
        *,
        epoch: int | None = None,
        settle: Sequence[Move] = (),
        withdraw: Sequence[Move] = (),
        removed: Sequence[Removed] = (),
    ) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            key = (old.group_id, old.pipe_id)
            done = not self._fenced(tx, [(*key, epoch)]) and self._put(tx, old, new)
            if done:
                tx.executemany(ADD_REMOVED, map(_removed_values, removed))
                tx.executemany(SETTLE, map(_move_key, settle))
                tx.executemany(WITHDRAW, map(_move_key, withdraw))
                self._advance(tx, old.group_id, old.pipe_id)
            return done

    def mend(
        self, cursor: Cursor, old: Sequence[Claim], new: Sequence[Claim], chain: Place
    ) -> bool:
        key = (cursor.group_id, cursor.pipe_id)
        before = (cursor.ack.seq, cursor.chain.seq, cursor.epoch)
        with self._db.lock, self._db.write(synced=True) as tx:
            there = [version for (version,) in tx.execute(VERSIONS, key).fetchall()]
            if there != [row.version for row in old]:
                return False
            if tx.execute(MEND, (*chain, *key, *before)).rowcount != 1:
                return False
            tx.execute(DROP_CLAIMS, key)
            tx.executemany(ADD_CLAIM, map(_claim_values, new))
            done = [row for row in new if row.state is ClaimState.DONE]
            if done:
                self._settle_done(tx, done)
            return True

    def replace_many(
        self,
        changes: Sequence[tuple[Claim, Sequence[Claim]]],
        *,
        epochs: Sequence[int | None] | None = None,
        synced: bool = True,
    ) -> list[bool]:
        if not changes:
            return []
        epochs = epochs or [None] * len(changes)
        # In an exclusive group others must not see an ack, and go on, before it is durable. In a
        # keyed group they do not: a popper that takes the lane raises the epoch, which makes all
        # earlier acks durable.
        shows = all(
            epoch is None or old.tried is not None
            for (old, _), epoch in zip(changes, epochs, strict=True)
        )
        later = synced and shows and self._db.syncs_log
        with self._db.lock, self._db.write(synced=synced and not later) as tx:
            fences = [
                (old.group_id, old.pipe_id, epoch)
                for (old, _), epoch in zip(changes, epochs, strict=True)
            ]
            out = self._fenced(tx, fences)
            done = [
                fence not in out and self._put(tx, old, new)
                for fence, (old, new) in zip(fences, changes, strict=True)
            ]
            for group_id, pipe_id in {
                (row.group_id, row.pipe_id)
                for _, new in changes
                for row in new
                if row.state is ClaimState.DONE
            }:
                self._advance(tx, group_id, pipe_id)
        if later:
            self._db.sync()
        return done

    def ensure_durable(self) -> None:
        self._db.sync(anyway=True)

    def _fenced(self, tx: sqlite3.Connection, fences: Iterable[Fence]) -> set[Fence]:
        """Those whose cursor has another epoch."""
        out: set[Fence] = set()
        for fence in set(fences):
            if fence[2] is not None:
                row = tx.execute(CURSOR, fence[:2]).fetchone()
                if row is None or row[6] != fence[2]:
                    out.add(fence)
        return out

    def _put(self, tx: sqlite3.Connection, old: Claim, new: Iterable[Claim]) -> bool:
        key = (old.group_id, old.pipe_id, old.start)
        pieces = list(new)
        whole = len(pieces) == 1 and pieces[0].state is ClaimState.DONE
        if len(pieces) == 1 and claims.has_only_other_marks(old, pieces[0]):
            marks = (claims.marks(pieces[0]), pieces[0].version)
            return tx.execute(CHANGE_MARKS, (*marks, *key, old.version)).rowcount == 1
        if whole:
            changed = tx.execute(MARK_DONE, (pieces[0].version, *key, old.version))
        else:
            changed = tx.execute(DROP_CLAIM, (*key, old.version))
        if changed.rowcount != 1:
            return False
        if not whole and not self._add(tx, old, pieces):
            return False
        for piece in pieces:
            if piece.state is ClaimState.DONE:
                self._merge_left(tx, piece)
        return True

    def _add(self, tx: sqlite3.Connection, old: Claim, pieces: Sequence[Claim]) -> bool:
        """Insert rows in place of a dropped one. If another row is in the way, restore it and
        return False: a fault in one claim must not cost another its ack."""
        try:
            tx.executemany(ADD_CLAIM, map(_claim_values, pieces))
        except sqlite3.IntegrityError:
            key = (old.group_id, old.pipe_id)
            tx.executemany(DROP_CLAIM, [(*key, piece.start, piece.version) for piece in pieces])
            tx.execute(ADD_CLAIM, _claim_values(old))
            return False
        return True

    def _merge_left(self, tx: sqlite3.Connection, piece: Claim) -> None:
        """Join a done row with done neighbours, so that there are as many rows as gaps, not as many
        as claims."""
        key = (piece.group_id, piece.pipe_id)
        start, end = piece.start, piece.end
        right = tx.execute(
            f"SELECT end_seq FROM claims WHERE {_KEY} AND state = 2", (*key, end)
        ).fetchone()
        if right:
            tx.execute(f"DELETE FROM claims WHERE {_KEY}", (*key, end))
            end = right[0]
        left = tx.execute(BEFORE, (*key, start)).fetchone()
        if left and left[2] == ClaimState.DONE and left[1] == start:
            tx.execute(f"DELETE FROM claims WHERE {_KEY}", (*key, start))
            start = left[0]
        if (start, end) != (piece.start, piece.end):
            tx.execute(f"UPDATE claims SET end_seq = ? WHERE {_KEY}", (end, *key, start))

    def _advance(self, tx: sqlite3.Connection, group_id: str, pipe_id: str) -> None:
        """Move the ack offset over done rows at the front, and remove them; never over a gap."""
        key = (group_id, pipe_id)
        first = tx.execute(FIRST, key).fetchone()
        if not first or first[3] != ClaimState.DONE:
            return
        row = tx.execute(CURSOR, key).fetchone()
        place, chain = Place(row[2], row[3]), Place(row[4], row[5])
        if first[0] != place.seq:
            return
        while first and first[3] == ClaimState.DONE and first[0] == place.seq:
            tx.execute(f"DELETE FROM claims WHERE {_KEY}", (*key, first[0]))
            place = Place(first[1], first[2])
            first = tx.execute(FIRST, key).fetchone()
        if first and first[0] == place.seq:
            place = Place(place.seq, first[2])
        elif place.seq == chain.seq:
            place = chain
        tx.execute(MOVE_ACK, (*place, *key))

    def intend(
        self, move: Move, instead_of: Move | None = None, *, held: Claim | None = None
    ) -> Move | None:
        key = (move.group_id, move.pipe_id, move.seq)
        with self._db.lock, self._db.write(synced=True) as tx:
            if held is not None:
                claim_key = (held.group_id, held.pipe_id, held.start, held.version)
                if tx.execute(HAS_CLAIM, claim_key).fetchone() is None:
                    return None
            row = tx.execute(MOVE, key).fetchone()
            if row and _move_row(row) != instead_of:
                return _move_row(row)
            tx.execute(PUT_MOVE, _move_values(move))
            return move

    def intend_many(self, moves: Sequence[Move], held: Claim) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            claim_key = (held.group_id, held.pipe_id, held.start, held.version)
            if tx.execute(HAS_CLAIM, claim_key).fetchone() is None:
                return False
            tx.executemany(PUT_MOVE, map(_move_values, moves))
            return True

    def moves(self, group_id: str, pipe_id: str, seqs: range | None = None) -> list[Move]:
        first, last = (0, SEQ_MAX) if seqs is None else (seqs.start, seqs.stop)
        rows = self._db.read(MOVES, (group_id, pipe_id, first, last))
        return [_move_row(row) for row in rows]

    def removed(self, group_id: str, pipe_id: str) -> list[Removed]:
        rows = self._db.read(REMOVED, (group_id, pipe_id))
        return [Removed(r[0], r[1], r[2], r[3], Reason(r[4]), r[5]) for r in rows]

    def due_groups(self, now_ms: int, queue_ids: Collection[str] | None = None) -> list[GroupRow]:
        if queue_ids is None:
            rows = self._db.read(DUE_GROUPS, (now_ms,))
        else:
            rows = self._db.read(DUE_GROUPS_OF, (now_ms, json.dumps(list(queue_ids))))
        return [group_row(row) for row in rows]

    def wedged(self, queue_ids: Collection[str] | None = None) -> list[tuple[str, str]]:
        if queue_ids is not None:
            rows = self._db.read(WEDGED_OF, (json.dumps(list(queue_ids)),))
            return [(group_id, pipe_id) for group_id, pipe_id in rows]
        found: list[tuple[str, str]] = []
        last = ("", "")
        while ends := self._db.read(CURSORS_END, (*last, _CHUNK)):
            end = (ends[0][0], ends[0][1])
            found += [(row[0], row[1]) for row in self._db.read(WEDGED, (*last, *end))]
            last = end
        return found

    def all_overdue(
        self, deliveries: Mapping[str, int], now_ms: int, limit: int
    ) -> dict[str, list[Claim]]:
        found = {
            group_id: self._db.read(OVERDUE, (group_id, now_ms, most, limit))
            for group_id, most in deliveries.items()
        }
        return {group_id: [claim_row(row) for row in rows] for group_id, rows in found.items()}
