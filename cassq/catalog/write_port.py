"""The role of the catalog that is about writes: many pipes that become a queue's at once.

A pipe that is added with a `stage` is staged: in no listing, whoever asks, until the row of its
write says that it is published. That row is one compare-and-set; what follows from it, that each
winner is listed and all other pipes of the write are removed, anybody may bring to an end.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence

from cassq.model.rows import Driver, WriteRow


class Writes(abc.ABC):
    """Writes of staged pipes, and the drivers that lead them."""

    @abc.abstractmethod
    def begin(self, wanted: WriteRow) -> WriteRow | None:
        """Open a write durably, or join it, as `cassq.model.rows.begun` says; the row that is
        there now. None when the queue is no more. epoch and state of `wanted` mean nothing."""

    @abc.abstractmethod
    def by_id(self, queue_id: str, write_id: str) -> WriteRow | None:
        """The row of a write."""

    @abc.abstractmethod
    def publish(self, write: WriteRow, pipe_ids: Sequence[str]) -> bool:
        """Make these pipes of a write the queue's, durably, in this order behind all others, and
        the write published, if it is open and of this epoch; False when it is not, or the queue is
        no more. They are staged in it, and have their ends: else it is BrokenInvariantError.

        Once it is True each of them is claimable, or will be without this process.
        """

    @abc.abstractmethod
    def abort(self, write: WriteRow) -> bool:
        """Make a write aborted, durably, if it is open and of this epoch. Its pipes may stay until
        `finish`."""

    @abc.abstractmethod
    def finish(self, write: WriteRow) -> int:
        """Bring to an end what a publish or an abort began, and make what older epochs of the
        write have left consumed; how many pipes were changed. Safe to do again."""

    @abc.abstractmethod
    def unfinished(self, queue_ids: Collection[str] | None = None) -> list[WriteRow]:
        """The writes of these queues (None: of all) that are open, or for which `finish`
        has something to do."""

    @abc.abstractmethod
    def beat_driver(self, driver_id: str, lease_ms: int) -> None:
        """Show that a driver lives. Unsynced. A driver that did not for a day is forgotten."""

    @abc.abstractmethod
    def drivers(self, driver_ids: Collection[str]) -> list[Driver]:
        """Those of these drivers that are known."""
