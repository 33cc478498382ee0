"""Pipes in SQLite: their rows, and the totals they leave."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import replace

from cassq.catalog.port import Pipes
from cassq.catalog.sqlite.database import Database, Row
from cassq.message.frames import Place
from cassq.model.priorities import PRIORITIES
from cassq.model.rows import GroupRow, PipeRow, PipeState, Retired, RetiredSum

PIPE_COLUMNS = (
    "p.id, p.queue_id, p.state, p.owner, p.created_ms, p.lease_ms, p.beat, p.end_seq, p.end_pos,"
    " p.predecessor, p.ordinal, p.group_id, p.timer_ms, p.rate, p.stage, p.priority"
)
# One pipe, by its unique index.
PIPE = f"SELECT {PIPE_COLUMNS} FROM pipes p WHERE id = ?"
# The live pipes of a queue: a range of the partial index, so dead ones cost nothing.
LIVE = f"SELECT {PIPE_COLUMNS} FROM pipes p WHERE queue_id = ? AND state < 3 ORDER BY ordinal"
# Live pipes the group has not claimed to the end; bounded below by the group's stored floor.
_UNCLAIMED = f"""
SELECT {PIPE_COLUMNS} FROM pipes p INDEXED BY {{index}}
LEFT JOIN cursors c ON c.group_id = ?1 AND c.pipe_id = p.id
WHERE p.queue_id = ?2 AND p.state < 3 AND p.timer_ms IS NULL AND {{level}}
  AND p.group_id IN ('', ?1)
  AND p.ordinal >= (SELECT floor_ordinal FROM groups WHERE id = ?1)
  AND (p.end_seq IS NULL OR p.end_seq > coalesce(c.chain_seq, 0))
ORDER BY {{order}} LIMIT ?3"""
UNCLAIMED = _UNCLAIMED.format(index="pipes_live", level="p.priority = 0", order="p.ordinal")
# The same of those with a priority: a range of a partial index that holds nothing else.
UNCLAIMED_URGENT = _UNCLAIMED.format(
    index="pipes_urgent", level="p.priority > 0", order="p.priority DESC, p.ordinal"
)
UNCLAIMED_OF_LEVEL = UNCLAIMED_URGENT.replace(
    "p.priority > 0", "p.priority > 0 AND p.priority = ?4"
)
# The newest of those with a priority: a range of that index.
NEWEST_URGENT = """
SELECT coalesce(max(ordinal), 0) FROM pipes INDEXED BY pipes_urgent
WHERE queue_id = ? AND priority > 0 AND state < 3"""
# Timer pipes the group has not scheduled to the end: a range of their own partial index.
TIMERS = f"""
SELECT {PIPE_COLUMNS} FROM pipes p LEFT JOIN cursors c ON c.group_id = ?1 AND c.pipe_id = p.id
WHERE p.queue_id = ?2 AND p.state < 3 AND p.timer_ms < ?3 AND p.group_id IN ('', ?1)
  AND (p.end_seq IS NULL OR p.end_seq > coalesce(c.chain_seq, 0))
ORDER BY p.timer_ms, p.ordinal LIMIT ?4"""
# Raise the floor to the oldest pipe not claimed to its end.
RAISE_FLOOR = "UPDATE groups SET floor_ordinal = ? WHERE id = ? AND floor_ordinal < ?"
HAS_GROUP = "SELECT 1 FROM groups WHERE id = ?"
# What is still claimed in a pipe that goes with its queue.
DROP_PIPE_CLAIMS = (
    "DELETE FROM claims WHERE pipe_id = ?"
    " AND group_id IN (SELECT group_id FROM cursors WHERE pipe_id = ?)"
)
# Pipes whose files must be removed: a partial index that holds nothing else.
CONSUMED = f"SELECT {PIPE_COLUMNS} FROM pipes p WHERE state = 3"
# Groups that the pipe is for and that have not acked it to the end.
UNFINISHED = """
SELECT 1 FROM groups g LEFT JOIN cursors c ON c.group_id = g.id AND c.pipe_id = ?1
WHERE g.queue_id = ?2 AND ?4 IN ('', g.id) AND coalesce(c.ack_seq, 0) < ?3 LIMIT 1"""
# Moves into a pipe whose movers may still have to check whether the message arrived.
ARRIVING = "SELECT 1 FROM moves WHERE dest_pipe = ? AND settled = 0 LIMIT 1"
# One row per group: how much the pipe held, and what became of it.
WRITE_TOTALS = """
INSERT OR IGNORE INTO retired
    (pipe_id, group_id, queue_id, sheet, start, pushed, dead, expired, purged, merged, lost)
