"""Pipes that may have to be removed: listed in slices before their rows are changed."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from cassq.catalog.cassandra.partition.horizons import Horizons
from cassq.catalog.cassandra.partition.keyspace import Keyspace

CONSUMED_SLICES = 16

# Pipes to remove, or whose totals must be copied.
NOTE_CONSUMED = "INSERT INTO consumed_pipes (slice, pipe_id) VALUES (?, ?)"
DROP_CONSUMED = "DELETE FROM consumed_pipes WHERE slice = ? AND pipe_id = ?"
COVER_CONSUMED = (
    "DELETE FROM consumed_pipes USING TIMESTAMP ? WHERE slice = ? AND pipe_id > ? AND pipe_id < ?"
)
LIST_CONSUMED = "SELECT pipe_id FROM consumed_pipes WHERE slice = ?"


def consumed_key(pipe_id: str) -> tuple[int, str]:
    return zlib.crc32(pipe_id.encode()) % CONSUMED_SLICES, pipe_id


class ConsumedPipes:
    """The listing of consumed pipes."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._cql = keyspace.cql
        self._gaps = keyspace.gaps
        self._horizons = Horizons(keyspace.cql, keyspace.gaps)

    def note(self, pipe_ids: Iterable[str]) -> None:
        """List pipes that are about to be consumed. Cost: a round of plain writes, one of reads."""
        keys = [consumed_key(pipe_id) for pipe_id in pipe_ids]
        owners = {_owner(slice_) for slice_, _ in keys}
        for _ in self._horizons.stamps(owners, "consumed pipes"):
            self._cql.write_many([(NOTE_CONSUMED, key) for key in keys])

    def ids(self) -> list[str]:
        """Pipes that may have to be removed, or whose totals must be copied. Cost: 16 concurrent
        reads."""
        asked_us = self._cql.stamp()
        found = self._cql.read_many([(LIST_CONSUMED, (n,)) for n in range(CONSUMED_SLICES)])
        for slice_, rows in enumerate(found):
            pipe_ids = [pipe_id for (pipe_id,) in rows]
            self._gaps.read(COVER_CONSUMED, (slice_,), pipe_ids, asked_us)
        return [pipe_id for rows in found for (pipe_id,) in rows]

    def drop(self, pipe_id: str) -> None:
        """Remove a pipe from the list. Cost: a plain write; after every few, two rounds of plain
        writes and a read more."""
        slice_, _ = key = consumed_key(pipe_id)
        self._cql.write(DROP_CONSUMED, key)
        self._horizons.removed(
            *(_owner(slice_), COVER_CONSUMED, (slice_,), pipe_id), lambda: self._listed(slice_)
        )

    def _listed(self, slice_: int) -> list[str]:
        return [pipe_id for (pipe_id,) in self._cql.read(LIST_CONSUMED, (slice_,))]


def _owner(slice_: int) -> str:
    """The owner of a slice's horizon."""
    return f"consumed pipes, {slice_}"
