"""Writes in SQLite: a write and all that follows from it are one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import replace

from cassq.catalog.sqlite.database import Database, Row
from cassq.catalog.sqlite.pipe_tables import PIPE, insert_pipe, pipe_row
from cassq.catalog.write_port import Writes
from cassq.errors import BrokenInvariantError
from cassq.model.rows import Driver, PipeState, WriteRow, WriteState, begun

DRIVER_KEPT_MS = 86_400_000

_WRITE = "queue_id, id, number, epoch, state, driver, begun_ms"
# One write, by key.
WRITE = f"SELECT {_WRITE} FROM writes WHERE queue_id = ? AND id = ?"
PUT_WRITE = f"INSERT OR REPLACE INTO writes ({_WRITE}) VALUES (?, ?, ?, ?, ?, ?, ?)"
HAS_QUEUE = "SELECT 1 FROM queues WHERE id = ? AND deleted = 0"
# The compare-and-set that decides: by key.
END_WRITE = """
UPDATE writes SET state = ?1 WHERE queue_id = ?2 AND id = ?3 AND epoch = ?4 AND state = 0
AND EXISTS (SELECT 1 FROM queues WHERE id = ?2 AND deleted = 0)"""
# Stages of a write's pipes: a range of the partial index of staged pipes.
STAGES = "SELECT DISTINCT stage FROM pipes WHERE queue_id = ? AND state = 4"
# Pipes that are dropped: a range of that index.
DROP_STAGED = "UPDATE pipes SET state = 3 WHERE queue_id = ? AND stage = ? AND state = 4"
# Open writes: a partial index that holds nothing else.
OPEN_WRITES = f"SELECT {_WRITE} FROM writes WHERE state = 0 ORDER BY queue_id, id"
OPEN_WRITES_OF = f"""
SELECT {_WRITE} FROM writes WHERE state = 0 AND queue_id IN (SELECT value FROM json_each(?))
ORDER BY queue_id, id"""
BEAT_DRIVER = """
INSERT INTO drivers (id, beat, lease_ms, seen_ms) VALUES (?1, 1, ?2, ?3)
ON CONFLICT (id) DO UPDATE SET beat = beat + 1, lease_ms = ?2, seen_ms = ?3"""
FORGET_DRIVERS = "DELETE FROM drivers WHERE seen_ms < ?"
DRIVERS = (
    "SELECT id, beat, lease_ms FROM drivers WHERE id IN (SELECT value FROM json_each(?))"
    " ORDER BY id"
)


def _write_row(row: Row) -> WriteRow:
    return WriteRow(row[0], row[1], row[2], row[3], WriteState(row[4]), row[5], row[6])


class SqliteWrites(Writes):
    """Writes of staged pipes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def begin(self, wanted: WriteRow) -> WriteRow | None:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(HAS_QUEUE, (wanted.queue_id,)).fetchone() is None:
                return None
            found = tx.execute(WRITE, (wanted.queue_id, wanted.id)).fetchone()
            before = _write_row(found) if found else None
            row = begun(before, wanted)
            if row is None:
                return before
            values = (row.queue_id, row.id, row.number, row.epoch, row.state, row.driver)
            tx.execute(PUT_WRITE, (*values, row.begun_ms))
            _drop_staged(tx, row)
            return row

    def by_id(self, queue_id: str, write_id: str) -> WriteRow | None:
        rows = self._db.read(WRITE, (queue_id, write_id))
        return _write_row(rows[0]) if rows else None

    def publish(self, write: WriteRow, pipe_ids: Sequence[str]) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if not _end(tx, write, WriteState.PUBLISHED):
                return False
            now_ms = self._db.now_ms()
            for pipe_id in pipe_ids:
                row = tx.execute(PIPE, (pipe_id,)).fetchone()
                pipe = pipe_row(row) if row else None
                if pipe is None or pipe.end is None or pipe.stage != write.stage:
                    raise BrokenInvariantError(f"pipe {pipe_id} is not sealed in write {write.id}")
                # A new ordinal, because groups' floors may have passed the old one; and a new
                # time, because messages that took hours to stage are not hours old.
                tx.execute("DELETE FROM pipes WHERE id = ?", (pipe_id,))
                listed = replace(pipe, state=PipeState.SEALED, stage="", created_ms=now_ms)
                insert_pipe(tx, listed)
            _drop_staged(tx, replace(write, state=WriteState.PUBLISHED))
            return True

    def abort(self, write: WriteRow) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            aborted = _end(tx, write, WriteState.ABORTED)
            if aborted:
                _drop_staged(tx, replace(write, state=WriteState.ABORTED))
            return aborted

    def finish(self, write: WriteRow) -> int:
        with self._db.lock, self._db.write(synced=False) as tx:
            found = tx.execute(WRITE, (write.queue_id, write.id)).fetchone()
            return _drop_staged(tx, _write_row(found)) if found else 0

    def unfinished(self, queue_ids: Collection[str] | None = None) -> list[WriteRow]:
        if queue_ids is None:
            rows = self._db.read(OPEN_WRITES)
        else:
            rows = self._db.read(OPEN_WRITES_OF, (json.dumps(list(queue_ids)),))
        return [_write_row(row) for row in rows]

    def beat_driver(self, driver_id: str, lease_ms: int) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            now_ms = self._db.now_ms()
            tx.execute(BEAT_DRIVER, (driver_id, lease_ms, now_ms))
            tx.execute(FORGET_DRIVERS, (now_ms - DRIVER_KEPT_MS,))

    def drivers(self, driver_ids: Collection[str]) -> list[Driver]:
        rows = self._db.read(DRIVERS, (json.dumps(list(driver_ids)),))
        return [Driver(*row) for row in rows]


def _end(tx: sqlite3.Connection, write: WriteRow, state: WriteState) -> bool:
    ended = tx.execute(END_WRITE, (state, write.queue_id, write.id, write.epoch))
    return ended.rowcount == 1


def _drop_staged(tx: sqlite3.Connection, write: WriteRow) -> int:
    """Make those staged pipes of a write consumed that will not be published; return how many."""
    count = 0
    for (stage,) in tx.execute(STAGES, (write.queue_id,)).fetchall():
        still = write.state is WriteState.OPEN and stage == write.stage
        if stage.partition(":")[2] == write.id and not still:
            count += tx.execute(DROP_STAGED, (write.queue_id, stage)).rowcount
    return count