SELECT ?1, g.id, g.queue_id, ?5, coalesce(c.start_seq, 0), ?3,
    (SELECT count(*) FROM moves m WHERE m.group_id = g.id AND m.pipe_id = ?1 AND m.settled = 1),
    {}, {}, {}, {}
FROM groups g LEFT JOIN cursors c ON c.group_id = g.id AND c.pipe_id = ?1
WHERE g.queue_id = ?2 AND ?4 IN ('', g.id)""".format(
    *(
        "(SELECT coalesce(sum(r.end_seq - r.start_seq), 0) FROM removed r"
        f" WHERE r.group_id = g.id AND r.pipe_id = ?1 AND r.reason IN ({reasons}))"
        for reasons in ("'expired'", "'purged', 'cancelled'", "'merged'", "'lost'")
    )
)
# Whether a pipe has left totals in a queue: a range of the primary key.
HAS_TOTALS = "SELECT 1 FROM retired WHERE queue_id = ? AND pipe_id = ? LIMIT 1"
# Marks one of its rows as that of the pipe itself.
MARK_WHOLE = """
UPDATE retired SET whole = 1 WHERE queue_id = ?1 AND pipe_id = ?2
AND group_id = (SELECT min(group_id) FROM retired WHERE queue_id = ?1 AND pipe_id = ?2)"""
# The sheet that a queue's totals are written to: the one after the last full one.
SHEET = "SELECT coalesce(max(sheet) + 1, 0) FROM retired_sheets_full WHERE queue_id = ?"
# The number of rows in a sheet: a range of their index.
SHEET_ROWS = "SELECT count(*) FROM retired WHERE queue_id = ? AND sheet = ?"
# The sums of a sheet, for each group and for the pipes themselves: a range of their index.
_SHEET_SUMS = """
SELECT group_id, count(*) AS pipes, sum(start) AS start, sum(pushed) AS pushed, sum(dead) AS dead,
    sum(expired) AS expired, sum(purged) AS purged, sum(merged) AS merged,
    sum(lost) AS lost
FROM retired INDEXED BY retired_sheets WHERE queue_id = ?1 AND sheet = ?2 GROUP BY group_id
UNION ALL SELECT '', count(*), 0, sum(pushed), 0, 0, 0, 0, 0
FROM retired INDEXED BY retired_sheets
WHERE queue_id = ?1 AND sheet = ?2 AND whole = 1 GROUP BY queue_id"""
# Written once, when the sheet is full.
CLOSE_SHEET = f"""
INSERT INTO retired_sheets_full
    (queue_id, sheet, group_id, pipes, start, pushed, dead, expired, purged, merged, lost)
SELECT ?1, ?2, * FROM ({_SHEET_SUMS})"""
# All sheets of a queue added up: the sums of full ones, and the rows of the last.
SUMS = f"""
SELECT group_id, sum(pipes), sum(start), sum(pushed), sum(dead), sum(expired), sum(purged),
    sum(merged), sum(lost)
FROM (SELECT group_id, pipes, start, pushed, dead, expired, purged, merged, lost
    FROM retired_sheets_full WHERE queue_id = ?1
    UNION ALL SELECT * FROM ({_SHEET_SUMS.replace("?2", f"({SHEET.replace('?', '?1')})")}))
