"""The rows of `cassandra_rows.py`, many of a pipe in each mutation, which CassandraQueue had not.

Its interface took and gave one message at a time. This shows how much of the difference batches
alone would make.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from cassandra.query import BatchStatement, BatchType, PreparedStatement

from bench.peers.peer import Traits
from bench.peers.servers.cassandra_rows import CassandraRowsPeer, PushedPipe, Row

BATCH_ROWS = 50
# The driver takes no more requests of 50 KB while its socket does not.
IN_FLIGHT = 64
SINGLES = {
    "insert": "INSERT INTO {queue}_waiting (pipe, message, payload) VALUES (?, ?, ?)",
    "count": "UPDATE {queue}_descriptors SET pushed = ?, at = ? WHERE pipe = ?",
    "hold": "INSERT INTO {queue}_pending (pipe, message, payload) VALUES (?, ?, ?)",
    "take": "DELETE FROM {queue}_waiting WHERE pipe = ? AND message = ?",
    "commit": "DELETE FROM {queue}_pending WHERE pipe = ? AND message = ?",
}


class CassandraRowsBatchedPeer(CassandraRowsPeer):
    name = "cassandra-rows-batched"
    title = "Cassandra, a row per message, in batches"
    traits = Traits(
        server="cassandra",
        slowness=10,
        warmup_messages=20_000,
        only=("cassandra",),
        durable="commit log",
        note=f"as above, but {BATCH_ROWS} messages of a pipe in each mutation,"
        f" {IN_FLIGHT} requests in flight",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 8_000, 1_000: 8_000}
    in_flight: ClassVar[int] = IN_FLIGHT

    @cached_property
    def _singles(self) -> dict[str, PreparedStatement]:
        return {
            name: self._session.prepare(text.format(queue=self._table))
            for name, text in SINGLES.items()
        }

    def _send_batch(self, statements: Iterable[tuple[str, tuple[Any, ...]]]) -> None:
        batch = BatchStatement(BatchType.UNLOGGED)
        for name, values in statements:
            batch.add(self._singles[name], values)
        self._flight.send(batch)

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        gathered: defaultdict[uuid.UUID, list[Row]] = defaultdict(list)
        pipes: dict[uuid.UUID, PushedPipe] = {}
        for pipe, message, payload in self._rows(chunks):
            rows = gathered[pipe.key]
            rows.append((pipe.key, message, payload))
            pipes[pipe.key] = pipe
            if len(rows) == BATCH_ROWS:
                self._push_rows(pipe, gathered.pop(pipe.key))
        for key, rows in gathered.items():
            self._push_rows(pipes[key], rows)
        self._finish_filled()

    def _push_rows(self, pipe: PushedPipe, rows: Sequence[Row]) -> None:
        count = ("count", (pipe.pushed, time.time_ns(), pipe.key))
        self._send_batch([*(("insert", row) for row in rows), count])

    def _move(self, rows: Sequence[Row]) -> None:
        for first in range(0, len(rows), BATCH_ROWS):
            batch = rows[first : first + BATCH_ROWS]
            holds = (("hold", row) for row in batch)
            self._send_batch([*holds, *(("take", row[:2]) for row in batch)])

    def _commit(self, held: Sequence[tuple[uuid.UUID, uuid.UUID]]) -> None:
        for _, run in groupby(held, key=itemgetter(0)):
            rows = list(run)
            for first in range(0, len(rows), BATCH_ROWS):
                self._send_batch(("commit", row) for row in rows[first : first + BATCH_ROWS])

    def close(self) -> None:
        super().close()
        self.__dict__.pop("_singles", None)
