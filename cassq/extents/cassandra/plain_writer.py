"""Writing frames of ap queues: plain writes, several in flight, then one look at the seal mark.

The package docstring proves that a seal is exact although plain writes cannot be refused.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from cassandra.cluster import ResponseFuture

from cassq.cassandra.errors import OverloadedError
from cassq.cassandra.tries import is_held_up
from cassq.errors import BackendError, BackendTimeoutError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head
from cassq.extents.cassandra.writer import CassandraWriter, PendingFrame, WriterContext

IN_FLIGHT_MAX = 64


class _Flight(NamedTuple):
    future: ResponseFuture
    statement: Any
    size: int


class PlainWriter(CassandraWriter):
    """Cost of an append: a plain write per frame, and one read for all of them."""

    def __init__(self, means: WriterContext, head: Head) -> None:
        super().__init__(means, head)
        self._flying: deque[_Flight] = deque()
        self._flying_bytes = 0
        self._window = means.sizes.flight_bytes  # bytes in flight, less if that is too much

    def _put(self, piece: PendingFrame) -> None:
        parts = self._put_parts(piece)
        statement = self._cql.bound(
            statements.PUT,
            (
                *(self._head.extent, self._bucket, piece.base_seq),
                *(self._bucket_start, piece.end_seq, piece.count),
                *(len(parts), parts[0], piece.end_seq + 1),
            ),
        )
        # Sending a write twice does not make a slow node faster.
        statement.is_idempotent = False
        size = len(parts[0])
        while self._flying and (
            self._flying_bytes + size > self._window or len(self._flying) >= IN_FLIGHT_MAX
        ):
            self._land()
        self._flying.append(_Flight(self._cql.send(statement), statement, size))
        self._flying_bytes += size

    def _drain(self) -> None:
        while self._flying:
            self._land()

    def _settle(self) -> None:
        self._drain()
        self._look_for_seal()

    def _land(self) -> None:
        """Wait for the oldest write; it is resent until it succeeds or patience is over."""
        future, statement, size = self._flying.popleft()
        self._flying_bytes -= size
        tries = self._cql.tries()
        while True:
            try:
                self._cql.result(future)
            except BackendError as exc:
                if isinstance(exc, (OverloadedError, BackendTimeoutError)):
                    self._window = max(1, self._window // 2)
                tries.wait_after(exc)
            else:
                if is_held_up(future):
                    self._window = max(1, self._window // 2)
                else:
                    self._window = min(self._window + size // 4, self._sizes.flight_bytes)
                return
            future = self._cql.again(statement)
