"""The listings of a queue's pipes: hints, written before a pipe's row and removed after it.

The row decides. If an entry's pipe does not exist, or is elsewhere by its own row, the entry is
either ahead of the row or was left by a crash: it is removed when it is old.

Entries are ordered by `position`: microseconds of cluster time at which the pipe was added. Below
the `floor` of its slice there are no entries and will never be: the floor is raised only to times
`SETTLED_US` ago, and a client that has needed half as long to add an entry adds another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.pipes.listing import DAY_US, SETTLED_US, SLICES, Listing, PipeEntry
from cassq.catalog.cassandra.pipes.write_tables import CassandraWrites
from cassq.model.rows import PipeRow, PipeState

OLD_US = 3_600_000_000
FLOOR_STEP_US = 60_000_000

RAISE_FLOOR = "INSERT INTO pipe_slices (queue_id, slice, floor) VALUES (?, ?, ?)"
DROP_SLICES = "DELETE FROM pipe_slices WHERE queue_id = ?"
DROP_SLICE = "DELETE FROM pipe_slices WHERE queue_id = ? AND slice = ?"
ENTRIES = (
    "SELECT position, pipe_id FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position >= ?"
)
COVER_ENTRIES = (
    "DELETE FROM queue_pipes USING TIMESTAMP ?"
    " WHERE queue_id = ? AND slice = ? AND position > ? AND position < ?"
)
DROP_ENTRIES = "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ?"


def _reads(pipe_id: str) -> tuple[Statement, Statement]:
    """The reads of a pipe's row and of its owner's beats."""
    return (cql.PIPE, (pipe_id,)), (cql.BEATS, (pipe_id,))


class PipeLists:
    """The pipes of queues, in listed order."""

    def __init__(self, keyspace: Keyspace, writes: CassandraWrites) -> None:
        self._cql = keyspace.cql
        self._gaps = keyspace.gaps
        self._listing = Listing(keyspace)
        self._writes = writes

    def entries(self, queue_id: str) -> list[PipeEntry]:
        """The entries of a queue's pipes in order. Cost: two rounds of reads."""
        return self.entries_of([queue_id])[queue_id]

    def entries_of(self, queue_ids: Sequence[str]) -> dict[str, list[PipeEntry]]:
        """`entries` for several queues. Cost: two rounds of reads: one read per queue, then one per
        slice; a third round while there are unfinished writes."""
        asked_us = self._cql.stamp()
        listed = self._cql.read_many([(SLICES, (queue_id,)) for queue_id in queue_ids])
        noted = {
            queue_id: dict(rows[0][2])
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            if rows and rows[0][2]
        }
        if noted and self._writes.help(noted, asked_us):
            listed = self._cql.read_many([(SLICES, (queue_id,)) for queue_id in queue_ids])
        slices = [
            (queue_id, slice_, floor or 0)
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            for slice_, floor, _ in rows
            if slice_ is not None
        ]
        entries: dict[str, list[PipeEntry]] = {queue_id: [] for queue_id in queue_ids}
        found = self._cql.read_many([(ENTRIES, values) for values in slices])
        for (queue_id, slice_, floor), rows in zip(slices, found, strict=True):
            self._raise_floor(queue_id, slice_, floor, rows[0][0] if rows else None)
            positions = [position for position, _ in rows]
            self._gaps.read(COVER_ENTRIES, (queue_id, slice_), positions, asked_us, int)
            entries[queue_id] += (PipeEntry(*row) for row in rows)
        return entries

    def _raise_floor(self, queue_id: str, slice_: int, floor: int, first: int | None) -> None:
        """Raise the floor, so that the next reads skip tombstones."""
        settled = self._cql.stamp() - SETTLED_US
        end = (slice_ + 1) * DAY_US
        if first is None and end < settled:
            self._cql.write(DROP_SLICE, (queue_id, slice_))
            return
        reached = settled if first is None else min(first, settled)
        if reached > max(floor, slice_ * DAY_US) + FLOOR_STEP_US:
            self._cql.write(RAISE_FLOOR, (queue_id, slice_, reached))

    # --- rows of listed pipes -------------------------------------------------------------------

    def rows(self, listed: Mapping[str, Sequence[PipeEntry]]) -> dict[str, list[PipeRow]]:
        """By queue, the pipes whose rows agree with these entries, with their owners' beats. Cost:
        a round of two reads per entry."""
        pipe_ids = [entry.pipe_id for entries in listed.values() for entry in entries]
        asked = [statement for pipe_id in pipe_ids for statement in _reads(pipe_id)]
        answers = iter(self._cql.read_many(asked))
        found: dict[str, list[PipeRow]] = {}
        for queue_id, entries in listed.items():
            mine = found[queue_id] = list[PipeRow]()
            stale: list[PipeEntry] = []
            for entry in entries:
                rows, beats = next(answers), next(answers)
                pipe = cql.pipe_of(entry.pipe_id, rows[0]).row if rows else None
                if pipe is None or (pipe.queue_id, pipe.ordinal) != (queue_id, entry.position):
                    stale.append(entry)
                else:
                    mine.append(cql.told(pipe, beats))
            self._repair_entries(queue_id, stale)
        return found

    def _repair_entries(self, queue_id: str, stale: Iterable[PipeEntry]) -> None:
        """Remove entries that a crash has left."""
        old = self._cql.stamp() - OLD_US
        for entry in stale:
            if entry.position < old:
                self._listing.unlist(queue_id, entry)

    def live(self, queue_id: str) -> list[PipeRow]:
        """The live pipes of a queue, oldest first. Cost: three rounds of reads."""
        return self.live_of(queue_id, self.entries(queue_id))

    def live_in(self, queue_ids: Sequence[str]) -> dict[str, list[PipeRow]]:
        """`live` for several queues, without those with no pipes. Cost: three rounds of reads."""
        found = self.rows(self.entries_of(queue_ids))
        live = {
            queue_id: [row for row in rows if row.state < PipeState.CONSUMED]
            for queue_id, rows in found.items()
        }
        return {queue_id: rows for queue_id, rows in live.items() if rows}

    def live_of(self, queue_id: str, entries: Sequence[PipeEntry]) -> list[PipeRow]:
        rows = self.rows({queue_id: entries})[queue_id]
        return [row for row in rows if row.state < PipeState.CONSUMED]
