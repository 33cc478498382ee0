"""Writing frames of cp queues: one conditional write after another."""

from __future__ import annotations

from cassq.errors import BackendError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head
from cassq.extents.cassandra.writer import CassandraWriter, PendingFrame, WriterContext


class StrictWriter(CassandraWriter):
    """Cost of an append: a conditional write per frame; a read if it begins a bucket."""

    def __init__(self, means: WriterContext, head: Head) -> None:
        super().__init__(means, head)
        self._began = False  # a bucket, in this append

    def _put(self, piece: PendingFrame) -> None:
        parts = self._put_parts(piece)
        values = (
            *(self._bucket_start, piece.end_seq, piece.count, len(parts), parts[0]),
            *(self._head.extent, self._bucket, piece.base_seq),
            None if piece.first else piece.base_seq,
        )
        tries = self._cql.tries()
        while True:
            try:
                applied, there = self._cql.apply(statements.PUT_IF, values)
            except BackendError as exc:
                tries.wait_after(exc)  # applied or not: if it was, a second try is refused
            else:
                # Only this writer moves the count: if it is moved, an earlier attempt did that.
                if not applied and there[:1] != (piece.end_seq,):
                    raise self._told_sealed()
                self._began = self._began or piece.first
                return
            self._cql.requests.count("repeated")

    def _drain(self) -> None:
        """Nothing is in flight."""

    def _settle(self) -> None:
        # A dropped bucket does not refuse a first frame.
        if self._began:
            self._began = False
            self._look_for_seal()
