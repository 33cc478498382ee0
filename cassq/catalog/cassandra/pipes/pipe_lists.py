"""The listings of a queue's pipes: hints, written before a pipe's row and removed after it.

The row decides. An entry whose pipe is not there, or stands elsewhere by its own row, is either
about to become true or was left by a crash: it is removed when it is old.

Entries are ordered by `position`: microseconds of cluster time at which the pipe was added. Below
the `floor` of its slice nothing is left and nothing will come: it is raised only to what is
`SETTLED_US` old, and who has taken half as long to add an entry adds another.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.parts import Parts
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.errors import BackendTimeoutError
from cassq.model.rows import PipeRow, PipeState

DAY_US = 86_400_000_000
SETTLED_US = 600_000_000
OLD_US = 3_600_000_000
FLOOR_STEP_US = 60_000_000
CONSUMED_SLICES = 16

# The slices of a queue with their floors and with its unfinished writes, which stand in each row,
# also in one without a slice; and the entries of one from its floor on.
SLICES = "SELECT slice, floor, writes FROM pipe_slices WHERE queue_id = ?"
NOTE_SLICE = "INSERT INTO pipe_slices (queue_id, slice) VALUES (?, ?)"
RAISE_FLOOR = "INSERT INTO pipe_slices (queue_id, slice, floor) VALUES (?, ?, ?)"
DROP_SLICES = "DELETE FROM pipe_slices WHERE queue_id = ?"
DROP_SLICE = "DELETE FROM pipe_slices WHERE queue_id = ? AND slice = ?"
ENTRIES = (
    "SELECT position, pipe_id FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position >= ?"
)
NOTE_ENTRY = "INSERT INTO queue_pipes (queue_id, slice, position, pipe_id) VALUES (?, ?, ?, ?)"
DROP_ENTRY = (
    "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position = ? AND pipe_id = ?"
)
COVER_ENTRIES = (
    "DELETE FROM queue_pipes USING TIMESTAMP ?"
    " WHERE queue_id = ? AND slice = ? AND position > ? AND position < ?"
)
DROP_ENTRIES = "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ?"
# Pipes to be removed, or with totals to be copied.
NOTE_CONSUMED = "INSERT INTO consumed_pipes (slice, pipe_id) VALUES (?, ?)"
DROP_CONSUMED = "DELETE FROM consumed_pipes WHERE slice = ? AND pipe_id = ?"
COVER_CONSUMED = (
    "DELETE FROM consumed_pipes USING TIMESTAMP ? WHERE slice = ? AND pipe_id > ? AND pipe_id < ?"
)
LIST_CONSUMED = "SELECT pipe_id FROM consumed_pipes WHERE slice = ?"


class Entry(NamedTuple):
    position: int
    pipe_id: str


def consumed_key(pipe_id: str) -> tuple[int, str]:
    return zlib.crc32(pipe_id.encode()) % CONSUMED_SLICES, pipe_id


def _reads(pipe_id: str) -> tuple[Statement, Statement]:
    """Of a pipe's row, and of what its owner tells."""
    return (cql.PIPE, (pipe_id,)), (cql.BEATS, (pipe_id,))


