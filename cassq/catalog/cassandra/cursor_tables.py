"""Cursors in Cassandra: the static columns of a partition of claims.

A cursor is made when it is first asked for. In between its pipe may go, and its group: so who has
made one looks whether both are still there, and takes it back if not. What goes then has either
been seen, or sees the cursor.

A pipe that is about to go to another queue has its cursors *closed*: nobody can claim. `owner` of
a closed cursor is the mark its pipe's row bore then (see `pipe_tables`). When the pipe does not go
after all, whoever comes upon a closed cursor opens it again, naming that mark.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from cassq.catalog.cassandra import claim_rows as cql
from cassq.catalog.cassandra.known import GroupPipes
from cassq.catalog.cassandra.partitions import Partitions
from cassq.catalog.rows import Cursor, GroupRow, PipeState
from cassq.cql import settled
from cassq.errors import BackendTimeoutError
from cassq.frames import Place

# A pipe in which a group has a cursor: written before it. Bounded by live pipes.
NOTE_PIPE = "INSERT INTO group_pipes (group_id, pipe_id) VALUES (?, ?)"
UNNOTE_PIPE = "DELETE FROM group_pipes WHERE group_id = ? AND pipe_id = ?"
COVER_PIPES = (
    "DELETE FROM group_pipes USING TIMESTAMP ? WHERE group_id = ? AND pipe_id > ? AND pipe_id < ?"
)
LIST_PIPES = "SELECT pipe_id FROM group_pipes WHERE group_id = ?"
# Nobody can claim any more, where nobody has.
CLOSE = (
    "UPDATE claims SET chain_seq = ?, owner = ? WHERE group_id = ? AND pipe_id = ?"
    " IF chain_seq = ? AND ack_seq = ? AND owner = ?"
)
OPEN = (
    "UPDATE claims SET chain_seq = ?, owner = '' WHERE group_id = ? AND pipe_id = ?"
    " IF chain_seq = ? AND owner = ?"
)
TRIES = 20


class CursorTables(Partitions):
    """The part of the catalog that knows cursors."""

    _group_pipes: dict[str, GroupPipes]

    def cursor(self, group_id: str, pipe_id: str) -> Cursor | None:
        """Cost: one read; where there is none yet, some reads, a hint, a conditional batch, and
        the same reads again."""
        key = (group_id, pipe_id)
        for _ in range(TRIES):
            cursor = self._read_cursor(key)
            if cursor is None:
                self._memory.drop(key)
                if not self._make_cursor(key):
                    return None
            elif cursor.chain.seq != cql.CLOSED:
                known = self._memory.of(key)
                with known.lock:
                    known.see(cursor)
                self._listed(group_id).pipe_ids[pipe_id] = None
                return cursor
            elif not self._open_again(key, cursor):
                return None
        raise BackendTimeoutError(f"the cursor in pipe {pipe_id} comes and goes")

    def _read_cursor(self, key: cql.Key, *, serial: bool = False) -> Cursor | None:
        rows = self._cql.read(cql.CURSOR, key, serial=serial)
        return cql.cursor_of(key, rows[0]) if rows else None

    def _listed(self, group_id: str) -> GroupPipes:
        return self._group_pipes.setdefault(group_id, GroupPipes())

    def _unnote(self, key: cql.Key) -> None:
        """There is no cursor of a group in a pipe any more, and will be none."""
        self._cql.write(UNNOTE_PIPE, key)
        self._listed(key[0]).pipe_ids.pop(key[1], None)

    def cursors(self, group_id: str) -> list[Cursor]:
        """Cost: a read, and one a pipe side by side."""
        listed = self._cql.read(LIST_PIPES, (group_id,))
        keys = [(group_id, pipe_id) for (pipe_id,) in listed]
        found = self._cql.read_many([(cql.CURSOR, key) for key in keys])
        cursors = [
            cql.cursor_of(key, rows[0]) for key, rows in zip(keys, found, strict=True) if rows
        ]
        return [_as_open(cursor) for cursor in cursors if cursor is not None]

    # --- coming -------------------------------------------------------------------------------

    def _make_cursor(self, key: cql.Key) -> bool:
        """Whether there may be a cursor now."""
        if not self._may_have_cursor(key):
            return False
        self._cql.write(NOTE_PIPE, key)
        self._put_cursor(key, Place(0, 0))
        if self._may_have_cursor(key):
            return True
        self._drop_partition(key)
        return False

    def _may_have_cursor(self, key: cql.Key) -> bool:
        """Whether both group and pipe are there, and the pipe stays where it is. Who is about to
        retire the pipe has not known of this group: he is stopped."""
        group_id, pipe_id = key
        pipe, group = self._pipe_record(pipe_id), self._group(group_id)
        if pipe is None or group is None or group.queue_id != pipe.row.queue_id:
            return False
        return pipe.row.state < PipeState.CONSUMED and self._unmarked(pipe)

    def _put_cursor(self, key: cql.Key, start: Place) -> None:
        """A first cursor, where none is."""
        values = (*start, *start, start.seq, *key)
        batch = [(cql.ADD_CURSOR, values), (cql.PUT_ANCHOR, key)]
        # Whoever made it, it is there.
        settled(
            lambda: self._cql.apply_batch(batch),
            lambda: self._read_cursor(key, serial=True) is not None,
        )

    def _start_cursors(self, group: GroupRow, starts: Mapping[str, Place]) -> None:
        """Cost: for each pipe a read, a hint, a conditional batch."""
        for pipe_id, place in starts.items():
            pipe = self._pipe_record(pipe_id)
            if pipe is None or pipe.row.queue_id != group.queue_id:
                continue
            if pipe.row.state < PipeState.CONSUMED and self._unmarked(pipe):
                key = (group.id, pipe_id)
                self._cql.write(NOTE_PIPE, key)
                self._put_cursor(key, place)

    # --- going --------------------------------------------------------------------------------

    def _drop_cursors(self, queue_id: str, group_id: str) -> None:
        """Cost: a read, a conditional batch and a write a pipe; the reads of the queue's pipes."""
        for (pipe_id,) in self._cql.read(LIST_PIPES, (group_id,)):
            self._drop_partition((group_id, pipe_id))
        self._consume_pipes_of(queue_id, group_id)

    def _drop_partition(self, key: cql.Key) -> None:
        """Remove all that a group has in a pipe, and the hint of it. Safe to do again."""
        # Conditional, so that it comes after all that was begun before; it always holds.
        self._cql.apply_batch([(cql.CHECK_ANY, (*key, cql.NEVER)), (cql.DROP_PARTITION, key)])
        self._unnote(key)
        self._memory.drop(key)

    # --- pipes that go to another queue -----------------------------------------------------------

    def _close(self, key: cql.Key, mark: str) -> bool:
        """Keep a group from claiming in a pipe; False when it has claimed."""
        for _ in range(TRIES):
            cursor = self._read_cursor(key, serial=True)
            if cursor is None:
                self._cql.write(NOTE_PIPE, key)
                self._put_cursor(key, Place(0, 0))
                continue
            if cursor.chain.seq == cql.CLOSED and cursor.owner == mark:
                return True
            if cursor.chain.seq not in (cql.CLOSED, cursor.start):
                return False
            before = (cursor.chain.seq, cursor.ack.seq, cursor.owner)
            self._cql.apply_many([(CLOSE, (cql.CLOSED, mark, *key, *before))])
        raise BackendTimeoutError(f"the cursor in pipe {key[1]} changes all the time")

    def _open_all(self, group_ids: Collection[str], pipe_id: str, mark: str) -> None:
        """Let groups claim again that were kept from it under that mark."""
        for group_id in group_ids:
            cursor = self._read_cursor((group_id, pipe_id), serial=True)
            if cursor is not None and (cursor.chain.seq, cursor.owner) == (cql.CLOSED, mark):
                self._open(cursor)

    def _open(self, cursor: Cursor) -> None:
        values = (cursor.start, cursor.group_id, cursor.pipe_id, cql.CLOSED, cursor.owner)
        self._cql.apply_many([(OPEN, values)])

    def _open_again(self, key: cql.Key, cursor: Cursor) -> bool:
        """Open a closed cursor whose pipe has stayed; False when it is about to go, or has."""
        if not self._may_have_cursor(key):
            return False
        self._open(cursor)
        return True


def _as_open(cursor: Cursor) -> Cursor:
    """A closed cursor as it was, and will be if the pipe stays: nobody had claimed."""
    if cursor.chain.seq != cql.CLOSED:
        return cursor
    return replace(cursor, chain=Place(cursor.start, cursor.chain.pos), owner="")
