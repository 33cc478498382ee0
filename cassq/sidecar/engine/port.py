"""The Engine port: where a sidecar keeps its replicas, and what it must never forget.

Changes are made at once and are durable after the next `sync` that begins after them, which may
be called by another thread: one sync serves all that were made before. One thread makes changes.

Invariants, which its contract suite checks:

1. After a crash at any instant everything that a `sync` covered is there, and of what came later
   each extent has a gapless run of frames from the front.
2. An extent that has less than it once had under a returned `sync` is told as damaged, never as
   merely shorter: the ends that were synced are kept outside of what could be lost.
3. Bytes given back are those that were given, or `FrameError` says that they are damaged.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Replica:
    """What one sidecar has of an extent; changed by the engine alone.

    epoch: the greatest it was told. end: the seq after its last frame. acked: below which the
    writer has told that all replicas have it. final: its end for ever, once that was recorded.
    damage: what is wrong with it; empty when nothing is known to be.
    """

    pipe_id: str
    queue_name: str
    strict: bool
    created_ms: int  # wall clock, of the sidecar
    epoch: int
    end: int = 0
    acked: int = 0
    size_bytes: int = 0
    frames: int = 0
    fenced: bool = False  # no append counts any more
    final: int | None = None
    damage: str = ""
    copying: bool = False  # being copied from another sidecar: it may lack what was acknowledged


class Space(NamedTuple):
    """The disk of the data directory, in bytes."""

    free: int
    total: int


class Engine(abc.ABC):
    """Replicas of one data directory."""

    @property
    @abc.abstractmethod
    def generation(self) -> str:
        """Made with the data directory, and never given to another."""

    @abc.abstractmethod
    def replicas(self) -> Mapping[str, Replica]:
        """All replicas by pipe id; a live view. Cost: memory."""

    @abc.abstractmethod
    def create(self, replica: Replica) -> None:
        """A new, empty replica. Not there yet."""

    @abc.abstractmethod
    def append(self, pipe_id: str, base_seq: int, count: int, frame: bytes, acked: int) -> None:
        """Add a frame at the replica's end. acked: noted with it.

        Raises StorageFullError below the limit of free space, and when the disk refuses; then
        nothing more is taken until it was opened anew, for nobody knows what was written.
        """

    @abc.abstractmethod
    def note(self, pipe_id: str, **changes: int | bool | str | None) -> None:
        """Change fields of a replica (epoch, fenced, final, damage, copying), durably with the
        next sync. `acked` is changed in memory alone, and written with what comes next. Damage
        that is noted alone stays told until the engine is closed, also when this fails."""

    @abc.abstractmethod
    def cut(self, pipe_id: str, end: int) -> None:
        """Remove the frames from `end` on; `end` lies between two frames."""

    @abc.abstractmethod
    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Remove replicas and their frames. Space is given back soon after."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return when everything changed before the call is on disk. For any thread."""

    @abc.abstractmethod
    def read(
        self, pipe_id: str, seq: int, end_seq: int, bytes_max: int, frames_max: int
    ) -> list[bytes]:
        """The frames that hold seqs `seq .. end_seq`, whole, from the first on, as many as
        `bytes_max` allows but at least one, verified. Empty when it has none of them. For any
        thread, beside changes.

        Raises FrameError for a damaged frame, unless good ones come before it.
        """

    @abc.abstractmethod
    def frame_at(self, pipe_id: str, base_seq: int) -> bytes | None:
        """The frame that begins at `base_seq`, not verified."""

    @abc.abstractmethod
    def space(self) -> Space:
        """How much room there is. Cost: a call of the system."""

    @property
    @abc.abstractmethod
    def read_only(self) -> bool:
        """Whether appends are refused: for want of space, or after a failed write."""

    @property
    @abc.abstractmethod
    def failure(self) -> str:
        """Why nothing is taken until it is opened anew, if at all: a write or a sync failed, and
        not for want of space. Empty while it is well. What it has is still read."""

    @property
    @abc.abstractmethod
    def starved(self) -> str:
        """As `failure`, of a write or a sync that failed for want of space: with `has_room` it can
        be opened anew."""

    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether one that is starved would find the room it needs when it is opened anew: enough
        to take frames again, and what opening takes. For any thread. Cost: a call of the system;
        where that tells of enough, a file is made for a moment and removed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sync, and give back what is held."""
