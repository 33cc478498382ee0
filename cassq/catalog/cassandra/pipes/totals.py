"""Totals of retired pipes: written to the pipe's row by the write that retires it, then copied.

So in the ledger the totals replace the pipe atomically. After a crash the next client copies again;
until then they are read from the row.

They are copied into *blocks*, one after another, by conditional batches. A full block is closed by
compare-and-set, which also writes the sum of it and of all blocks before it; nothing is added to it
later. So the totals of all retired pipes are the sum in the last closed block and the rows of the
open one. The row of a pipe names the block for its totals; if that was closed first, another block
is named there, by compare-and-set, before they are copied into it. So they are in exactly one
block, however many clients copy them, and however often.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from itertools import groupby

from cassq.base.clock import contended
from cassq.cassandra.session import Row, Statement, settled
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.claim_rows import MOVES, REMOVED, moves_of
from cassq.catalog.cassandra.partition.pipe_rows import Pipe, Total
from cassq.model.rows import SUMMED, Cursor, Reason, Retired, RetiredSum, summed

SEQ_MAX = (1 << 63) - 1
ROWS_MAX = 32  # of totals, in one batch: some 5 KB, above which servers warn
BLOCK_PIPES = 128  # pipes at which a block may be closed
LOOKS = 32  # one in this many pipes has the size of its block checked

_BLOCK = "queue_id = ? AND block = ?"
_TOTALS = "pipe_id, group_id, queue_id, start, pushed, dead, expired, purged, merged, lost"
# Add to an open block.
TOUCH_BLOCK = f"UPDATE retired SET newest = ? WHERE {_BLOCK} IF sums = null"
PUT_TOTALS = f"INSERT INTO retired (block, {_TOTALS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
CLOSE_BLOCK = f"UPDATE retired SET sums = ? WHERE {_BLOCK} IF sums = null AND newest = ?"
# A block, the sums that close it, and one pipe's rows in it.
BLOCK = f"SELECT {_TOTALS}, newest, sums FROM retired WHERE {_BLOCK}"
SUMS = f"SELECT DISTINCT sums FROM retired WHERE {_BLOCK}"
TOTALS = f"SELECT {_TOTALS} FROM retired WHERE {_BLOCK} AND pipe_id = ?"
# Drops a block, with a condition that always holds: so it follows all writes begun before.
CHECK_BLOCK = f"DELETE newest FROM retired WHERE {_BLOCK} IF newest != 'none'"
DROP_BLOCK = f"DELETE FROM retired WHERE {_BLOCK}"
# The open block, or an earlier one.
HEAD = "SELECT block FROM retired_heads WHERE queue_id = ?"
RAISE_HEAD = "INSERT INTO retired_heads (queue_id, block) VALUES (?, ?)"
DROP_HEAD = "DELETE FROM retired_heads WHERE queue_id = ?"
# The block with a pipe's totals, or in which they were about to be written.
PLACE = "SELECT block FROM retired_places WHERE queue_id = ? AND pipe_id = ?"
NOTE_PLACE = "INSERT INTO retired_places (queue_id, pipe_id, block) VALUES (?, ?, ?)"
DROP_PLACE = "DELETE FROM retired_places WHERE queue_id = ? AND pipe_id = ?"


class Totals:
    """Totals of retired pipes."""

    def __init__(self, rows: CatalogRows) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        # By queue: the open block, as far as is known, or an earlier one.
        self._blocks: dict[str, int] = {}

    # --- reading ------------------------------------------------------------------------------

    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        """Cost: for one pipe two rounds of reads; for all, the reads of `consumed`, and one for
        each `BLOCK_PIPES` pipes that were ever retired."""
        if pipe_id:
            found = self._retired_pipe(queue_id, pipe_id)
            if found is not None:
                return found
        rows = [total.row for total in self._pending(queue_id)]
        for block in self._all_blocks(queue_id):
            rows += map(_retired, block)
        by_key = {_key(row): row for row in rows}
        return [row for key, row in sorted(by_key.items()) if pipe_id in ("", key[0])]

    def _retired_pipe(self, queue_id: str, pipe_id: str) -> list[Retired] | None:
        """The totals of one pipe; None if all blocks must be searched for it."""
        pipe = self._rows.pipes.by_id(pipe_id)
        left = [t.row for t in pipe.totals if t.row.queue_id == queue_id] if pipe else []
        noted = self._cql.read(PLACE, (queue_id, pipe_id))
        if left or not noted:
            return sorted(left, key=_key)
        rows = self._cql.read(TOTALS, (queue_id, noted[0][0], pipe_id))
        return sorted(map(_retired, rows), key=_key) or None

    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        """Cost: the reads of `consumed`, two reads, and one for each of the queue's consumed pipes
        whose block was closed before its totals were copied."""
        for _ in self._cql.attempts():
            pending = self._pending(queue_id)
            block, open_rows = self._open_rows(queue_id)
            found = {_key(row): row for row in map(_retired, open_rows)}
            late = [total for total in pending if total.block < block]
            answers = self._cql.read_many(
                [(TOTALS, (queue_id, total.block, total.row.pipe_id)) for total in late]
            )
            summed_up = {_key(_retired(row)) for rows in answers for row in rows}
            left = [t for t in pending if _key(t.row) not in summed_up | found.keys()]
            found |= {_key(total.row): total.row for total in left}
            # Totals that missed their block may be in another meanwhile, and in the sums.
            is_sure = all(total.block >= block for total in left)
            if is_sure or self._pending(queue_id) == pending:
                return _added(self._sums(queue_id, block - 1) or [], summed(list(found.values())))
        raise contended(f"the totals of queue {queue_id}")

    def _pending(self, queue_id: str) -> list[Total]:
        """Totals in the rows of consumed pipes that still exist, whether copied or not."""
        return [
            total
            for pipe in self._rows.pipes.those(self._rows.consumed.ids())
            if pipe is not None
            for total in pipe.totals
            if total.row.queue_id == queue_id
        ]

    def _open_rows(self, queue_id: str) -> tuple[int, list[Row]]:
        """The open block, and its rows. Cost: one read, and one for each block closed since its
        number was noted."""
        block = self.likely_block(queue_id)
        while True:
            rows = self._cql.read(BLOCK, (queue_id, block))
            if not rows or rows[0][-1] is None:
                self._blocks[queue_id] = block
                return block, rows
            block += 1

    def likely_block(self, queue_id: str) -> int:
        """The open block, or an earlier one. Cost: one read, the first time."""
        block = self._blocks.get(queue_id)
        if block is None:
            noted = self._cql.read(HEAD, (queue_id,))
            block = self._blocks[queue_id] = noted[0][0] if noted else 0
        return block

    def _all_blocks(self, queue_id: str) -> list[list[Row]]:
        last, rows = self._open_rows(queue_id)
        return [*self._cql.read_many([(BLOCK, (queue_id, n)) for n in range(last)]), rows]

    def _sums(self, queue_id: str, block: int) -> list[RetiredSum] | None:
        """The sums of a closed block and all before it; None if it is open. Cost: one read."""
        rows = self._cql.read(SUMS, (queue_id, block)) if block >= 0 else []
        if not rows or rows[0][0] is None:
            return None
        return [RetiredSum(*each) for each in json.loads(rows[0][0])]

    # --- copying ------------------------------------------------------------------------------

    def copy_all(self, pipes: Sequence[Pipe]) -> None:
        """Copy the totals of pipes, at most `ROWS_MAX` of them with one conditional batch; those of
        pipes whose block is closed one by one, as `copy` does. Idempotent."""
        some: list[Pipe] = []
        for pipe in pipes:
            if len({_block_of(total) for total in pipe.totals}) != 1:
                self.copy(pipe)
                continue
            rows = sum(len(each.totals) for each in (*some, pipe))
            if some and (rows > ROWS_MAX or _home_of(some[0]) != _home_of(pipe)):
                self._copy_together(some)
                some = []
            some.append(pipe)
        if some:
            self._copy_together(some)

    def _copy_together(self, pipes: Sequence[Pipe]) -> None:
        """Copy totals that name the same block."""
        rows = [total.row for pipe in pipes for total in pipe.totals]
        if not self._put_totals(*_home_of(pipes[0]), rows):
            for pipe in pipes:
                self.copy(pipe)

    def copy(self, pipe: Pipe) -> None:
        """Copy a pipe's totals. Idempotent. Cost: a plain write and a conditional batch for each
        queue; if a block was closed also some reads and a conditional write."""
        pipe_id, totals = pipe.row.id, pipe.totals
        for _ in self._cql.attempts():
            missed = [
                place
                for place, some in groupby(totals, key=_block_of)
                if not self._put_totals(*place, [total.row for total in some])
            ]
            if not missed:
                return
            moved = tuple(
                total._replace(block=self._open_rows(total.row.queue_id)[0])
                if _block_of(total) in missed
                else total
                for total in totals
            )
            there = self._move_totals(pipe_id, totals, moved)
            if there is None:
                return
            totals = there
        raise contended(f"the totals of pipe {pipe_id}")

    def _move_totals(
        self, pipe_id: str, old: Sequence[Total], new: Sequence[Total]
    ) -> tuple[Total, ...] | None:
        """Name other blocks in a pipe's row; return the totals in the row then. None: the row is
        gone; the client that removed it has copied them."""
        values = (cql.totals_text(new), pipe_id, cql.totals_text(old))
        self._cql.apply_many([(cql.MOVE_TOTALS, values)])
        there = self._rows.pipes.serially(pipe_id)
        return there.totals if there is not None else None

    def _put_totals(self, queue_id: str, block: int, totals: Sequence[Retired]) -> bool:
        """Write totals of pipes to a block; False if it is closed, or not known to be open."""
        pipe_ids = list(dict.fromkeys(total.pipe_id for total in totals))
        self._cql.write_many([(NOTE_PLACE, (queue_id, pipe_id, block)) for pipe_id in pipe_ids])
        version = self._rows.keyspace.ids.version()
        batch: list[Statement] = [(TOUCH_BLOCK, (version, queue_id, block))]
        batch += [(PUT_TOTALS, (block, *_values(total))) for total in totals]

        def is_there() -> bool:
            asked = [(TOTALS, (queue_id, block, pipe_id)) for pipe_id in pipe_ids]
            return all(self._cql.read_many(asked, serial=True))

        if not settled(lambda: self._cql.apply_batch(batch), is_there):
            return is_there()
        if any(zlib.crc32(pipe_id.encode()) % LOOKS == 0 for pipe_id in pipe_ids):
            self._close_full_block(queue_id, block)
        return True

    def _close_full_block(self, queue_id: str, block: int) -> None:
        """Close a full block. Cost: a read; if full, another, a conditional write and a hint."""
        rows = self._cql.read(BLOCK, (queue_id, block), serial=True)
        if len({row[0] for row in rows}) < BLOCK_PIPES or rows[0][-1] is not None:
            return
        before = self._sums(queue_id, block - 1)
        if before is None and block > 0:
            return  # not seen to be closed yet; the next client tries again
        sums = _added(before or [], summed([_retired(row) for row in rows]))
        text = json.dumps([astuple(each) for each in sums])
        if self._cql.apply_many([(CLOSE_BLOCK, (text, queue_id, block, rows[0][-2]))]) == [True]:
            self._cql.write(RAISE_HEAD, (queue_id, block + 1))
            self._blocks[queue_id] = block + 1

    def forget(self, queue_id: str) -> None:
        """Cost: for each block a read, a conditional batch, and a write per pipe."""
        for number, rows in enumerate(self._all_blocks(queue_id)):
            pipe_ids = {row[0] for row in rows}
            self._cql.write_many([(DROP_PLACE, (queue_id, pipe_id)) for pipe_id in pipe_ids])
            key = (queue_id, number)
            self._cql.apply_batch([(CHECK_BLOCK, key), (DROP_BLOCK, key)])
        self._cql.write(DROP_HEAD, (queue_id,))
        self._blocks.pop(queue_id, None)

    # --- computing totals ---------------------------------------------------------------------

    def held(
        self, pipes: Sequence[Pipe], cursors: Mapping[str, Mapping[str, Cursor | None]]
    ) -> list[tuple[Total, ...]]:
        """The totals of each of these fully acked pipes. cursors: by pipe, of each of its groups.
        Cost: a round of reads."""
        keys = [(group_id, pipe.row.id) for pipe in pipes for group_id in cursors[pipe.row.id]]
        answers = self._cql.read_many(
            [*((MOVES, (*key, 0, SEQ_MAX)) for key in keys), *((REMOVED, key) for key in keys)]
        )
        moved = dict(zip(keys, answers[: len(keys)], strict=True))
        removed = dict(zip(keys, answers[len(keys) :], strict=True))
        held: list[tuple[Total, ...]] = []
        for pipe in pipes:
            row = pipe.row
            assert row.end is not None
            block = self.likely_block(row.queue_id)
            totals = list(pipe.totals)
            for group_id, cursor in cursors[row.id].items():
                key = group_id, row.id
                sums = {reason.total: 0 for reason in Reason}
                for seq, reason, end, _ in removed[key]:
                    sums[Reason(reason).total] += end - seq
                start = cursor.start if cursor is not None else 0
                dead = sum(move.settled for move in moves_of(key, moved[key]))
                found = Retired(row.id, group_id, row.queue_id, start, row.end.seq, dead, **sums)
                totals.append(Total(found, block))
            held.append(tuple(totals))
        return held


def _block_of(total: Total) -> tuple[str, int]:
    return total.row.queue_id, total.block


def _home_of(pipe: Pipe) -> tuple[str, int]:
    """The block that a pipe's totals name."""
    return _block_of(pipe.totals[0])


def _key(row: Retired) -> tuple[str, str]:
    return row.pipe_id, row.group_id


def _retired(row: Row) -> Retired:
    values = [*row[:9], row[9] or 0]  # older rows lack it
    return Retired(*values)


def _added(*parts: Iterable[RetiredSum]) -> list[RetiredSum]:
    """Add up sums for each group."""
    found: dict[str, list[int]] = {}
    for each in (each for part in parts for each in part):
        counts = [each.pipes, *(getattr(each, name) for name in SUMMED)]
        before = found.get(each.group_id, [0] * len(counts))
        found[each.group_id] = [a + b for a, b in zip(before, counts, strict=True)]
    return [
        RetiredSum(group_id, pipes, **dict(zip(SUMMED, counts, strict=True)))
        for group_id, (pipes, *counts) in found.items()
    ]


def _values(total: Retired) -> tuple[str | int, ...]:
    return (
        total.pipe_id, total.group_id, total.queue_id, total.start, total.pushed,
        total.dead, total.expired, total.purged, total.merged, total.lost,
    )  # fmt: skip
