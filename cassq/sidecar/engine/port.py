"""The Engine port: where a sidecar keeps its replicas, and which promises it must keep.

Changes take effect at once, and are durable when a `sync` that began after them returns. One thread
makes changes; another may call `sync`, which serves all earlier changes.

Invariants, which its contract suite checks:

1. After a crash at any instant everything that a `sync` covered is there. Of the frames that came
   later, each extent has the first ones, without a gap.
2. An extent that has less than a returned `sync` covered is reported as damaged, never as merely
   shorter: the synced ends are kept outside of what could be lost.
3. Bytes returned are those that were written, or `FrameError` says that they are damaged.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Replica:
    """One sidecar's replica of an extent; only the engine changes it.

    epoch: the greatest one seen. end: the seq after its last frame. acked: the writer has reported
    that all replicas have everything below it. final: its recorded, final end. damage: what is
    wrong with it; empty when no damage is known. behind: the only damage is that it lacks its last
    messages; what it has is good.
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
    behind: bool = False


class Space(NamedTuple):
    """The disk of the data directory, in bytes."""

    free: int
    total: int


def is_report(changes: Mapping[str, object]) -> bool:
    """Whether changes of a replica report damage, and nothing else."""
    return bool(changes.get("damage")) and changes.keys() <= {"damage", "behind"}


class Engine(abc.ABC):
    """Replicas of one data directory."""

    @property
    @abc.abstractmethod
    def generation(self) -> str:
        """An ID made with the data directory, and never reused."""

    @abc.abstractmethod
    def replicas(self) -> Mapping[str, Replica]:
        """All replicas by pipe id; a live view. Cost: memory."""

    @abc.abstractmethod
    def create(self, replica: Replica) -> None:
        """Add a new, empty replica, which must not exist yet."""

    @abc.abstractmethod
    def append(self, pipe_id: str, base_seq: int, count: int, frame: bytes, acked: int) -> None:
        """Add a frame at the replica's end. acked: noted with it.

        Raises StorageFullError below the limit of free space, and if the disk has none left; in
        that case nothing more is accepted until the engine is reopened, because it is unknown what
        was written.
        """

    @abc.abstractmethod
    def note(self, pipe_id: str, **changes: int | bool | str | None) -> None:
        """Change fields of a replica (epoch, fenced, final, damage, behind, copying; queue_name and
        strict, if these were lost), durably with the next sync. `acked` changes only in memory, and
        is written with the next change. Damage that is noted alone (`is_report`) stays reported
        until the engine is closed, even if this fails."""

    @abc.abstractmethod
    def cut(self, pipe_id: str, end: int) -> None:
        """Remove the frames from `end` on; `end` lies between two frames."""

    @abc.abstractmethod
    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Remove replicas and their frames. Their space is freed soon after."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Return when everything changed before the call is on disk. Callable from any thread."""

    @abc.abstractmethod
    def read(
        self, pipe_id: str, seq: int, end_seq: int, bytes_max: int, frames_max: int
    ) -> list[bytes]:
        """The whole, verified frames that hold seqs `seq .. end_seq`, from the first on: as many as
        `bytes_max` allows, but at least one. Empty if it has none of them. Any thread may call it,
        also during changes.

        Raises FrameError for a damaged frame, unless good ones come before it.
        """

    @abc.abstractmethod
    def frame_at(self, pipe_id: str, base_seq: int) -> bytes | None:
        """The frame that begins at `base_seq`, not verified."""

    @abc.abstractmethod
    def space(self) -> Space:
        """How much room there is. Cost: a system call."""

    @property
    @abc.abstractmethod
    def read_only(self) -> bool:
        """Whether appends are refused, for lack of space or after a failed write."""

    @property
    @abc.abstractmethod
    def failure(self) -> str:
        """Why nothing is accepted until it is reopened: a write or a sync failed, and not for lack
        of space. Empty if nothing failed. Reads still work."""

    @property
    @abc.abstractmethod
    def starved(self) -> str:
        """As `failure`, for a write or a sync that failed for lack of space, or because of damage
        that the next opening mends: once `has_room`, it can be reopened."""

    @abc.abstractmethod
    def has_room(self) -> bool:
        """Whether a starved engine would have enough space if reopened: for new frames, and for the
        opening itself. Callable from any thread. Cost: a system call; if that reports enough, a
        file is created for a moment and removed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sync, and release everything."""
