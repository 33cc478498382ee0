"""Records in SQLite: dedup ids, members, successes, samples, incidents, schedules and notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from sqlite3 import Connection
from typing import TYPE_CHECKING

from cassq.base.ids import Ids
from cassq.catalog.record_port import Records
from cassq.catalog.sqlite.database import Database
from cassq.model.rows import Dedup, Incident, Member, Sample

if TYPE_CHECKING:
    from cassq.model.schedules import ScheduleRow

MEMBER_KEPT_MS = 3_600_000

# The row of one dedup id, by key.
DEDUP = (
    "SELECT queue_id, dedup_id, pipe_id, seq, at_ms FROM dedups WHERE queue_id = ? AND dedup_id = ?"
)
PUT_DEDUP = (
    "INSERT OR REPLACE INTO dedups (queue_id, dedup_id, pipe_id, seq, at_ms) VALUES (?, ?, ?, ?, ?)"
)
# The same for ids that have no rows yet.
ADD_DEDUP = PUT_DEDUP.replace("OR REPLACE", "OR IGNORE")
# Several rows in one statement, because a statement costs more than a row.
ROWS_AT_ONCE = 10
ADD_DEDUPS = ADD_DEDUP + ", (?, ?, ?, ?, ?)" * (ROWS_AT_ONCE - 1)
# Removes old ids: a range of their index by time.
FORGET_DEDUPS = "DELETE FROM dedups WHERE queue_id = ? AND at_ms < ?"
ATTEND = """
INSERT OR REPLACE INTO members (group_id, name, seen_ms, waiting)
SELECT ?1, ?2, ?3, ?4 WHERE EXISTS (SELECT 1 FROM groups WHERE id = ?1)"""
# The members of one group: a range of the key.
MEMBERS = (
    "SELECT group_id, name, seen_ms, waiting FROM members"
    " WHERE group_id = ? AND seen_ms >= ? ORDER BY name"
)
# The condition avoids needless writes.
NOTE_SUCCESS = "UPDATE groups SET success_ms = ?1 WHERE id = ?2 AND success_ms < ?1"
ADD_SAMPLE = "INSERT OR IGNORE INTO samples (subject, step_ms, at_ms, data) VALUES (?, ?, ?, ?)"
# One subject's samples: a range of the key.
SAMPLES = (
    "SELECT subject, step_ms, at_ms, data FROM samples"
    " WHERE subject = ? AND step_ms = ? AND at_ms >= ? ORDER BY at_ms"
)
# Schedules are among the notes, so that directories of earlier versions have room for them, and
# earlier versions still open this one. They are a range of the key.
SCHEDULES = "SELECT value FROM meta WHERE key >= 'schedule:' AND key < 'schedule;' ORDER BY key"
SCHEDULE = "SELECT value FROM meta WHERE key = 'schedule:' || ?"
# Conditional writes of one schedule, by key.
ADD_SCHEDULE = "INSERT OR IGNORE INTO meta (key, value) VALUES ('schedule:' || ?1, ?2)"
CHANGE_SCHEDULE = "UPDATE meta SET value = ?3 WHERE key = 'schedule:' || ?1 AND value = ?2"
DROP_SCHEDULE = "DELETE FROM meta WHERE key = 'schedule:' || ?1 AND value = ?2"
# Notes, by key; the first client sets one.
NOTED = "SELECT value FROM meta WHERE key = ?"
NOTE = "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)"


class SqliteRecords(Records):
    """Records of pushes, poppers and the past."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._identity = ""

    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        with self._db.lock, self._db.write(synced=True) as tx:
            values = [(r.queue_id, r.dedup_id, r.pipe_id, r.seq, r.at_ms) for r in rows]
            tx.execute("SAVEPOINT before")
            if _added(tx, values) == len(rows):
                return []  # nearly always: most ids are new
            tx.execute("ROLLBACK TO before")
            taken: list[Dedup] = []
            for row in rows:
                found = tx.execute(DEDUP, (row.queue_id, row.dedup_id)).fetchone()
                if found and Dedup(*found) not in (row, instead_of.get(row.dedup_id)):
                    taken.append(Dedup(*found))
            if not taken:
                tx.executemany(PUT_DEDUP, values)
            return taken

    def find_dedup(self, queue_id: str, dedup_id: str) -> Dedup | None:
        rows = self._db.read(DEDUP, (queue_id, dedup_id))
        return Dedup(*rows[0]) if rows else None

    def forget_dedups(self, queue_id: str, before_ms: int) -> int:
        with self._db.lock, self._db.write(synced=False) as tx:
            return tx.execute(FORGET_DEDUPS, (queue_id, before_ms)).rowcount

    def attend(self, member: Member) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            values = (member.group_id, member.name, member.seen_ms, int(member.waiting))
            tx.execute(ATTEND, values)

    def leave(self, group_id: str, name: str) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute("DELETE FROM members WHERE group_id = ? AND name = ?", (group_id, name))

    def members(self, group_id: str, since_ms: int) -> list[Member]:
        rows = self._db.read(MEMBERS, (group_id, since_ms))
        stale = self._db.read(
            "SELECT 1 FROM members WHERE group_id = ? AND seen_ms < ? LIMIT 1",
            (group_id, since_ms - MEMBER_KEPT_MS),
        )
        if stale:
            with self._db.lock, self._db.write(synced=False) as tx:
                tx.execute(
                    "DELETE FROM members WHERE group_id = ? AND seen_ms < ?",
                    (group_id, since_ms - MEMBER_KEPT_MS),
                )
        return [Member(row[0], row[1], row[2], bool(row[3])) for row in rows]

    def note_success(self, group_id: str, at_ms: int) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute(NOTE_SUCCESS, (at_ms, group_id))

    def success_ms(self, group_id: str) -> int:
        rows = self._db.read("SELECT success_ms FROM groups WHERE id = ?", (group_id,))
        return int(rows[0][0]) if rows else 0

    def add_samples(self, samples: Sequence[Sample]) -> None:
        if samples:
            with self._db.lock, self._db.write(synced=False) as tx:
                tx.executemany(
                    ADD_SAMPLE, [(s.subject, s.step_ms, s.at_ms, s.data) for s in samples]
                )

    def samples(self, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
        return [Sample(*row) for row in self._db.read(SAMPLES, (subject, step_ms, since_ms))]

    def forget_samples(self, step_ms: int, before_ms: int) -> None:
        with self._db.lock, self._db.write(synced=False) as tx:
            tx.execute("DELETE FROM samples WHERE step_ms = ? AND at_ms < ?", (step_ms, before_ms))

    def incidents(self) -> list[Incident]:
        rows = self._db.read("SELECT key, since_ms, told_ms, data, version FROM incidents")
        return [Incident(*row) for row in rows]

    def put_incident(self, incident: Incident) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            values = (incident.key, incident.since_ms, incident.told_ms, incident.data)
            if incident.version == 0:
                added = tx.execute(
                    "INSERT OR IGNORE INTO incidents (key, since_ms, told_ms, data, version)"
                    " VALUES (?, ?, ?, ?, 1)",
                    values,
                )
                return added.rowcount == 1
            changed = tx.execute(
                "UPDATE incidents SET since_ms = ?2, told_ms = ?3, data = ?4,"
                " version = version + 1 WHERE key = ?1 AND version = ?5",
                (*values, incident.version),
            )
            return changed.rowcount == 1

    def drop_incident(self, incident: Incident) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            gone = tx.execute(
                "DELETE FROM incidents WHERE key = ? AND version = ?",
                (incident.key, incident.version),
            )
            return gone.rowcount == 1

    def schedules(self) -> list[ScheduleRow]:
        return [_decoded(row[0]) for row in self._db.read(SCHEDULES)]

    def schedule(self, name: str) -> ScheduleRow | None:
        rows = self._db.read(SCHEDULE, (name,))
        return _decoded(rows[0][0]) if rows else None

    def add_schedule(self, row: ScheduleRow) -> bool:
        return self._schedule_written(ADD_SCHEDULE, row.name, _encoded(row))

    def change_schedule(self, old: ScheduleRow, new: ScheduleRow) -> bool:
        return self._schedule_written(CHANGE_SCHEDULE, old.name, _encoded(old), _encoded(new))

    def drop_schedule(self, row: ScheduleRow) -> bool:
        return self._schedule_written(DROP_SCHEDULE, row.name, _encoded(row))

    def _schedule_written(self, statement: str, *values: str) -> bool:
        with self._db.lock, self._db.write(synced=True) as tx:
            return tx.execute(statement, values).rowcount == 1

    def note(self, key: str, value: str) -> str:
        rows = self._db.read(NOTED, (key,))
        if rows:
            return str(rows[0][0])
        with self._db.lock, self._db.write(synced=True) as tx:
            tx.execute(NOTE, (key, value))
            return str(tx.execute(NOTED, (key,)).fetchone()[0])

    def identity(self) -> str:
        if not self._identity:
            self._identity = self.note("identity", Ids().new(self._db.now_ms()))
        return self._identity


def _added(tx: Connection, values: Sequence[tuple[str, str, str, int, int]]) -> int:
    """Add rows for the dedup ids that have none; return how many."""
    last, count = len(values) - len(values) % ROWS_AT_ONCE, 0
    for at in range(0, last, ROWS_AT_ONCE):
        some = chain.from_iterable(values[at : at + ROWS_AT_ONCE])
        count += tx.execute(ADD_DEDUPS, tuple(some)).rowcount
    for value in values[last:]:
        count += tx.execute(ADD_DEDUP, value).rowcount
    return count


# Imported when they are used, as most processes have no schedules.
def _decoded(text: str) -> ScheduleRow:
    from cassq.model.schedules import decoded

    return decoded(text)


def _encoded(row: ScheduleRow) -> str:
    from cassq.model.schedules import encoded

    return encoded(row)
