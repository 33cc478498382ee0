"""Cursors in Cassandra: the static columns of a partition of claims.

A cursor is created when it is first requested. Meanwhile its pipe or group may be removed, so its
creator then checks that both still exist, and otherwise removes it again. So either the creator
sees the removal, or the remover sees the cursor.

Before a pipe moves to another queue, its cursors are *closed*, so that nothing can be claimed.
`owner` of a closed cursor is the mark that the pipe's row had then (see `retiring`). If the pipe
does not move after all, the next reader of a closed cursor reopens it, with that mark as condition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cassq.base.clock import contended
from cassq.cassandra.tries import UNSURE_MAX, unanswered
from cassq.catalog.cassandra.partition import claim_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.horizons import Horizons
from cassq.catalog.cassandra.partition.partition_cache import GroupPipes, PartitionCaches
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.message.frames import Place
from cassq.model.rows import Cursor, GroupRow, PipeState

# A pipe in which a group has a cursor: written before the cursor, see `horizons`. Bounded by live
# pipes.
NOTE_PIPE = "INSERT INTO group_pipes (group_id, pipe_id) VALUES (?, ?)"
UNNOTE_PIPE = "DELETE FROM group_pipes WHERE group_id = ? AND pipe_id = ?"
COVER_PIPES = (
    "DELETE FROM group_pipes USING TIMESTAMP ? WHERE group_id = ? AND pipe_id > ? AND pipe_id < ?"
)
LIST_PIPES = "SELECT pipe_id FROM group_pipes WHERE group_id = ?"
# Prevents claims, if there were none yet.
CLOSE = (
    "UPDATE claims SET chain_seq = ?, owner = ? WHERE group_id = ? AND pipe_id = ?"
    " IF chain_seq = ? AND ack_seq = ? AND owner = ?"
)
OPEN = (
    "UPDATE claims SET chain_seq = ?, owner = '' WHERE group_id = ? AND pipe_id = ?"
    " IF chain_seq = ? AND owner = ?"
)


class Cursors:
    """Cursors of groups in pipes."""

    def __init__(self, rows: CatalogRows, memory: PartitionCaches) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._horizons = Horizons(rows.keyspace.cql, rows.keyspace.gaps)
        self._memory = memory
        self._group_pipes: dict[str, GroupPipes] = {}

    def cursors_in(self, group_id: str, pipe_ids: Sequence[str]) -> list[Cursor | None]:
        """Cost: a round of reads; if cursors must be created, another one, a round of hints, one of
        conditional batches, and one more of reads."""
        cursors: dict[str, Cursor] = {}
        left = list(pipe_ids)
        for _ in self._cql.attempts():
            absent: list[str] = []
            closed: list[Cursor] = []
            found = self._read_cursors([(group_id, pipe_id) for pipe_id in left])
            for pipe_id, cursor in zip(left, found, strict=True):
                if cursor is None:
                    self._memory.drop((group_id, pipe_id))
                    absent.append(pipe_id)
                elif cursor.chain.seq == cql.CLOSED:
                    closed.append(cursor)
                else:
                    cursors[pipe_id] = cursor
            made = self._make_cursors(group_id, absent)
            cursors |= {each.pipe_id: each for each in made.values() if each is not None}
            left = [pipe_id for pipe_id, cursor in made.items() if cursor is None]
            left += [cursor.pipe_id for cursor in closed if self._open_again(cursor)]
            if not left:
                for cursor in cursors.values():
                    self._see(cursor)
                return [cursors.get(pipe_id) for pipe_id in pipe_ids]
        raise contended(f"the cursor in pipe {left[0]}")

    def _see(self, cursor: Cursor) -> None:
        known = self._memory.of((cursor.group_id, cursor.pipe_id))
        with known.lock:
            known.see(cursor)
        self.listed(cursor.group_id).pipe_ids[cursor.pipe_id] = None

    def _read_cursors(
        self, keys: Sequence[cql.Key], *, serial: bool = False
    ) -> list[Cursor | None]:
        found = self._cql.read_many([(cql.CURSOR, key) for key in keys], serial=serial)
        return [
            cql.cursor_of(key, rows[0]) if rows else None
            for key, rows in zip(keys, found, strict=True)
        ]

    def _serially(self, key: cql.Key) -> Cursor | None:
        """A cursor, as of all writes that began before. Cost: a linearized read."""
        return self._read_cursors([key], serial=True)[0]

    def listed(self, group_id: str) -> GroupPipes:
        """The cached list of pipes in which a group has cursors."""
        return self._group_pipes.setdefault(group_id, GroupPipes())

    def _note(self, group_id: str, pipe_ids: Collection[str]) -> None:
        """Record that a group is about to have cursors in pipes. Cost: a round of plain writes, a
        read."""
        for _ in self._horizons.stamps([group_id], f"group {group_id}"):
            self._cql.write_many([(NOTE_PIPE, (group_id, pipe_id)) for pipe_id in pipe_ids])

    def unnote(self, key: cql.Key) -> None:
        """Record that a group has no cursor in a pipe, and will have none. Cost: a plain write;
        after every few, three rounds of reads and plain writes more."""
        group_id, pipe_id = key
        self._cql.write(UNNOTE_PIPE, key)
        self.listed(group_id).pipe_ids.pop(pipe_id, None)
        self._horizons.removed(
            *(group_id, COVER_PIPES, (group_id,), pipe_id), lambda: self._listed_in(group_id)
        )

    def cursors(self, group_id: str, pipe_ids: Sequence[str] | None = None) -> list[Cursor]:
        """Cost: a read if no pipes are named, then one per pipe, concurrently."""
        if pipe_ids is None:
            pipe_ids = self._listed_in(group_id)
        found = self._read_cursors([(group_id, each) for each in pipe_ids])
        return [_as_open(cursor) for cursor in found if cursor is not None]

    def _listed_in(self, group_id: str) -> list[str]:
        return [pipe_id for (pipe_id,) in self._cql.read(LIST_PIPES, (group_id,))]

    def at(self, keys: Sequence[cql.Key]) -> list[Cursor | None]:
        """The cursors of groups in pipes, also closed ones. Cost: a round of reads."""
        return self._read_cursors(keys)

    # --- creating -----------------------------------------------------------------------------

    def _make_cursors(self, group_id: str, pipe_ids: Sequence[str]) -> dict[str, Cursor | None]:
        """Create cursors; return those created, by pipe, or None if another client may have created
        one first. Pipes that cannot have a cursor are left out."""
        may = self._may_have_cursors(group_id, pipe_ids) if pipe_ids else []
        if not may:
            return {}
        self._note(group_id, may)
        ours = self._put_cursors(group_id, dict.fromkeys(may, Place(0, 0)))
        stay = self._may_have_cursors(group_id, may)
        self.drop([(group_id, pipe_id) for pipe_id in may if pipe_id not in stay])
        first = Place(0, 0)
        return {
            pipe_id: Cursor(group_id, pipe_id, first, first, 0, "", 0) if pipe_id in ours else None
            for pipe_id in stay
        }

    def _may_have_cursors(self, group_id: str, pipe_ids: Sequence[str]) -> list[str]:
        """The pipes that exist in the group's queue, and stay there. A client about to retire one
        of them did not know of this group, and is stopped."""
        pipes, (_, groups) = self._rows.with_home(pipe_ids, group_id)
        home = next((group.queue_id for group in groups if group.id == group_id), None)
        return [
            pipe.row.id
            for pipe in pipes
            if pipe is not None and pipe.row.queue_id == home and self._stays(pipe)
        ]

    def _stays(self, pipe: Pipe) -> bool:
        """Whether a pipe exists, and no client is about to retire or move it."""
        return pipe.row.state < PipeState.CONSUMED and self._rows.pipes.unmarked(pipe)

    def _put_cursors(self, group_id: str, starts: Mapping[str, Place]) -> set[str]:
        """Add first cursors where none exist; return the pipes in which they are certainly ours."""
        left, ours = dict(starts), set[str]()
        for _ in self._cql.attempts(UNSURE_MAX):
            batches = []
            for pipe_id, start in left.items():
                key = (group_id, pipe_id)
                values = (*start, *start, start.seq, *key)
                batches.append([(cql.ADD_CURSOR, values), (cql.PUT_ANCHOR, key)])
            answers = list(zip(left, self._cql.apply_batches(batches), strict=True))
            ours.update(pipe_id for pipe_id, applied in answers if applied)
            # The outcome is unknown: the cursor was made by us, by another client, or not at all.
            unsure = [pipe_id for pipe_id, applied in answers if applied is None]
            lost = [p for p in unsure if self._serially((group_id, p)) is None]
            left = {pipe_id: left[pipe_id] for pipe_id in lost}
            if not left:
                return ours
        raise unanswered(f"there is a cursor in pipe {next(iter(left))}")

    def start(self, group: GroupRow, starts: Mapping[str, Place]) -> None:
        """Write the cursors of a group that is about to be created, in those pipes that are live.
        Cost: a round of reads, one of hints, one of conditional batches."""
        there = {
            pipe.row.id: starts[pipe.row.id]
            for pipe in self._rows.pipes.those(list(starts))
            if pipe is not None and pipe.row.queue_id == group.queue_id and self._stays(pipe)
        }
        if there:
            self._note(group.id, there)
        self._put_cursors(group.id, there)

    # --- removing -----------------------------------------------------------------------------

    def drop_all(self, group_id: str) -> None:
        """Remove all rows of a deleted (or never created) group in pipes: cursors, claims, moves,
        removals and their hints. Idempotent. Cost: a read, and that of `drop`."""
        self.drop([(group_id, pipe_id) for pipe_id in self._listed_in(group_id)])
        self._horizons.drop(group_id)

    def drop(self, keys: Sequence[cql.Key]) -> None:
        """Remove all rows of groups in pipes, and their hints. Idempotent. Cost: a round of
        conditional batches, and of each `unnote`."""
        # Conditional, so that it follows all writes begun before; the condition always holds.
        drops = [[(cql.CHECK_ANY, (*key, cql.NEVER)), (cql.DROP_PARTITION, key)] for key in keys]
        if None in self._cql.apply_batches(drops):
            raise unanswered("what groups had in removed pipes is gone")
        for key in keys:
            self.unnote(key)
            self._memory.drop(key)

    # --- pipes that move to another queue ---------------------------------------------------------

    def close(self, key: cql.Key, mark: str) -> bool:
        """Prevent a group from claiming in a pipe; False if it has claimed already."""
        for _ in self._cql.attempts():
            cursor = self._serially(key)
            if cursor is None:
                self._note(key[0], [key[1]])
                self._put_cursors(key[0], {key[1]: Place(0, 0)})
                continue
            if cursor.chain.seq == cql.CLOSED and cursor.owner == mark:
                return True
            if cursor.chain.seq not in (cql.CLOSED, cursor.start):
                return False
            before = (cursor.chain.seq, cursor.ack.seq, cursor.owner)
            self._cql.apply_many([(CLOSE, (cql.CLOSED, mark, *key, *before))])
        raise contended(f"the cursor in pipe {key[1]}")

    def open_all(self, group_ids: Collection[str], pipe_id: str, mark: str) -> None:
        """Reopen the cursors that were closed under this mark."""
        for group_id in group_ids:
            cursor = self._serially((group_id, pipe_id))
            if cursor is not None and (cursor.chain.seq, cursor.owner) == (cql.CLOSED, mark):
                self._open(cursor)

    def _open(self, cursor: Cursor) -> None:
        values = (cursor.start, cursor.group_id, cursor.pipe_id, cql.CLOSED, cursor.owner)
        self._cql.apply_many([(OPEN, values)])

    def _open_again(self, cursor: Cursor) -> bool:
        """Reopen a closed cursor if its pipe stays; False if the pipe is moving or has moved."""
        if not self._may_have_cursors(cursor.group_id, [cursor.pipe_id]):
            return False
        self._open(cursor)
        return True


def _as_open(cursor: Cursor) -> Cursor:
    """A closed cursor as it was before, and will be if the pipe stays: nothing was claimed."""
    if cursor.chain.seq != cql.CLOSED:
        return cursor
    return replace(cursor, chain=Place(cursor.start, cursor.chain.pos), owner="")