GROUP BY group_id"""
# The totals of a queue's retired pipes: a range of the primary key.
TOTALS = (
    "SELECT pipe_id, group_id, queue_id, start, pushed, dead, expired, purged, merged, lost"
    " FROM retired WHERE queue_id = ?"
)
# The totals that a pipe moved to another queue leaves in the ledger of its old one.
WRITE_MERGED = """
INSERT OR IGNORE INTO retired (pipe_id, group_id, queue_id, sheet, start, pushed, dead, merged)
SELECT ?1, g.id, g.queue_id, ?5, coalesce(c.start_seq, 0), ?3, 0, ?3 - coalesce(c.start_seq, 0)
FROM groups g LEFT JOIN cursors c ON c.group_id = g.id AND c.pipe_id = ?1
WHERE g.queue_id = ?2 AND ?4 IN ('', g.id)"""
# The locks that exclusive groups held on a pipe: by key, one a group.
DROP_LOCKS = """
DELETE FROM leases WHERE name IN
    (SELECT 'pop:' || g.id || ':' || ?1 FROM groups g WHERE g.queue_id = ?2)"""
# Whether a write is open under this stage: by key.
HAS_STAGE = "SELECT epoch FROM writes WHERE queue_id = ? AND id = ? AND state = 0"
# Pipes that may be written: a partial index that holds nothing else.
UNSEALED = f"SELECT {PIPE_COLUMNS} FROM pipes p WHERE p.state < 2 ORDER BY p.ordinal"
# The same of some queues: ranges of that index.
UNSEALED_OF = f"""
SELECT {PIPE_COLUMNS} FROM json_each(?1) q
CROSS JOIN pipes p INDEXED BY pipes_unsealed ON p.queue_id = q.value
WHERE p.state < 2 ORDER BY p.ordinal"""
# Whether a pipe `p` is sealed, and every group it is for has acked it: a key a group.
_FINISHED = """
p.state = 2 AND EXISTS (SELECT 1 FROM groups g WHERE g.queue_id = p.queue_id)
AND NOT EXISTS (SELECT 1 FROM groups g LEFT JOIN cursors c ON c.group_id = g.id AND c.pipe_id = p.id
    WHERE g.queue_id = p.queue_id AND p.group_id IN ('', g.id)
    AND coalesce(c.ack_seq, 0) < p.end_seq)
