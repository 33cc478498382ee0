"""Writes in Cassandra: one row decides, and any client can complete the steps that follow.

A write is noted in its queue's listing before its row is written; a client that lists pipes reads
the rows of noted writes. Its pipes are noted before their rows are written. Publishing is one
compare-and-set of the write's row, which contains the winners. The steps that follow are done by
the publisher, by reapers, and after `HELP_MS` by any client that lists the queue's pipes, in any
order and any number of times:

1. each winner is announced in the queue's listing, and its row changed from staged to sealed, at
   that position; a second client finds it changed and removes its own entry;
2. every other noted pipe becomes consumed;
3. when no pipe is noted any more, the write is settled, and some time later its note is removed.

If a pipe is added after the write has ended, either it is seen in step 2, or its client sees that
the write has ended, because it reads the write's row again after adding the pipe.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from cassq.base.clock import contended
from cassq.base.ids import made_at_ms
from cassq.cassandra.session import Row, Statement
from cassq.catalog.cassandra.partition import pipe_rows as cql
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.tombstones import SETTLED_US
from cassq.catalog.cassandra.pipes.listing import SLICES, Listing, PipeEntry
from cassq.catalog.write_port import Writes
from cassq.errors import BackendError, BrokenInvariantError
from cassq.model.rows import Driver, PipeRow, PipeState, WriteRow, WriteState, begun

logger: logging.Logger = logging.getLogger("cassq")

AT_ONCE = 64
HELP_MS = 3_000  # other clients leave the steps to the publisher this long
HELP_MOST = 256  # pipes that one listing handles
NOTE_MS = 60_000  # a note is kept at least this long
OLD_MS = 3_600_000  # adding a noted pipe never takes this long
PROBE = 1000  # pipes checked in one round before a publish

_WRITE = "queue_id, write_id, number, epoch, state, driver, begun_ms, ended_ms, winners, settled"
# One write, and all writes of a queue being deleted: by key.
WRITE = f"SELECT {_WRITE} FROM writes WHERE queue_id = ? AND write_id = ?"
WRITES = "SELECT write_id FROM writes WHERE queue_id = ?"
ADD_WRITE = (
    "INSERT INTO writes (number, epoch, state, driver, begun_ms, settled, queue_id, write_id)"
    " VALUES (?, ?, 0, ?, ?, false, ?, ?) IF NOT EXISTS"
)
BEGIN_WRITE = (
    "UPDATE writes SET number = ?, epoch = ?, state = 0, driver = ?, begun_ms = ?, winners = null,"
    " settled = false WHERE queue_id = ? AND write_id = ? IF epoch = ? AND state = ?"
)
# The compare-and-set that decides.
PUBLISH = (
    "UPDATE writes SET state = 1, ended_ms = ?, winners = ? WHERE queue_id = ? AND write_id = ?"
    " IF epoch = ? AND state = 0"
)
ABORT = (
    "UPDATE writes SET state = 2, ended_ms = ? WHERE queue_id = ? AND write_id = ?"
    " IF epoch = ? AND state = 0"
)
SETTLE = (
    "UPDATE writes SET settled = true, winners = null WHERE queue_id = ? AND write_id = ?"
    " IF epoch = ? AND state = ?"
)
FORGET_WRITE = "DELETE FROM writes WHERE queue_id = ? AND write_id = ? IF EXISTS"
NOTE_WRITE = "UPDATE pipe_slices SET writes[?] = ? WHERE queue_id = ?"
UNNOTE_WRITE = "DELETE writes[?] FROM pipe_slices USING TIMESTAMP ? WHERE queue_id = ?"
# The staged pipes of a write: its partition, bounded by task attempts.
STAGED = "SELECT pipe_id FROM staged_pipes WHERE queue_id = ? AND write_id = ?"
NOTE_STAGED = "INSERT INTO staged_pipes (queue_id, write_id, pipe_id) VALUES (?, ?, ?)"
UNNOTE_STAGED = "DELETE FROM staged_pipes WHERE queue_id = ? AND write_id = ? AND pipe_id = ?"
DRIVER = "SELECT driver_id, beat, lease_ms FROM drivers WHERE driver_id = ?"
PUT_DRIVER = "INSERT INTO drivers (driver_id, beat, lease_ms) VALUES (?, ?, ?)"


def _write_row(row: Row) -> WriteRow:
    return WriteRow(row[0], row[1], row[2], row[3], WriteState(row[4]), row[5], row[6])


def _is_settled(row: Row) -> bool:
    return bool(row[9])


class FinishedPart(NamedTuple):
    """Progress in finishing a write."""

    changed: int  # pipes
    unlisted: int  # winners not yet listed


class CassandraWrites(Writes):
    """Writes of staged pipes."""

    def __init__(self, rows: CatalogRows) -> None:
        self._rows = rows
        self._cql = rows.keyspace.cql
        self._listing = Listing(rows.keyspace)

    # --- beginning ----------------------------------------------------------------------------

    def begin(self, wanted: WriteRow) -> WriteRow | None:
        """Cost: two reads if it is open; to open it a read, two hints, a conditional write, and
        the remaining steps of the one before."""
        for _ in self._cql.attempts():
            queue = self._rows.queues.by_id(wanted.queue_id)
            if queue is None or queue.deleted:
                return None
            found = self._write_record(wanted.queue_id, wanted.id)
            before = _write_row(found) if found else None
            row = begun(before, wanted)
            if row is None:
                return before
            if found is not None and found[8] and self._finish(row.queue_id, row.id).unlisted:
                continue  # first list the previous winners: their names are about to be removed
            self._note(row)
            if self._open_write(found, row):
                self._note(row)
                return row
        raise contended(f"write {wanted.id!r}")

    def _open_write(self, found: Row | None, row: WriteRow) -> bool:
        values = (row.number, row.epoch, row.driver, row.begun_ms, row.queue_id, row.id)

        def stands() -> bool:
            there = self._write_record(row.queue_id, row.id, serial=True)
            return there is not None and _write_row(there) == row

        if found is None:
            return self._cql.apply_settled(ADD_WRITE, values, stands)
        return self._cql.apply_settled(BEGIN_WRITE, (*values, found[3], found[4]), stands)

    def _note(self, write: WriteRow) -> None:
        self._cql.write(NOTE_WRITE, (write.id, self._rows.keyspace.now_ms(), write.queue_id))

    def _write_record(self, queue_id: str, write_id: str, *, serial: bool = False) -> Row | None:
        rows = self._cql.read(WRITE, (queue_id, write_id), serial=serial)
        return rows[0] if rows else None

    def by_id(self, queue_id: str, write_id: str) -> WriteRow | None:
        """Cost: one read."""
        found = self._write_record(queue_id, write_id)
        return _write_row(found) if found else None

    # --- staging ----------------------------------------------------------------------------------

    def takes(self, row: PipeRow) -> bool:
        """Whether a pipe may be staged: its write is open, in this epoch. Cost: a read."""
        write_id = row.stage.partition(":")[2]
        found = self.by_id(row.queue_id, write_id)
        return found is not None and found.state is WriteState.OPEN and found.stage == row.stage

    def note_staged(self, row: PipeRow) -> None:
        """Cost: a round of two hints."""
        write_id = row.stage.partition(":")[2]
        self._cql.write_many(
            [
                (NOTE_WRITE, (write_id, self._rows.keyspace.now_ms(), row.queue_id)),
                (NOTE_STAGED, (row.queue_id, write_id, row.id)),
            ]
        )

    def unstage(self, row: PipeRow) -> None:
        """Remove the note of a staged pipe."""
        write_id = row.stage.partition(":")[2]
        self._cql.write(UNNOTE_STAGED, (row.queue_id, write_id, row.id))

    # --- ending -------------------------------------------------------------------------------

    def publish(self, write: WriteRow, pipe_ids: Sequence[str]) -> bool:
        """Cost: a read per pipe, concurrently, a hint, one conditional write that decides; then
        for each pipe a hint, a conditional write and a hint."""
        found = self._write_record(write.queue_id, write.id)
        queue = self._rows.queues.by_id(write.queue_id)
        if found is None or _write_row(found) != write or queue is None or queue.deleted:
            return False
        for at in range(0, len(pipe_ids), PROBE):
            some = pipe_ids[at : at + PROBE]
            for pipe_id, pipe in zip(some, self._rows.pipes.those(some), strict=True):
                if pipe is None or pipe.row.end is None or pipe.row.stage != write.stage:
                    raise BrokenInvariantError(f"pipe {pipe_id} is not sealed in write {write.id}")
        self._note(write)
        winners = json.dumps(list(pipe_ids))
        values = (self._rows.keyspace.now_ms(), winners, write.queue_id, write.id, write.epoch)

        def is_published() -> bool:
            row = self._write_record(write.queue_id, write.id, serial=True)
            return row is not None and (row[3], row[4], row[8]) == (write.epoch, 1, winners)

        if not self._cql.apply_settled(PUBLISH, values, is_published):
            return False
        try:
            self.finish(write)
        except BackendError as exc:
            logger.warning(
                "write %s is published, but its pipes are not listed yet; other clients"
                " list them: %s",
                write.id,
                exc,
            )
        return True

    def abort(self, write: WriteRow) -> bool:
        """Cost: one conditional write."""
        values = (self._rows.keyspace.now_ms(), write.queue_id, write.id, write.epoch)

        def is_aborted() -> bool:
            row = self._write_record(write.queue_id, write.id, serial=True)
            return row is not None and (row[3], row[4]) == (write.epoch, 2)

        return self._cql.apply_settled(ABORT, values, is_aborted)

    def finish(self, write: WriteRow) -> int:
        """Cost: a few reads; for each pipe two hints and a conditional write, in rounds of
        `AT_ONCE`."""
        changed = 0
        while True:
            step = self._finish(write.queue_id, write.id)
            changed += step.changed
            if not step.unlisted or not step.changed:
                return changed

    def _finish(self, queue_id: str, write_id: str, most: int | None = None) -> FinishedPart:
        """Continue finishing a write, with at most `most` winners."""
        found = self._write_record(queue_id, write_id, serial=True)
        if found is None:
            return FinishedPart(0, 0)
        write = _write_row(found)
        staged = [pipe_id for (pipe_id,) in self._cql.read(STAGED, (queue_id, write_id))]
        queue = self._rows.queues.by_id(queue_id)
        lives = queue is not None and not queue.deleted
        order: list[str] = json.loads(found[8]) if lives and found[8] else []
        there = set(staged)
        winners = [pipe_id for pipe_id in order if pipe_id in there]
        taken = winners[:most]
        done, kept_back = self._list(write, taken) if taken else (0, 0)
        rest = there.difference(order)
        dropped, kept = self._drop(write, sorted(rest))
        unlisted = len(winners) - len(taken) + kept_back
        if not unlisted + kept and write.state is not WriteState.OPEN and not _is_settled(found):
            self._settle(write, len(there))
        return FinishedPart(done + dropped, unlisted)

    def _settle(self, write: WriteRow, had: int) -> None:
        """Settle a write, unless another pipe is noted."""
        if had and self._cql.read(STAGED, (write.queue_id, write.id)):
            return
        self._cql.apply_many([(SETTLE, (write.queue_id, write.id, write.epoch, write.state))])

    def _list(self, write: WriteRow, pipe_ids: Sequence[str]) -> tuple[int, int]:
        """List winners; return how many we changed, and how many are still staged."""
        count = left = 0
        for at in range(0, len(pipe_ids), AT_ONCE):
            some = pipe_ids[at : at + AT_ONCE]
            positions = self._listing.announce_all(write.queue_id, some)
            now_ms = self._rows.keyspace.now_ms()
            changes: list[Statement] = [
                (cql.UNSTAGE, (position, now_ms, pipe_id, write.stage))
                for position, pipe_id in zip(positions, some, strict=True)
            ]
            over: list[str] = []
            answers = self._cql.apply_many(changes)
            for pipe_id, position, done in zip(some, positions, answers, strict=True):
                there = None if done else self._rows.pipes.serially(pipe_id)
                pipe = there.row if there is not None else None
                ours = done or (pipe is not None and pipe.ordinal == position)
                if not ours:
                    self._listing.unlist(write.queue_id, PipeEntry(position, pipe_id))
                if ours or pipe is None or pipe.state is not PipeState.STAGED:
                    over.append(pipe_id)
                count += bool(ours)
            left += len(some) - len(over)
            self._unnote_staged(write, over)
        return count, left

    def _drop(self, write: WriteRow, pipe_ids: Sequence[str]) -> tuple[int, int]:
        """Make pipes other than winners consumed; return how many, and how many are left."""
        count = left = 0
        old_ms = self._rows.keyspace.now_ms() - OLD_MS
        for at in range(0, len(pipe_ids), AT_ONCE):
            some = pipe_ids[at : at + AT_ONCE]
            over: list[str] = []
            doomed: list[PipeRow] = []
            for pipe_id, pipe in zip(some, self._rows.pipes.those(some), strict=True):
                if pipe is None:
                    made_ms = made_at_ms(pipe_id)
                    if made_ms is None or made_ms < old_ms:
                        over.append(pipe_id)
                    else:
                        left += 1  # its client may still add it, and will then drop it
                elif pipe.row.state is not PipeState.STAGED:
                    over.append(pipe_id)
                elif write.state is not WriteState.OPEN or pipe.row.stage != write.stage:
                    doomed.append(pipe.row)
            self._rows.consumed.note(row.id for row in doomed)
            answers = self._cql.apply_many([(cql.DROP_STAGED, (r.id, r.stage)) for r in doomed])
            for row, done in zip(doomed, answers, strict=True):
                count += bool(done)
                left += not done
                if done:
                    over.append(row.id)
            self._unnote_staged(write, over)
        return count, left

    def _unnote_staged(self, write: WriteRow, pipe_ids: Sequence[str]) -> None:
        self._cql.write_many(
            [(UNNOTE_STAGED, (write.queue_id, write.id, pipe_id)) for pipe_id in pipe_ids]
        )

    # --- unfinished writes --------------------------------------------------------------------

    def unfinished(self, queue_ids: Collection[str] | None = None) -> list[WriteRow]:
        """Cost: a read per queue, concurrently, and one per unfinished write."""
        scope = list(queue_ids) if queue_ids is not None else self._rows.queues.ids()
        asked_us = self._cql.stamp()
        listed = self._cql.read_many([(SLICES, (queue_id,)) for queue_id in scope])
        noted = {
            queue_id: dict(rows[0][2])
            for queue_id, rows in zip(scope, listed, strict=True)
            if rows and rows[0][2]
        }
        found = self._noted_rows(noted, asked_us)
        return sorted((_write_row(row) for row in found), key=lambda row: (row.queue_id, row.id))

    def _noted_rows(self, noted: Mapping[str, Mapping[str, int]], asked_us: int) -> list[Row]:
        """The rows of noted writes that are not finished; old notes of other writes are
        removed."""
        keys = [(queue_id, write_id) for queue_id, some in noted.items() for write_id in some]
        found = self._cql.read_many([(WRITE, key) for key in keys])
        rows: list[Row] = []
        old_ms = self._rows.keyspace.now_ms() - NOTE_MS
        for (queue_id, write_id), answer in zip(keys, found, strict=True):
            if answer and not _is_settled(answer[0]):
                rows.append(answer[0])
            elif noted[queue_id][write_id] < old_ms:
                if self._cql.read(STAGED, (queue_id, write_id)) and answer:
                    rows.append(answer[0])  # its client may have died while adding a pipe
                else:
                    # If it was noted again meanwhile, that note has a later timestamp.
                    before_us = self._cql.not_ahead(asked_us) - SETTLED_US
                    self._cql.write(UNNOTE_WRITE, (write_id, before_us, queue_id))
        return rows

    def help(self, noted: Mapping[str, Mapping[str, int]], asked_us: int) -> bool:
        """Go on with noted writes that were published `HELP_MS` ago; whether a pipe changed."""
        late_ms = self._rows.keyspace.now_ms() - HELP_MS
        helped = 0
        for row in self._noted_rows(noted, asked_us):
            write = _write_row(row)
            if write.state is WriteState.PUBLISHED and row[7] < late_ms:
                helped += self._finish(write.queue_id, write.id, HELP_MOST).changed
        return helped > 0

    # --- deleted queues ---------------------------------------------------------------------------

    def abort_all(self, queue_id: str) -> list[str]:
        """Abort the open writes of a deleted queue; return its staged pipes."""
        for (write_id,) in self._cql.read(WRITES, (queue_id,)):
            row = self.by_id(queue_id, write_id)
            if row is not None and row.state is WriteState.OPEN:
                self.abort(row)
        return self.all_staged(queue_id)

    def all_staged(self, queue_id: str) -> list[str]:
        writes = self._cql.read(WRITES, (queue_id,))
        found = self._cql.read_many([(STAGED, (queue_id, write_id)) for (write_id,) in writes])
        return [pipe_id for rows in found for (pipe_id,) in rows]

    def forget(self, queue_id: str) -> None:
        rows = self._cql.read(WRITES, (queue_id,))
        self._cql.apply_many([(FORGET_WRITE, (queue_id, write_id)) for (write_id,) in rows])

    # --- drivers --------------------------------------------------------------------------------

    def beat_driver(self, driver_id: str, lease_ms: int) -> None:
        """Cost: a read, a plain write."""
        rows = self._cql.read(DRIVER, (driver_id,))
        self._cql.write(PUT_DRIVER, (driver_id, rows[0][1] + 1 if rows else 1, lease_ms))

    def drivers(self, driver_ids: Collection[str]) -> list[Driver]:
        """Cost: a read each, concurrently."""
        found = self._cql.read_many([(DRIVER, (each,)) for each in sorted(set(driver_ids))])
        return [Driver(*rows[0]) for rows in found if rows]
