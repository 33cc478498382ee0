"""The catalog role for writes: many pipes that join a queue at once.

A pipe added with a `stage` is staged: it is in no listing until its write is published. The write's
row decides that, by one compare-and-set. Any client may finish the steps that follow: list each
winner, and remove all other pipes of the write.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Sequence

from cassq.model.rows import Driver, WriteRow


class Writes(abc.ABC):
    """Writes of staged pipes, and the drivers that lead them."""

    @abc.abstractmethod
    def begin(self, wanted: WriteRow) -> WriteRow | None:
        """Durably open a write, or join it, as `cassq.model.rows.begun` says; return the row that
        is there now. None: the queue is gone. epoch and state of `wanted` are ignored."""

    @abc.abstractmethod
    def by_id(self, queue_id: str, write_id: str) -> WriteRow | None:
        """The row of a write."""

    @abc.abstractmethod
    def publish(self, write: WriteRow, pipe_ids: Sequence[str]) -> bool:
        """Durably add these pipes of a write to the queue, in this order behind all others, and
        mark the write published, if it is open and has this epoch; False if not, or if the queue is
        gone. The pipes must be staged in it and have ends, else BrokenInvariantError.

        After True each pipe is claimable, or will become so even if this process ends.
        """

    @abc.abstractmethod
    def abort(self, write: WriteRow) -> bool:
        """Durably abort a write if it is open and has this epoch. Its pipes may stay until
        `finish`."""

    @abc.abstractmethod
    def finish(self, write: WriteRow) -> int:
        """Complete a publish or an abort, and make consumed what older epochs of the
        write left behind; return how many pipes were changed. Safe to repeat."""

    @abc.abstractmethod
    def unfinished(self, queue_ids: Collection[str] | None = None) -> list[WriteRow]:
        """The writes of these queues (None: all) that are open, or for which `finish` has
        something to do."""

    @abc.abstractmethod
    def beat_driver(self, driver_id: str, lease_ms: int) -> None:
        """Record that a driver is alive. Unsynced. A driver silent for a day is forgotten."""

    @abc.abstractmethod
    def drivers(self, driver_ids: Collection[str]) -> list[Driver]:
        """Those of these drivers that are known."""
