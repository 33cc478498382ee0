"""The catalog role for records: dedup ids, members, samples, incidents, schedules, notes.

Nothing here decides which popper may deliver a message. Dedup ids, incidents and schedules change
only by conditional writes; members, successes and samples are written unconditionally, and may be
lost.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cassq.model.rows import Dedup, Incident, Member, Sample

if TYPE_CHECKING:  # most processes have no schedules
    from cassq.model.schedules import ScheduleRow


class Records(abc.ABC):
    """Deduplication, members, samples, incidents, schedules, and notes that all clients share."""

    # --- deduplication ------------------------------------------------------------------------

    @abc.abstractmethod
    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        """Durably write these intents, all of one queue, if no id has an intent yet, other than the
        one in `instead_of`. Otherwise write nothing and return the intents that are in the way."""

    def dedup(self, row: Dedup, instead_of: Dedup | None = None) -> Dedup:
        """`dedup_many` for one id; return the intent that it has now."""
        before = {} if instead_of is None else {row.dedup_id: instead_of}
        return next(iter(self.dedup_many([row], before)), row)

    @abc.abstractmethod
    def find_dedup(self, queue_id: str, dedup_id: str) -> Dedup | None:
        """The intent of an id, if it has one. Cost: one read."""

    @abc.abstractmethod
    def forget_dedups(self, queue_id: str, before_ms: int) -> int:
        """Remove rows older than `before_ms`; return how many."""

    # --- members and successes ----------------------------------------------------------------

    @abc.abstractmethod
    def attend(self, member: Member) -> None:
        """Record that a popper is present. Unsynced."""

    @abc.abstractmethod
    def leave(self, group_id: str, name: str) -> None:
        """Record that a popper has closed."""

    @abc.abstractmethod
    def members(self, group_id: str, since_ms: int) -> list[Member]:
        """The poppers seen since `since_ms`. Also removes older rows."""

    @abc.abstractmethod
    def note_success(self, group_id: str, at_ms: int) -> None:
        """Record that the group committed something. Unsynced."""

    @abc.abstractmethod
    def success_ms(self, group_id: str) -> int:
        """When the group last committed something, as far as it was recorded; 0: never."""

    # --- samples ------------------------------------------------------------------------------

    @abc.abstractmethod
    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Insert samples; existing ones (subject, step, time) stay. Unsynced."""

    @abc.abstractmethod
    def samples(self, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
        """The samples of a subject since `since_ms`, oldest first."""

    @abc.abstractmethod
    def forget_samples(self, step_ms: int, before_ms: int) -> None:
        """Remove samples of a step that are older than `before_ms`."""

    # --- incidents ----------------------------------------------------------------------------

    @abc.abstractmethod
    def incidents(self) -> list[Incident]:
        """Incidents that alerts have announced and whose end they have not announced yet."""

    @abc.abstractmethod
    def put_incident(self, incident: Incident) -> bool:
        """Insert (version 0) or change an incident if the row still has its version."""

    @abc.abstractmethod
    def drop_incident(self, incident: Incident) -> bool:
        """Remove an incident if the row still has its version."""

    # --- schedules ----------------------------------------------------------------------------

    @abc.abstractmethod
    def schedules(self) -> list[ScheduleRow]:
        """All schedules, by name. Cost: one read of their rows."""

    @abc.abstractmethod
    def schedule(self, name: str) -> ScheduleRow | None:
        """The schedule with this name. Cost: one read."""

    @abc.abstractmethod
    def add_schedule(self, row: ScheduleRow) -> bool:
        """Durably insert a schedule; False if its name is taken."""

    @abc.abstractmethod
    def change_schedule(self, old: ScheduleRow, new: ScheduleRow) -> bool:
        """Durably put `new`, of the same name, in place of `old`; False if the row is no longer
        `old`."""

    @abc.abstractmethod
    def drop_schedule(self, row: ScheduleRow) -> bool:
        """Durably remove a schedule; False if its row is no longer this one."""

    # --- notes --------------------------------------------------------------------------------

    @abc.abstractmethod
    def note(self, key: str, value: str) -> str:
        """The value that all clients of this catalog share under a key. If there is none yet,
        `value` is durably written and returned. Cost: a read; once a conditional write."""

    @abc.abstractmethod
    def identity(self) -> str:
        """The unique name this catalog got when it was created. A sidecar holds extents of one
        catalog. Cost: a read, the first time."""
