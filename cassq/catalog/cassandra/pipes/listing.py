"""Entries that list pipes, each at a position behind all others of its queue.

A client that removes entries covers the gaps that they leave, and raises the floor of their slice,
after every few: see `horizons`. An entry's position is not earlier than the stamp that its writer
took, so the horizon of the queue is a bound for positions, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition.horizons import LATE_US, Horizons
from cassq.catalog.cassandra.partition.keyspace import Keyspace

DAY_US = 86_400_000_000
SETTLED_US = 2 * LATE_US

# The slices of a queue's listing, with their floors; and its unfinished writes, which are in every
# row, even one without a slice.
SLICES = "SELECT slice, floor, writes FROM pipe_slices WHERE queue_id = ?"
NOTE_SLICE = "INSERT INTO pipe_slices (queue_id, slice) VALUES (?, ?)"
NOTE_ENTRY = "INSERT INTO queue_pipes (queue_id, slice, position, pipe_id) VALUES (?, ?, ?, ?)"
DROP_ENTRY = (
    "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position = ? AND pipe_id = ?"
)
ENTRIES = (
    "SELECT position, pipe_id FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position >= ?"
)
COVER_ENTRIES = (
    "DELETE FROM queue_pipes USING TIMESTAMP ?"
    " WHERE queue_id = ? AND slice = ? AND position > ? AND position < ?"
)
FLOOR = "SELECT floor FROM pipe_slices WHERE queue_id = ? AND slice = ?"
RAISE_FLOOR = "INSERT INTO pipe_slices (queue_id, slice, floor) VALUES (?, ?, ?)"


class PipeEntry(NamedTuple):
    position: int
    pipe_id: str


class Listing:
    """Writes and removes entries of pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql
        self._gaps = keyspace.gaps
        self._horizons = Horizons(keyspace.cql, keyspace.gaps)

    def announce(self, queue_id: str, pipe_id: str, after: int = 0) -> int:
        """List a pipe behind all others of a queue, and behind `after`; return its position. Cost:
        a round of plain writes, a read."""
        return self.announce_all(queue_id, [pipe_id], after)[0]

    def announce_all(self, queue_id: str, pipe_ids: Sequence[str], after: int = 0) -> list[int]:
        """`announce` for several pipes, in this order, at the same cost."""
        entries: list[PipeEntry] = []
        stale: list[PipeEntry] = []
        for _ in self._horizons.stamps([queue_id], f"queue {queue_id}"):
            stale += entries
            entries = [
                PipeEntry(max(self._cql.stamp(), after + 1), pipe_id) for pipe_id in pipe_ids
            ]
            slices = sorted({entry.position // DAY_US for entry in entries})
            notes: list[Statement] = [(NOTE_SLICE, (queue_id, slice_)) for slice_ in slices]
            notes += [(NOTE_ENTRY, (queue_id, each.position // DAY_US, *each)) for each in entries]
            self._cql.write_many(notes)
        for entry in stale:
            self.unlist(queue_id, entry)
        return [entry.position for entry in entries]

    def unlist(self, queue_id: str, entry: PipeEntry) -> None:
        """Remove an entry. Cost: a plain write; after every few, three rounds of reads and plain
        writes more."""
        slice_ = entry.position // DAY_US
        self._cql.write(DROP_ENTRY, (queue_id, slice_, *entry))
        removed = self._gaps.removed(COVER_ENTRIES, (queue_id, slice_), entry.position)
        if removed:
            with self._gaps.ignoring_failures():
                self._skip(queue_id, slice_, removed)

    def forget(self, queue_id: str) -> None:
        """Forget the horizon of a deleted queue. Cost: a plain write."""
        self._horizons.drop(queue_id)

    def _skip(self, queue_id: str, slice_: int, removed: Sequence[int]) -> None:
        """Let later reads skip the tombstones of removed entries: those before the first entry by
        the floor, others by covering their gaps."""
        horizon_us = self._horizons.raised(queue_id)
        floors = self._cql.read(FLOOR, (queue_id, slice_))
        if not floors:
            return
        floor = floors[0][0] or 0
        rows = self._cql.read(ENTRIES, (queue_id, slice_, floor))
        positions = [position for position, _ in rows]
        reached = min([*positions, horizon_us])
        if reached > floor:
            self._cql.write(RAISE_FLOOR, (queue_id, slice_, reached))
        left = [position for position in removed if position >= reached]
        self._gaps.cover(COVER_ENTRIES, (queue_id, slice_), left, positions, horizon_us, int)
