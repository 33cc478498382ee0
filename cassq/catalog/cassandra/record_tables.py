"""Records in Cassandra: dedup ids, members, successes, samples, incidents, schedules and notes.

Records that expire are stored in slices of time. The slices in use are listed, so that no read
looks for one that does not exist; a slice is removed as a whole. A stored horizon hides expired
samples in a slice that is still in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cassq.base.clock import contended
from cassq.cassandra.session import Statement
from cassq.cassandra.tries import UNSURE_MAX
from cassq.catalog.cassandra.notes import Notes
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.tombstones import SETTLED_US
from cassq.catalog.record_port import Records
from cassq.errors import BackendTimeoutError
from cassq.model.rows import Dedup, Incident, Member, Sample
from cassq.model.schedules import ScheduleRow, decoded, encoded

MEMBER_KEPT_MS = 3_600_000
DEDUP_SLICE_MS = 600_000
SAMPLES_PER_SLICE = 1_440
NEXT_MAX = 1_000

_DEDUP = "queue_id, dedup_id, pipe_id, seq, at_ms"
# One dedup id, by key.
DEDUP = f"SELECT {_DEDUP} FROM dedups WHERE queue_id = ? AND dedup_id = ?"
ADD_DEDUP = f"INSERT INTO dedups ({_DEDUP}) VALUES (?, ?, ?, ?, ?) IF NOT EXISTS"
CHANGE_DEDUP = (
    "UPDATE dedups SET pipe_id = ?, seq = ?, at_ms = ? WHERE queue_id = ? AND dedup_id = ?"
    " IF pipe_id = ? AND seq = ? AND at_ms = ?"
)
DROP_DEDUP = (
    "DELETE FROM dedups WHERE queue_id = ? AND dedup_id = ?"
    " IF pipe_id = ? AND seq = ? AND at_ms = ?"
)
DROP_OLD_DEDUP = "DELETE FROM dedups WHERE queue_id = ? AND dedup_id = ? IF at_ms < ?"
# Dedup ids by time, and the slices of them.
NOTE_DEDUP = "INSERT INTO dedup_times (queue_id, slice, dedup_id, at_ms) VALUES (?, ?, ?, ?)"
DEDUPS_OF = "SELECT dedup_id FROM dedup_times WHERE queue_id = ? AND slice = ? AND at_ms < ?"
# Removes old ones: range tombstones that cover one another.
UNNOTE_DEDUPS = (
    "DELETE FROM dedup_times USING TIMESTAMP ? WHERE queue_id = ? AND slice = ? AND at_ms < ?"
)
DROP_DEDUP_SLICE = "DELETE FROM dedup_times WHERE queue_id = ? AND slice = ?"
NOTE_DEDUP_SLICE = "INSERT INTO dedup_slices (queue_id, slice) VALUES (?, ?)"
DEDUP_SLICES = "SELECT slice FROM dedup_slices WHERE queue_id = ?"
COVER_DEDUP_SLICES = (
    "DELETE FROM dedup_slices USING TIMESTAMP ? WHERE queue_id = ? AND slice > ? AND slice < ?"
)
UNNOTE_DEDUP_SLICE = "DELETE FROM dedup_slices WHERE queue_id = ? AND slice = ?"

ATTEND = "INSERT INTO members (group_id, name, seen_ms, waiting) VALUES (?, ?, ?, ?)"
LEAVE = "DELETE FROM members WHERE group_id = ? AND name = ?"
COVER_MEMBERS = "DELETE FROM members USING TIMESTAMP ? WHERE group_id = ? AND name > ? AND name < ?"
# The members of one group: its partition.
MEMBERS = "SELECT group_id, name, seen_ms, waiting FROM members WHERE group_id = ?"
DROP_MEMBERS = "DELETE FROM members WHERE group_id = ?"
# Whether a group exists, according to a hint.
IS_GROUP = "SELECT name FROM group_places WHERE group_id = ?"

# The timestamp is the value itself, so that the latest value wins in any order of writes.
NOTE_SUCCESS = "INSERT INTO group_success (group_id, success_ms) VALUES (?, ?) USING TIMESTAMP ?"
SUCCESS = "SELECT success_ms FROM group_success WHERE group_id = ?"
DROP_SUCCESS = "DELETE FROM group_success WHERE group_id = ?"

ADD_SAMPLE = (
    "INSERT INTO samples (subject, step_ms, slice, at_ms, data) VALUES (?, ?, ?, ?, ?)"
    " IF NOT EXISTS"
)
# A subject's samples in a slice: a range of its partition.
SAMPLES = (
    "SELECT subject, step_ms, at_ms, data FROM samples"
    " WHERE subject = ? AND step_ms = ? AND slice = ? AND at_ms >= ?"
)
DROP_SAMPLES = "DELETE FROM samples WHERE subject = ? AND step_ms = ? AND slice = ?"
# The slices in use of a step, and of all steps; and the subjects in a slice.
NOTE_SAMPLE_SLICE = "INSERT INTO sample_steps (all_of, step_ms, slice) VALUES (0, ?, ?)"
SAMPLE_SLICES = "SELECT slice FROM sample_steps WHERE all_of = 0 AND step_ms = ? AND slice >= ?"
ALL_SAMPLE_SLICES = "SELECT step_ms, slice FROM sample_steps WHERE all_of = 0"
UNNOTE_SAMPLE_SLICE = "DELETE FROM sample_steps WHERE all_of = 0 AND step_ms = ? AND slice = ?"
NOTE_SUBJECT = "INSERT INTO sample_slices (step_ms, slice, subject) VALUES (?, ?, ?)"
SUBJECTS = "SELECT subject FROM sample_slices WHERE step_ms = ? AND slice = ?"
DROP_SUBJECTS = "DELETE FROM sample_slices WHERE step_ms = ? AND slice = ?"
UNNOTE_SUBJECT = "DELETE FROM sample_slices WHERE step_ms = ? AND slice = ? AND subject = ?"
# Samples of a step below it are expired. As with successes, the latest value wins.
HORIZON = "SELECT at_ms FROM sample_horizons WHERE step_ms = ?"
RAISE_HORIZON = "INSERT INTO sample_horizons (step_ms, at_ms) VALUES (?, ?) USING TIMESTAMP ?"

_INCIDENT = "key, since_ms, told_ms, data, version"
INCIDENTS = f"SELECT {_INCIDENT} FROM incidents WHERE all_of = 0"
INCIDENT = f"{INCIDENTS} AND key = ?"
ADD_INCIDENT = (
    f"INSERT INTO incidents (all_of, {_INCIDENT}) VALUES (0, ?, ?, ?, ?, 1) IF NOT EXISTS"
)
CHANGE_INCIDENT = (
    "UPDATE incidents SET since_ms = ?, told_ms = ?, data = ?, version = ?"
    " WHERE all_of = 0 AND key = ? IF version = ?"
)
DROP_INCIDENT = "DELETE FROM incidents WHERE all_of = 0 AND key = ? IF version = ?"

# Schedules are a partition of their own in the table of incidents, which earlier versions do not
# read: so keyspaces need no change. Conditional writes of one schedule, by key.
SCHEDULES = "SELECT data FROM incidents WHERE all_of = 1"
SCHEDULE = f"{SCHEDULES} AND key = ?"
ADD_SCHEDULE = "INSERT INTO incidents (all_of, key, data) VALUES (1, ?, ?) IF NOT EXISTS"
CHANGE_SCHEDULE = "UPDATE incidents SET data = ? WHERE all_of = 1 AND key = ? IF data = ?"
DROP_SCHEDULE = "DELETE FROM incidents WHERE all_of = 1 AND key = ? IF data = ?"


class CassandraRecords(Records):
    """Records of pushes, poppers and the past."""

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace
        self._cql = keyspace.cql
        self._gaps = keyspace.gaps
        # The newest slice of dedup ids that we listed, by queue; the same for subjects of samples.
        self._dedup_slices: dict[str, int] = {}
        self._sample_slices: dict[tuple[str, int], int] = {}
        self._identity = ""

    # --- deduplication ------------------------------------------------------------------------

    def dedup(self, row: Dedup, instead_of: Dedup | None = None) -> Dedup:
        """Cost: a hint, one conditional write; a read if there is another intent."""
        self._note_dedups([row])

        def is_ours() -> bool:
            return self._dedups([row], serial=True) == {row.dedup_id: row}

        old = instead_of
        for _ in self._cql.attempts():
            if self._cql.apply_settled(*_put(row, old), is_ours):
                return row
            old = self._dedups([row], serial=False).get(row.dedup_id)
            if old not in (None, instead_of):
                return old
        raise contended(f"dedup id {row.dedup_id!r}")

    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        """Cost: a hint, a read and a conditional write per id, each concurrently.

        Each id is its own partition: if one turns out to be taken after others were written, those
        are restored. Until then other clients see them as after a crash: as intents.
        """
        self._note_dedups(rows)
        written: dict[str, Dedup | None] = {}  # by id: the intent before
        serial = False
        for _ in self._cql.attempts():
            found = self._dedups(rows, serial=serial)
            taken = [
                there
                for row in rows
                if (there := found.get(row.dedup_id)) not in (None, row)
                and there != instead_of.get(row.dedup_id)
            ]
            if taken:
                self._put_back([row for row in rows if row.dedup_id in written], written)
                return [there for there in taken if there is not None]
            left = [row for row in rows if found.get(row.dedup_id) != row]
            if not left:
                return []
            written |= {row.dedup_id: found.get(row.dedup_id) for row in left}
            outcomes = self._cql.apply_many([_put(row, found.get(row.dedup_id)) for row in left])
            if all(outcomes):
                return []
            serial = None in outcomes
        raise contended("a dedup id")

    def _put_back(self, rows: Sequence[Dedup], before: Mapping[str, Dedup | None]) -> None:
        """Undo our intents. Raises if the outcome is unknown: a place that one of them still names
        must not be given to another message."""
        for _ in self._cql.attempts(UNSURE_MAX):
            found = self._dedups(rows, serial=True)
            rows = [row for row in rows if found.get(row.dedup_id) == row]
            if not rows:
                return
            self._cql.apply_many([_undo(row, before[row.dedup_id]) for row in rows])
        raise BackendTimeoutError("dedup ids could not be restored")

    def _dedups(self, rows: Sequence[Dedup], *, serial: bool) -> dict[str, Dedup]:
        """The current intents, by id."""
        keys = [(row.queue_id, row.dedup_id) for row in rows]
        found = self._cql.read_many([(DEDUP, key) for key in keys], serial=serial)
        return {each[0][1]: Dedup(*each[0]) for each in found if each}

    def _note_dedups(self, rows: Sequence[Dedup]) -> None:
        """List ids by time, and their slice if it is new."""
        slices = {(row.queue_id, row.at_ms // DEDUP_SLICE_MS) for row in rows}
        new = [key for key in slices if self._dedup_slices.get(key[0]) != key[1]]
        self._cql.write_many([(NOTE_DEDUP_SLICE, key) for key in new])
        self._dedup_slices.update(new)
        self._cql.write_many(
            [
                (NOTE_DEDUP, (r.queue_id, r.at_ms // DEDUP_SLICE_MS, r.dedup_id, r.at_ms))
                for r in rows
            ]
        )

    def find_dedup(self, queue_id: str, dedup_id: str) -> Dedup | None:
        rows = self._cql.read(DEDUP, (queue_id, dedup_id), serial=True)
        return Dedup(*rows[0]) if rows else None

    def forget_dedups(self, queue_id: str, before_ms: int) -> int:
        """Cost: a read, one more for each slice that is old enough, a conditional write per id."""
        asked_us = self._cql.stamp()
        slices = [slice_ for (slice_,) in self._cql.read(DEDUP_SLICES, (queue_id,))]
        self._gaps.read(COVER_DEDUP_SLICES, (queue_id,), slices, asked_us, int)
        slices = [slice_ for slice_ in slices if slice_ <= before_ms // DEDUP_SLICE_MS]
        listed = self._cql.read_many(
            [(DEDUPS_OF, (queue_id, slice_, before_ms)) for slice_ in slices]
        )
        forgotten = 0
        for slice_, rows in zip(slices, listed, strict=True):
            old = [dedup_id for (dedup_id,) in rows]
            dropped = self._cql.apply_many(
                [(DROP_OLD_DEDUP, (queue_id, dedup_id, before_ms)) for dedup_id in old]
            )
            forgotten += sum(1 for answer in dropped if answer)
            if None in dropped:
                continue  # the hints stay for the next time
            # Hints of a slice may still arrive some time after its end.
            if (slice_ + 2) * DEDUP_SLICE_MS <= before_ms:
                self._drop_dedup_slice(queue_id, slice_)
            elif old:
                # Hints that arrived just now may not have been listed: they stay.
                before_us = self._cql.not_ahead(asked_us) - SETTLED_US
                self._cql.write(UNNOTE_DEDUPS, (before_us, queue_id, slice_, before_ms))
        return forgotten

    def _drop_dedup_slice(self, queue_id: str, slice_: int) -> None:
        self._cql.write(DROP_DEDUP_SLICE, (queue_id, slice_))
        self._cql.write(UNNOTE_DEDUP_SLICE, (queue_id, slice_))

    # --- members and successes ----------------------------------------------------------------

    def attend(self, member: Member) -> None:
        """Cost: one write; the row expires after two hours."""
        self._cql.write(ATTEND, (member.group_id, member.name, member.seen_ms, member.waiting))

    def leave(self, group_id: str, name: str) -> None:
        """Cost: one write."""
        self._cql.write(LEAVE, (group_id, name))

    def members(self, group_id: str, since_ms: int) -> list[Member]:
        """Cost: two concurrent reads."""
        asked_us = self._cql.stamp()
        group, rows = self._cql.read_many([(IS_GROUP, (group_id,)), (MEMBERS, (group_id,))])
        self._gaps.read(COVER_MEMBERS, (group_id,), [row[1] for row in rows], asked_us)
        if not group:
            return []
        members = [Member(*row) for row in rows]
        stale = [each for each in members if each.seen_ms < since_ms - MEMBER_KEPT_MS]
        self._cql.write_many([(LEAVE, (group_id, each.name)) for each in stale])
        return [each for each in members if each.seen_ms >= since_ms]

    def note_success(self, group_id: str, at_ms: int) -> None:
        """Cost: a read, one write."""
        if self._cql.read(IS_GROUP, (group_id,)):
            self._cql.write(NOTE_SUCCESS, (group_id, at_ms, at_ms * 1000))

    def success_ms(self, group_id: str) -> int:
        """Cost: two concurrent reads."""
        group, rows = self._cql.read_many([(IS_GROUP, (group_id,)), (SUCCESS, (group_id,))])
        return int(rows[0][0]) if group and rows else 0

    def forget_group(self, group_id: str) -> None:
        """Remove a deleted group's members, success and samples."""
        self._cql.write_many([(DROP_MEMBERS, (group_id,)), (DROP_SUCCESS, (group_id,))])
        self._forget_samples_of([group_id])

    # --- samples ------------------------------------------------------------------------------

    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Cost: now and then a hint per subject; a conditional write per sample, concurrently."""
        self._note_slices(samples)
        added = [(ADD_SAMPLE, _sample_values(each)) for each in samples]
        self._cql.apply_all(added, "samples are stored")

    def add_next(self, sample: Sample) -> None:
        """Add a sample at its own time or the next free one after it, unless one with its data is
        there. Cost: for each time that is tried, that of `add_samples` and `samples`."""
        for at_ms in range(sample.at_ms, sample.at_ms + NEXT_MAX):
            self.add_samples([replace(sample, at_ms=at_ms)])
            later = self.samples(sample.subject, sample.step_ms, at_ms)
            if any(each.data == sample.data for each in later):
                return
        raise contended(f"the samples of {sample.subject}")

    def _note_slices(self, samples: Iterable[Sample]) -> None:
        hints: list[Statement] = []
        for sample in samples:
            slice_ = _slice(sample.step_ms, sample.at_ms)
            key = sample.subject, sample.step_ms
            if self._sample_slices.get(key) != slice_:
                hints.append((NOTE_SAMPLE_SLICE, (sample.step_ms, slice_)))
                hints.append((NOTE_SUBJECT, (sample.step_ms, slice_, sample.subject)))
        self._cql.write_many(hints)
        for sample in samples:
            slice_ = _slice(sample.step_ms, sample.at_ms)
            self._sample_slices[sample.subject, sample.step_ms] = slice_

    def samples(self, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
        """Cost: two concurrent reads, then one per slice, concurrently."""
        first = _slice(step_ms, since_ms)
        slices, horizon = self._cql.read_many(
            [(SAMPLE_SLICES, (step_ms, first)), (HORIZON, (step_ms,))]
        )
        since_ms = max(since_ms, horizon[0][0] if horizon else 0)
        found = self._cql.read_many(
            [(SAMPLES, (subject, step_ms, slice_, since_ms)) for (slice_,) in slices]
        )
        return [Sample(*row) for rows in found for row in rows]

    def forget_samples(self, step_ms: int, before_ms: int) -> None:
        """Cost: a read, a write; for each expired slice a read, and a write per subject."""
        self._cql.write(RAISE_HORIZON, (step_ms, before_ms, before_ms * 1000))
        over = _slice(step_ms, before_ms)
        slices = [row[0] for row in self._cql.read(SAMPLE_SLICES, (step_ms, 0)) if row[0] < over]
        for slice_ in slices:
            subjects = self._cql.read(SUBJECTS, (step_ms, slice_))
            self._cql.write_many([(DROP_SAMPLES, (name, step_ms, slice_)) for (name,) in subjects])
            self._cql.write(DROP_SUBJECTS, (step_ms, slice_))
            self._cql.write(UNNOTE_SAMPLE_SLICE, (step_ms, slice_))

    def _forget_samples_of(self, subjects: Sequence[str]) -> None:
        for step_ms, slice_ in self._cql.read(ALL_SAMPLE_SLICES):
            for subject in subjects:
                self._sample_slices.pop((subject, step_ms), None)
                self._cql.write_many(
                    [
                        (DROP_SAMPLES, (subject, step_ms, slice_)),
                        (UNNOTE_SUBJECT, (step_ms, slice_, subject)),
                    ]
                )

    # --- incidents ----------------------------------------------------------------------------

    def incidents(self) -> list[Incident]:
        """Cost: one read."""
        return [Incident(*row) for row in self._cql.read(INCIDENTS)]

    def put_incident(self, incident: Incident) -> bool:
        """Cost: one conditional write."""
        new = (incident.since_ms, incident.told_ms, incident.data)
        old = incident.version

        def is_ours() -> bool:
            rows = self._cql.read(INCIDENT, (incident.key,), serial=True)
            return rows == [(incident.key, *new, old + 1)]

        if old == 0:
            return self._cql.apply_settled(ADD_INCIDENT, (incident.key, *new), is_ours)
        values = (*new, old + 1, incident.key, old)
        return self._cql.apply_settled(CHANGE_INCIDENT, values, is_ours)

    def drop_incident(self, incident: Incident) -> bool:
        """Cost: one conditional write."""
        values = (incident.key, incident.version)

        def is_gone() -> bool:
            return not self._cql.read(INCIDENT, (incident.key,), serial=True)

        return self._cql.apply_settled(DROP_INCIDENT, values, is_gone)

    # --- schedules ----------------------------------------------------------------------------

    def schedules(self) -> list[ScheduleRow]:
        """Cost: one read."""
        return [decoded(text) for (text,) in self._cql.read(SCHEDULES)]

    def schedule(self, name: str) -> ScheduleRow | None:
        """Cost: one read, which sees every conditional write that was answered."""
        text = self._schedule_text(name)
        return None if text is None else decoded(text)

    def add_schedule(self, row: ScheduleRow) -> bool:
        """Cost: one conditional write."""
        return self._schedule_written(ADD_SCHEDULE, (row.name, encoded(row)), row.name, row)

    def change_schedule(self, old: ScheduleRow, new: ScheduleRow) -> bool:
        """Cost: one conditional write."""
        values = (encoded(new), old.name, encoded(old))
        return self._schedule_written(CHANGE_SCHEDULE, values, old.name, new)

    def drop_schedule(self, row: ScheduleRow) -> bool:
        """Cost: one conditional write."""
        return self._schedule_written(DROP_SCHEDULE, (row.name, encoded(row)), row.name, None)

    def _schedule_written(
        self, statement: str, values: tuple[str, ...], name: str, wanted: ScheduleRow | None
    ) -> bool:
        """Do a conditional write; if it got no answer, check whether the wanted row is there."""
        text = None if wanted is None else encoded(wanted)
        return self._cql.apply_settled(statement, values, lambda: self._schedule_text(name) == text)

    def _schedule_text(self, name: str) -> str | None:
        rows = self._cql.read(SCHEDULE, (name,), serial=True)
        return rows[0][0] if rows else None

    # --- notes ------------------------------------------------------------------------------------

    def note(self, key: str, value: str) -> str:
        return Notes(self._cql).note(key, value)

    def identity(self) -> str:
        if not self._identity:
            self._identity = self.note("identity", self._keyspace.ids.new(self._keyspace.now_ms()))
        return self._identity

    # --- deleted queues -----------------------------------------------------------------------

    def forget_queue(self, queue_id: str) -> None:
        """Remove the dedup ids and samples of a deleted queue."""
        everything_ms = 1 << 62
        self.forget_dedups(queue_id, everything_ms)
        self._dedup_slices.pop(queue_id, None)
        self._forget_samples_of([queue_id])


def _put(row: Dedup, old: Dedup | None) -> Statement:
    """The statement that writes an intent if there is none, or instead of `old`."""
    if old is None:
        return ADD_DEDUP, (row.queue_id, row.dedup_id, row.pipe_id, row.seq, row.at_ms)
    new = (row.pipe_id, row.seq, row.at_ms, row.queue_id, row.dedup_id)
    return CHANGE_DEDUP, (*new, old.pipe_id, old.seq, old.at_ms)


def _undo(row: Dedup, old: Dedup | None) -> Statement:
    """The statement that undoes `_put`, if the intent is still there."""
    if old is not None:
        return _put(old, row)
    return DROP_DEDUP, (row.queue_id, row.dedup_id, row.pipe_id, row.seq, row.at_ms)


def _sample_values(sample: Sample) -> tuple[str, int, int, int, str]:
    slice_ = _slice(sample.step_ms, sample.at_ms)
    return sample.subject, sample.step_ms, slice_, sample.at_ms, sample.data


def _slice(step_ms: int, at_ms: int) -> int:
    return at_ms // (step_ms * SAMPLES_PER_SLICE)
