"""Entries that list pipes, each at a position behind all others of its queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.cassandra.session import Statement
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.errors import BackendTimeoutError

DAY_US = 86_400_000_000
SETTLED_US = 600_000_000

# The slices of a queue's listing, with their floors; and its unfinished writes, which are in every
# row, even one without a slice.
SLICES = "SELECT slice, floor, writes FROM pipe_slices WHERE queue_id = ?"
NOTE_SLICE = "INSERT INTO pipe_slices (queue_id, slice) VALUES (?, ?)"
NOTE_ENTRY = "INSERT INTO queue_pipes (queue_id, slice, position, pipe_id) VALUES (?, ?, ?, ?)"
DROP_ENTRY = (
    "DELETE FROM queue_pipes WHERE queue_id = ? AND slice = ? AND position = ? AND pipe_id = ?"
)


class PipeEntry(NamedTuple):
    position: int
    pipe_id: str


class Listing:
    """Writes and removes entries of pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql

    def announce(self, queue_id: str, pipe_id: str, after: int = 0) -> int:
        """List a pipe behind all others of a queue, and behind `after`; return its position. Cost:
        a round of plain writes."""
        return self.announce_all(queue_id, [pipe_id], after)[0]

    def announce_all(self, queue_id: str, pipe_ids: Sequence[str], after: int = 0) -> list[int]:
        """`announce` for several pipes, in this order, at the same cost."""
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
                self.unlist(queue_id, PipeEntry(position, pipe_id))
        raise BackendTimeoutError("adding a pipe took minutes", hint="is this machine overloaded?")

    def unlist(self, queue_id: str, entry: PipeEntry) -> None:
        """Remove an entry. Cost: a plain write."""
        self._cql.write(DROP_ENTRY, (queue_id, entry.position // DAY_US, *entry))
