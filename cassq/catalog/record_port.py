"""The role of the catalog that keeps records: what was pushed once, who is there, how it went.

Nothing here decides who may deliver a message. Dedup ids and incidents are changed by conditional
writes; members, successes and samples are written plainly, and may be lost.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from cassq.model.rows import Dedup, Incident, Member, Sample


class Records(abc.ABC):
    """Deduplication, members, samples, incidents, and notes that all clients share."""

    # --- deduplication ------------------------------------------------------------------------

    @abc.abstractmethod
    def dedup_many(self, rows: Sequence[Dedup], instead_of: Mapping[str, Dedup]) -> list[Dedup]:
        """Write the intents of a queue durably if for each id none is there, or only the one of
        that id in `instead_of`; those that are in the way, and then nothing is written."""

    def dedup(self, row: Dedup, instead_of: Dedup | None = None) -> Dedup:
        """The same for one id, where none is there, or `instead_of`; the intent that is there
        now."""
        before = {} if instead_of is None else {row.dedup_id: instead_of}
        return next(iter(self.dedup_many([row], before)), row)

    @abc.abstractmethod
    def forget_dedups(self, queue_id: str, before_ms: int) -> int:
        """Remove rows older than that; how many."""

    # --- members and successes ----------------------------------------------------------------

    @abc.abstractmethod
    def attend(self, member: Member) -> None:
        """Note that a popper is there. Unsynced."""

    @abc.abstractmethod
    def leave(self, group_id: str, name: str) -> None:
        """A popper has closed."""

    @abc.abstractmethod
    def members(self, group_id: str, since_ms: int) -> list[Member]:
        """The poppers seen since then; older rows are removed in passing."""

    @abc.abstractmethod
    def note_success(self, group_id: str, at_ms: int) -> None:
        """Something of the group was committed. Unsynced."""

    @abc.abstractmethod
    def success_ms(self, group_id: str) -> int:
        """When something of the group was last committed, as far as it was noted; 0: never."""

    # --- samples ------------------------------------------------------------------------------

    @abc.abstractmethod
    def add_samples(self, samples: Sequence[Sample]) -> None:
        """Insert samples; those that are there (subject, step, time) stay. Unsynced."""

    @abc.abstractmethod
    def samples(self, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
        """The samples of a subject from then on, oldest first."""

    @abc.abstractmethod
    def forget_samples(self, step_ms: int, before_ms: int) -> None:
        """Remove samples of a step that are older."""

    # --- incidents ----------------------------------------------------------------------------

    @abc.abstractmethod
    def incidents(self) -> list[Incident]:
        """What alerts have told of and not yet told the end of."""

    @abc.abstractmethod
    def put_incident(self, incident: Incident) -> bool:
        """Insert (version 0) or change an incident if its version is still the row's."""

    @abc.abstractmethod
    def drop_incident(self, incident: Incident) -> bool:
        """Remove an incident if its version is still the row's."""

    # --- notes --------------------------------------------------------------------------------

    @abc.abstractmethod
    def note(self, key: str, value: str) -> str:
        """What all clients of this catalog have in common under a key: `value` if nothing was
        noted yet, and then durably noted; what is noted. Cost: a read; once a conditional write."""

    @abc.abstractmethod
    def identity(self) -> str:
        """What this catalog is: a name given to it when it was made, and to no other. A sidecar
        holds extents of one catalog. Cost: a read, the first time."""
