"""What the parts of the Cassandra catalog ask of one another, and share."""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping, Sequence

from cassq.base.clock import Clock
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra.partition.gaps import Gaps
from cassq.catalog.cassandra.partition.pipe_rows import Pipe
from cassq.catalog.port import Catalog
from cassq.errors import BackendTimeoutError
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, PipeRow, QueueRow

TRIES = 50  # at a compare-and-set that others win


def contended(what: str) -> BackendTimeoutError:
    """A compare-and-set that others won too often."""
    return BackendTimeoutError(f"{what} was changed by others again and again", hint="try again")


class Parts(Catalog):
    """The session that all parts use, and the verbs that are not in the port."""

    _cql: Cql
    _clock: Clock
    _gaps: Gaps

    # --- of queues: in queue_tables -----------------------------------------------------------

    @abc.abstractmethod
    def _queue_and_groups(self, queue_id: str) -> tuple[QueueRow | None, list[GroupRow]]:
        """A queue with its groups by name, of one moment. Cost: one read of one partition."""

    @abc.abstractmethod
    def _queues_and_groups(
        self, queue_ids: Sequence[str]
    ) -> list[tuple[QueueRow | None, list[GroupRow]]]:
        """The same of several queues. Cost: one read each, side by side."""

    @abc.abstractmethod
    def _listed_queues(self) -> list[str]:
        """The ids of all queues that may be there. Cost: 16 reads side by side."""

    @abc.abstractmethod
    def _group(self, group_id: str) -> GroupRow | None:
        """The group of that id. Cost: two reads."""

    @abc.abstractmethod
    def _raise_groups_version(self, queue_id: str, expected: int) -> bool:
        """`groups_version` becomes `expected` + 1 if it is `expected` and the queue is not
        deleted. Cost: one conditional write. With an unknown outcome it raises."""

    # --- of leases: in lease_tables -----------------------------------------------------------

    @abc.abstractmethod
    def _forget_locks(self, names: Collection[str]) -> None:
        """Remove the leases of pipes that are gone. Cost: a conditional write each."""

    # --- of pipes: in pipe_tables -------------------------------------------------------------

    @abc.abstractmethod
    def _consume_pipes(self, queue_id: str) -> list[str]:
        """Make every pipe of a deleted queue consumed; the ids of all whose rows are there."""

    @abc.abstractmethod
    def _has_pipes(self, queue_id: str) -> bool:
        """Whether a queue has any pipe, consumed ones included."""

    @abc.abstractmethod
    def _forget_pipe_records(self, queue_id: str) -> None:
        """Remove the listing of a deleted queue's pipes, and the totals of its retired ones."""

    @abc.abstractmethod
    def _consume_pipes_of(self, queue_id: str, group_id: str) -> None:
        """Make the pipes that are for one group alone consumed."""

    @abc.abstractmethod
    def _insert(self, row: PipeRow) -> bool:
        """Write a pipe's own row; whether it is ours, and not another's of the same id."""

    @abc.abstractmethod
    def _home(self, row: PipeRow) -> QueueRow | None:
        """The queue of a pipe; None when that, or the group the pipe is for, is no more."""

    @abc.abstractmethod
    def _consume(self, pipe_ids: Iterable[str], queue_id: str) -> None:
        """Make pipes of a queue consumed, whatever their state."""

    @abc.abstractmethod
    def _pipe_record(self, pipe_id: str) -> Pipe | None:
        """A pipe's own row. Cost: one read."""

    @abc.abstractmethod
    def _pipe_records(self, pipe_ids: Sequence[str]) -> list[Pipe | None]:
        """The same of several. Cost: one read each, side by side."""

    @abc.abstractmethod
    def _unmarked(self, pipe: Pipe) -> bool:
        """Whether a pipe bears no mark, now: somebody needs it to stay where it is. Cost: a
        conditional write where it bears one."""

    # --- of writes: in write_tables -----------------------------------------------------------

    @abc.abstractmethod
    def _help_writes(self, noted: Mapping[str, Mapping[str, int]], asked_us: int) -> bool:
        """Go on with what was published some time ago and is not all listed, of the writes that
        are noted for these queues; whether any pipe was listed. asked_us: by `Cql.stamp`, before
        the notes were read. Cost: a read each, side by side."""

    # --- of cursors: in claim_tables ----------------------------------------------------------

    @abc.abstractmethod
    def _start_cursors(self, group: GroupRow, starts: Mapping[str, Place]) -> None:
        """Write the cursors of a group that is about to be created, where those pipes live."""

    @abc.abstractmethod
    def _drop_cursors(self, queue_id: str, group_id: str) -> None:
        """Remove what a deleted (or never created) group has in pipes: cursors, claims, moves,
        removals and their hints; pipes for it alone become consumed. Safe to do again."""

    # --- of records: in record_tables ---------------------------------------------------------

    @abc.abstractmethod
    def _forget_records(self, queue_id: str) -> None:
        """Remove the dedup ids and samples of a deleted queue."""

    @abc.abstractmethod
    def _forget_members(self, group_id: str) -> None:
        """Remove what is known of a deleted group's poppers, success and past."""