ORDER BY p.ordinal"""
# A chunk of all pipes: a range of the key.
FINISHED = f"""
SELECT {PIPE_COLUMNS} FROM pipes p WHERE p.ordinal > ?1 AND p.ordinal <= ?2 AND {_FINISHED}"""
# Where a chunk ends.
CHUNK_END = """
SELECT max(ordinal) FROM (SELECT ordinal FROM pipes WHERE ordinal > ? ORDER BY ordinal LIMIT ?)"""
# The same of some queues: ranges of the partial index of live pipes.
FINISHED_OF = f"""
SELECT {PIPE_COLUMNS} FROM json_each(?1) q
CROSS JOIN pipes p INDEXED BY pipes_live ON p.queue_id = q.value AND p.state < 3
WHERE {_FINISHED}"""
SHEET_ROWS_MAX = 1024
_CHUNK = 1000  # pipes read in one statement, so that other threads do not wait long
_FLOOR_STEP = 64  # pipes claimed to the end, before the floor is moved past them


def pipe_row(row: Row) -> PipeRow:
    return PipeRow(
        id=row[0],
        queue_id=row[1],
        state=PipeState(row[2]),
        owner=row[3],
        created_ms=row[4],
        lease_ms=row[5],
        beat=row[6],
        end=None if row[7] is None else Place(row[7], row[8]),
        predecessor=row[9],
        ordinal=row[10],
        group_id=row[11],
        timer_ms=row[12],
        rate=row[13],
        stage=row[14],
        priority=row[15],
    )


def insert_pipe(tx: sqlite3.Connection, row: PipeRow) -> None:
    """Add a row behind all others."""
    tx.execute(
        "INSERT INTO pipes (id, queue_id, state, owner, created_ms, lease_ms, beat, end_seq,"
        " end_pos, predecessor, group_id, timer_ms, rate, stage, priority)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.id,
            row.queue_id,
            row.state,
            row.owner,
            row.created_ms,
            row.lease_ms,
            row.beat,
            *(row.end or (None, None)),
            row.predecessor,
            row.group_id,
            row.timer_ms,
            row.rate,
            row.stage,
            row.priority,
        ),
    )


def _retire(tx: sqlite3.Connection, pipe: PipeRow) -> bool:
    """Make a sealed pipe consumed; False if it may not be yet."""
    before = tx.execute(PIPE, (pipe.predecessor,)).fetchone()
    if before is not None and before[2] < PipeState.CONSUMED:
        return False  # in order: if a predecessor is gone, so are all pipes before it
    assert pipe.end is not None
    of_queue = (pipe.id, pipe.queue_id, pipe.end.seq, pipe.group_id)
    if tx.execute(UNFINISHED, of_queue).fetchone():
        return False
    if tx.execute(ARRIVING, (pipe.id,)).fetchone():
        return False
    _leave_totals(tx, WRITE_TOTALS, pipe)
    tx.execute("DELETE FROM moves WHERE pipe_id = ?", (pipe.id,))
    tx.execute("DELETE FROM removed WHERE pipe_id = ?", (pipe.id,))
    tx.execute(DROP_LOCKS, (pipe.id, pipe.queue_id))
    tx.execute("DELETE FROM cursors WHERE pipe_id = ?", (pipe.id,))
    tx.execute("UPDATE pipes SET state = 3 WHERE id = ?", (pipe.id,))
    return True


def _leave_totals(tx: sqlite3.Connection, statement: str, pipe: PipeRow) -> None:
    """Write a pipe's totals to the ledger of its queue, unless they are there."""
    assert pipe.end is not None
    key = (pipe.queue_id, pipe.id)
    known = tx.execute(HAS_TOTALS, key).fetchone()
    ((sheet,),) = tx.execute(SHEET, key[:1]).fetchall()
    tx.execute(statement, (pipe.id, pipe.queue_id, pipe.end.seq, pipe.group_id, sheet))
    if not known:
        tx.execute(MARK_WHOLE, key)
    (rows,) = tx.execute(SHEET_ROWS, (pipe.queue_id, sheet)).fetchone()
    if rows >= SHEET_ROWS_MAX:
        tx.execute(CLOSE_SHEET, (pipe.queue_id, sheet))


def has_stage(tx: sqlite3.Connection, queue_id: str, stage: str) -> bool:
    """Whether pipes may be added with this stage."""
    epoch, _, write_id = stage.partition(":")
    row = tx.execute(HAS_STAGE, (queue_id, write_id)).fetchone()
    return row is not None and str(row[0]) == epoch


