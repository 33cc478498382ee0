"""What retired pipes held: written into the pipe's row by what retires it, and copied from there.

So totals and pipe change places in the ledger at one moment. Whoever comes after a crash copies
again; until then they are read from the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from cassq.catalog.cassandra.claim_rows import MOVES, REMOVED, moves_of
from cassq.catalog.cassandra.pipe_lists import PipeLists
from cassq.catalog.cassandra.pipe_rows import Pipe
from cassq.catalog.rows import Cursor, GroupRow, Reason, Retired, RetiredSum, summed

SEQ_MAX = (1 << 63) - 1
MONTH_MS = 30 * 86_400_000

_TOTALS = "pipe_id, group_id, queue_id, start, pushed, dead, expired, purged, merged"
PUT_TOTALS = f"INSERT INTO retired (slice, {_TOTALS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
NOTE_SLICE = "INSERT INTO retired_slices (queue_id, slice) VALUES (?, ?)"
SLICES = "SELECT slice FROM retired_slices WHERE queue_id = ?"
TOTALS = f"SELECT {_TOTALS} FROM retired WHERE queue_id = ? AND slice = ?"
DROP_TOTALS = "DELETE FROM retired WHERE queue_id = ? AND slice = ?"
DROP_SLICES = "DELETE FROM retired_slices WHERE queue_id = ?"


class Totals(PipeLists):
    """The part of the catalog that knows what retired pipes held."""

    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        """Cost: the reads of `consumed_pipes`, and one for each slice."""
        uncopied = [
            total
            for pipe in self._pipe_records(self._consumed_ids())
            if pipe is not None
            for total in pipe.totals
            if total.queue_id == queue_id
        ]
        slices = self._cql.read(SLICES, (queue_id,))
        found = self._cql.read_many([(TOTALS, (queue_id, slice_)) for (slice_,) in slices])
        copied = [Retired(*row) for rows in found for row in rows]
        rows_by_key = {(row.pipe_id, row.group_id): row for row in [*uncopied, *copied]}
        return [row for key, row in sorted(rows_by_key.items()) if pipe_id in ("", key[0])]

    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        """Cost: that of `retired`."""
        return summed(self.retired(queue_id))

    def _copy_totals(self, pipe: Pipe) -> None:
        """Safe to do again. Cost: two rounds of plain writes."""
        slice_ = pipe.row.created_ms // MONTH_MS
        queue_ids = {total.queue_id for total in pipe.totals}
        self._cql.write_many([(NOTE_SLICE, (queue_id, slice_)) for queue_id in queue_ids])
        self._cql.write_many([(PUT_TOTALS, (slice_, *_values(total))) for total in pipe.totals])

    def _forget_totals(self, queue_id: str) -> None:
        for (slice_,) in self._cql.read(SLICES, (queue_id,)):
            self._cql.write(DROP_TOTALS, (queue_id, slice_))
        self._cql.write(DROP_SLICES, (queue_id,))

    def _held(
        self, pipe: Pipe, groups: Sequence[GroupRow], cursors: Sequence[Cursor | None]
    ) -> tuple[Retired, ...]:
        """What a pipe that is all acked held for each group. Cost: a round of reads."""
        row = pipe.row
        assert row.end is not None
        keys = [(group.id, row.id) for group in groups]
        answers = self._cql.read_many(
            [*((MOVES, (*key, 0, SEQ_MAX)) for key in keys), *((REMOVED, key) for key in keys)]
        )
        moved, removed = answers[: len(keys)], answers[len(keys) :]
        totals = list(pipe.totals)
        for key, cursor, moves, gone in zip(keys, cursors, moved, removed, strict=True):
            sums = dict.fromkeys(Reason, 0)
            for seq, reason, end, _ in gone:
                sums[Reason(reason)] += end - seq
            start = cursor.start if cursor is not None else 0
            dead = sum(move.settled for move in moves_of(key, moves))
            counts = (sums[Reason.EXPIRED], sums[Reason.PURGED], sums[Reason.MERGED])
            totals.append(Retired(row.id, key[0], row.queue_id, start, row.end.seq, dead, *counts))
        return tuple(totals)


def _values(total: Retired) -> tuple[str | int, ...]:
    return (
        total.pipe_id, total.group_id, total.queue_id, total.start, total.pushed,
        total.dead, total.expired, total.purged, total.merged,
    )  # fmt: skip