class PipeLists(Parts):
    """What lists pipes."""

    def _announce(self, queue_id: str, pipe_id: str, after: int = 0) -> int:
        """List a pipe behind all others of a queue, and behind `after`; its position. Cost: a
        round of plain writes."""
        return self._announce_all(queue_id, [pipe_id], after)[0]

    def _announce_all(self, queue_id: str, pipe_ids: Sequence[str], after: int = 0) -> list[int]:
        """The same of several, in their order; their positions. Cost: the same."""
        for _ in range(3):
            positions = [max(self._cql.stamp(), after + 1) for _ in pipe_ids]
            slices = sorted({position // DAY_US for position in positions})
            notes: list[Statement] = [(NOTE_SLICE, (queue_id, slice_)) for slice_ in slices]
            for position, pipe_id in zip(positions, pipe_ids, strict=True):
                notes.append((NOTE_ENTRY, (queue_id, position // DAY_US, position, pipe_id)))
            self._cql.write_many(notes)
            if self._cql.stamp() - positions[0] < SETTLED_US // 2:
                return positions
            for position, pipe_id in zip(positions, pipe_ids, strict=True):
                self._unlist(queue_id, Entry(position, pipe_id))
        raise BackendTimeoutError("adding a pipe took minutes", hint="is this machine overloaded?")

    def _unlist(self, queue_id: str, entry: Entry) -> None:
        self._cql.write(DROP_ENTRY, (queue_id, entry.position // DAY_US, *entry))

    def _entries(self, queue_id: str) -> list[Entry]:
        """The entries of a queue's pipes in order. Cost: two rounds of reads."""
        return self._entries_of([queue_id])[queue_id]

    def _entries_of(self, queue_ids: Sequence[str]) -> dict[str, list[Entry]]:
        """The same of several queues. Cost: two rounds of reads, of one read a queue and one for
        each of its slices; a round more while something is being written to them."""
        asked_us = self._cql.stamp()
        listed = self._cql.read_many([(SLICES, (queue_id,)) for queue_id in queue_ids])
        noted = {
            queue_id: dict(rows[0][2])
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            if rows and rows[0][2]
        }
        if noted and self._help_writes(noted, asked_us):
            listed = self._cql.read_many([(SLICES, (queue_id,)) for queue_id in queue_ids])
        slices = [
            (queue_id, slice_, floor or 0)
            for queue_id, rows in zip(queue_ids, listed, strict=True)
            for slice_, floor, _ in rows
            if slice_ is not None
        ]
        entries: dict[str, list[Entry]] = {queue_id: [] for queue_id in queue_ids}
        found = self._cql.read_many([(ENTRIES, values) for values in slices])
        for (queue_id, slice_, floor), rows in zip(slices, found, strict=True):
            self._raise_floor(queue_id, slice_, floor, rows[0][0] if rows else None)
            positions = [position for position, _ in rows]
            self._gaps.read(COVER_ENTRIES, (queue_id, slice_), positions, asked_us, int)
            entries[queue_id] += (Entry(*row) for row in rows)
        return entries

    def _raise_floor(self, queue_id: str, slice_: int, floor: int, first: int | None) -> None:
        """Keep tombstones out of the next reads."""
        settled = self._cql.stamp() - SETTLED_US
        end = (slice_ + 1) * DAY_US
        if first is None and end < settled:
            self._cql.write(DROP_SLICE, (queue_id, slice_))
            return
        reached = settled if first is None else min(first, settled)
        if reached > max(floor, slice_ * DAY_US) + FLOOR_STEP_US:
            self._cql.write(RAISE_FLOOR, (queue_id, slice_, reached))

    # --- rows of what is listed -----------------------------------------------------------------

    def _pipe_record(self, pipe_id: str) -> Pipe | None:
        """A pipe's own row. Cost: one read."""
        rows = self._cql.read(cql.PIPE, (pipe_id,))
        return cql.pipe_of(pipe_id, rows[0]) if rows else None

    def _pipe_records(self, pipe_ids: Sequence[str]) -> list[Pipe | None]:
        """Cost: a round of reads."""
        found = self._cql.read_many([(cql.PIPE, (pipe_id,)) for pipe_id in pipe_ids])
        return [
            cql.pipe_of(pipe_id, rows[0]) if rows else None
            for pipe_id, rows in zip(pipe_ids, found, strict=True)
        ]

    def _rows(self, listed: Mapping[str, Sequence[Entry]]) -> dict[str, list[PipeRow]]:
        """By queue, the pipes that are where these entries say, with what their owners tell.
        Cost: a round of two reads an entry."""
        pipe_ids = [entry.pipe_id for entries in listed.values() for entry in entries]
        asked = [statement for pipe_id in pipe_ids for statement in _reads(pipe_id)]
        answers = iter(self._cql.read_many(asked))
        found: dict[str, list[PipeRow]] = {}
        for queue_id, entries in listed.items():
            mine = found[queue_id] = list[PipeRow]()
            stale: list[Entry] = []
            for entry in entries:
                rows, beats = next(answers), next(answers)
                pipe = cql.pipe_of(entry.pipe_id, rows[0]).row if rows else None
                if pipe is None or (pipe.queue_id, pipe.ordinal) != (queue_id, entry.position):
                    stale.append(entry)
                else:
                    mine.append(cql.told(pipe, beats))
            self._repair_entries(queue_id, stale)
        return found

    def _repair_entries(self, queue_id: str, stale: Iterable[Entry]) -> None:
        """Remove entries that somebody's crash has left."""
        old = self._cql.stamp() - OLD_US
        for entry in stale:
            if entry.position < old:
                self._unlist(queue_id, entry)

    def _live(self, queue_id: str) -> list[PipeRow]:
        """The live pipes of a queue, oldest first. Cost: three rounds of reads."""
        return self._live_of(queue_id, self._entries(queue_id))

    def _live_in(self, queue_ids: Sequence[str]) -> dict[str, list[PipeRow]]:
        """The same of several queues; those without are left out. Cost: three rounds of reads."""
        found = self._rows(self._entries_of(queue_ids))
        live = {
            queue_id: [row for row in rows if row.state < PipeState.CONSUMED]
            for queue_id, rows in found.items()
        }
        return {queue_id: rows for queue_id, rows in live.items() if rows}

    def _live_of(self, queue_id: str, entries: Sequence[Entry]) -> list[PipeRow]:
        rows = self._rows({queue_id: entries})[queue_id]
        return [row for row in rows if row.state < PipeState.CONSUMED]

    def _consumed_ids(self) -> list[str]:
        """Pipes that may have to be removed, or have totals to be copied. Cost: 16 reads side by
        side."""
        asked_us = self._cql.stamp()
        found = self._cql.read_many([(LIST_CONSUMED, (n,)) for n in range(CONSUMED_SLICES)])
        for slice_, rows in enumerate(found):
            pipe_ids = [pipe_id for (pipe_id,) in rows]
            self._gaps.read(COVER_CONSUMED, (slice_,), pipe_ids, asked_us)
        return [pipe_id for rows in found for (pipe_id,) in rows]

    def _drop_consumed(self, pipe_id: str) -> None:
        """Most come and go between two of the lists above."""
        slice_, _ = key = consumed_key(pipe_id)
        self._cql.write(DROP_CONSUMED, key)
        self._gaps.went(COVER_CONSUMED, (slice_,), pipe_id)