class SqlitePipes(Pipes):
    """Pipes, and the totals they leave."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, row: PipeRow) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            if tx.execute(PIPE, (row.id,)).fetchone():
                return False
            queue = tx.execute(
                "SELECT tail, json_extract(policy, '$.consistency') FROM queues"
                " WHERE id = ? AND deleted = 0",
                (row.queue_id,),
            ).fetchone()
            if queue is None or (row.stage and not has_stage(tx, row.queue_id, row.stage)):
                return False
            if row.group_id and not tx.execute(HAS_GROUP, (row.group_id,)).fetchone():
                return False
            if queue[1] == "cp" and not row.group_id and not row.stage:
                before = tx.execute(PIPE, (row.predecessor,)).fetchone()
                open_still = before is not None and before[2] < PipeState.SEALED
                if queue[0] != row.predecessor or open_still:
                    return False
                tx.execute("UPDATE queues SET tail = ? WHERE id = ?", (row.id, row.queue_id))
            insert_pipe(tx, row)
            self.urgent_added += row.priority > 0
            return True

    def by_id(self, pipe_id: str) -> PipeRow | None:
        rows = self._db.read(PIPE, (pipe_id,))
        return pipe_row(rows[0]) if rows else None

    def live(self, queue_id: str) -> list[PipeRow]:
        return [pipe_row(row) for row in self._db.read(LIVE, (queue_id,))]

    def unclaimed(self, group: GroupRow, limit: int, *, unacked: bool = False) -> list[PipeRow]:
        key = (group.id, group.queue_id, limit)
        pipes = self._unclaimed(UNCLAIMED_URGENT, key, unacked=unacked)
        if len(pipes) == limit:  # maybe all of one priority
            pipes = [
                pipe
                for level in reversed(PRIORITIES[1:])
                for pipe in self._unclaimed(UNCLAIMED_OF_LEVEL, (*key, level), unacked=unacked)
            ]
        pipes += self._unclaimed(UNCLAIMED, key, unacked=unacked)
        if pipes:
            self._raise_floor(group, min(pipe.ordinal for pipe in pipes))
        return pipes

    def _unclaimed(self, statement: str, values: Row, *, unacked: bool) -> list[PipeRow]:
        """unacked: what is not acked, instead of what is not claimed."""
        if unacked:
            statement = statement.replace("c.chain_seq", "c.ack_seq")
        return [pipe_row(row) for row in self._db.read(statement, values)]

    def newest_urgent(self, queue_id: str) -> int:
        return int(self._db.read(NEWEST_URGENT, (queue_id,))[0][0])

    def timers(self, group: GroupRow, until_ms: int, limit: int) -> list[PipeRow]:
        rows = self._db.read(TIMERS, (group.id, group.queue_id, until_ms, limit))
        return [pipe_row(row) for row in rows]

    def _raise_floor(self, group: GroupRow, ordinal: int) -> None:
        behind = self._db.read(
            "SELECT count(*) FROM (SELECT 1 FROM pipes WHERE queue_id = ?2 AND state < 3"
            " AND ordinal < ?3 AND ordinal >= (SELECT floor_ordinal FROM groups WHERE id = ?1)"
            " LIMIT ?4)",
            (group.id, group.queue_id, ordinal, _FLOOR_STEP),
        )
        if behind[0][0] >= _FLOOR_STEP:
            with self._db.lock, self._db.write(synced=False) as tx:
                tx.execute(RAISE_FLOOR, (ordinal, group.id, ordinal))

    def consumed(self) -> list[PipeRow]:
        return [pipe_row(row) for row in self._db.read(CONSUMED)]

    def ids(self) -> set[str]:
        return {pipe_id for (pipe_id,) in self._db.read("SELECT id FROM pipes")}

    def beat(self, pipe_id: str, owner: str, state: PipeState, rate: int = 0) -> bool:
        with self._db.lock, self._db.write(synced=False) as tx:
            changed = tx.execute(
                "UPDATE pipes SET beat = beat + 1, state = ?, rate = ? WHERE id = ? AND owner = ?"
                " AND state < 2",
                (state, rate, pipe_id, owner),
            )
            return changed.rowcount == 1

    def record_end(self, pipe_id: str, end: Place) -> Place | None:
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute(
                "UPDATE pipes SET end_seq = ?, end_pos = ?, state = iif(state = 4, 4, 2)"
                " WHERE id = ? AND end_seq IS NULL AND state <> 3",
                (end.seq, end.pos, pipe_id),
            )
            row = tx.execute("SELECT end_seq, end_pos FROM pipes WHERE id = ?", (pipe_id,))
            found = row.fetchone()
            return Place(*found) if found and found[0] is not None else None

    def retire(self, pipe_ids: Sequence[str], groups_version: int) -> list[str]:
        with self._db.lock, self._db.write(synced=True) as tx:
            found = [tx.execute(PIPE, (pipe_id,)).fetchone() for pipe_id in pipe_ids]
            there = [pipe_row(row) for row in found if row is not None]
            pipes = [pipe for pipe in there if pipe.state is PipeState.SEALED]
            if not pipes:
                return []
            queue_id = pipes[0].queue_id
            version, groups = tx.execute(
                "SELECT groups_version, (SELECT count(*) FROM groups WHERE queue_id = q.id)"
                " FROM queues q WHERE id = ?",
                (queue_id,),
            ).fetchone()
            if version != groups_version or not groups:
                return []
            retired = [pipe.id for pipe in pipes if pipe.queue_id == queue_id and _retire(tx, pipe)]
            if retired:
                tx.execute(
                    "UPDATE queues SET groups_version = groups_version + 1 WHERE id = ?",
                    (queue_id,),
                )
            return retired

    def repoint(self, pipe_id: str, queue_id: str, group_id: str) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            row = tx.execute(PIPE, (pipe_id,)).fetchone()
            group = tx.execute(
                "SELECT 1 FROM groups g JOIN queues q ON q.id = g.queue_id"
                " WHERE g.id = ? AND q.id = ? AND q.deleted = 0",
                (group_id, queue_id),
            ).fetchone()
            if row is None or row[2] != PipeState.SEALED or group is None:
                return False
            pipe = pipe_row(row)
            claimed = tx.execute(
                "SELECT 1 FROM cursors WHERE pipe_id = ? AND chain_seq > start_seq", (pipe_id,)
            ).fetchone()
            arriving = tx.execute(ARRIVING, (pipe_id,)).fetchone()
            if claimed or arriving or pipe.queue_id == queue_id:
                return False
            _leave_totals(tx, WRITE_MERGED, pipe)
            tx.execute("DELETE FROM cursors WHERE pipe_id = ?", (pipe_id,))
            # A new ordinal: the group's floor may have passed the old one.
            tx.execute("DELETE FROM pipes WHERE id = ?", (pipe_id,))
            # A new time, so that merged messages do not expire at once.
            now_ms = self._db.now_ms()
            moved = replace(
                pipe, queue_id=queue_id, group_id=group_id, predecessor="", created_ms=now_ms
            )
            insert_pipe(tx, moved)
            tx.execute(
                "UPDATE queues SET groups_version = groups_version + 1 WHERE id IN (?, ?)",
                (pipe.queue_id, queue_id),
            )
            return True

    def forget(self, pipe_ids: Sequence[str]) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            for pipe_id in pipe_ids:
                gone = tx.execute("DELETE FROM pipes WHERE id = ? AND state = 3", (pipe_id,))
                if gone.rowcount:
                    tx.execute(DROP_PIPE_CLAIMS, (pipe_id, pipe_id))
                    tx.execute("DELETE FROM cursors WHERE pipe_id = ?", (pipe_id,))

    def retired(self, queue_id: str, pipe_id: str = "") -> list[Retired]:
        if pipe_id:
            rows = self._db.read(f"{TOTALS} AND pipe_id = ?", (queue_id, pipe_id))
        else:
            rows = self._db.read(TOTALS, (queue_id,))
        return [Retired(*row) for row in rows]

    def retired_sums(self, queue_id: str) -> list[RetiredSum]:
        return [RetiredSum(*row) for row in self._db.read(SUMS, (queue_id,))]

    def unsealed(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        if queue_ids is None:
            rows = self._db.read(UNSEALED)
        else:
            rows = self._db.read(UNSEALED_OF, (json.dumps(list(queue_ids)),))
        return [pipe_row(row) for row in rows]

    def finished(self, queue_ids: Collection[str] | None = None) -> list[PipeRow]:
        if queue_ids is not None:
            rows = self._db.read(FINISHED_OF, (json.dumps(list(queue_ids)),))
            return [pipe_row(row) for row in rows]
        found: list[PipeRow] = []
        last = -1
        while True:
            ((end,),) = self._db.read(CHUNK_END, (last, _CHUNK))
            if end is None:
                return found
            found += [pipe_row(row) for row in self._db.read(FINISHED, (last, end))]
            last = end
