"""An engine in memory, which forgets at a crash what no sync covered, as a seed says.

Of what was changed since the last sync each replica keeps some run from the front: more may be
lost than by RocksDB, whose one log is cut at one place for all, and never anything else.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cassq.errors import BackendError, BrokenInvariantError, StorageFullError
from cassq.message.frames import FrameError, pipe_key, verify
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from cassq.sidecar.engine.port import Engine, Replica, Space, is_report

LEASE_MS = 1 << 40  # of sidecars whose ends are told otherwise


def row_of(
    engine: Engine,
    name: str,
    zone: str,
    *,
    state: SidecarState = SidecarState.UP,
    load: int = 0,
    damaged: int = 0,
) -> SidecarRow:
    """What a sidecar over an engine in memory tells of itself."""
    free, total = engine.space()
    return SidecarRow(
        name=name,
        address=f"{name}:1",
        zone=zone,
        generation=engine.generation,
        state=state,
        lease_ms=LEASE_MS,
        free_bytes=free,
        total_bytes=total,
        extents=len(engine.replicas()),
        load=load,
        read_only=engine.read_only,
        damaged=damaged,
    )


@dataclass(slots=True)
class Held:
    """A replica with its frames, which begin at `bases`."""

    replica: Replica
    bases: list[int] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)

    def copy(self) -> Held:
        return Held(replace(self.replica), list(self.bases), list(self.frames))


@dataclass(slots=True, frozen=True)
class Made:
    replica: Replica


@dataclass(slots=True, frozen=True)
class Added:
    base_seq: int
    count: int
    frame: bytes
    acked: int


@dataclass(slots=True, frozen=True)
class Noted:
    changes: Mapping[str, int | bool | str | None]


@dataclass(slots=True, frozen=True)
class Cut:
    end: int


@dataclass(slots=True, frozen=True)
class Gone:
    pass


Change = Made | Added | Noted | Cut | Gone


class MemoryEngine(Engine):
    """Replicas in memory. free: bytes of its disk; it is read-only below `free_min`.

    failing: the next change or sync fails, as of a broken disk; what it was to do may be found
    done after the next crash. Nothing more is taken until then. starving: so it does for want of
    space.
    """

    def __init__(
        self, generation: str = "memory-1", *, free: int = 1 << 40, free_min: int = 0
    ) -> None:
        self.free = free
        self.free_min = free_min
        self.failing = False
        self.starving = False
        self.syncs = 0
        self._generation = generation
        self._total = free
        self._poisoned = False
        self._short = False
        self._live: dict[str, Held] = {}
        self._stable: dict[str, Held] = {}
        self._unsynced: dict[str, list[Change]] = {}
        self._changing = threading.Lock()  # syncs and reads come from any thread
        self._replicas: dict[str, Replica] = {}

    @property
    def generation(self) -> str:
        return self._generation

    def replicas(self) -> Mapping[str, Replica]:
        return self._replicas

    def create(self, replica: Replica) -> None:
        if replica.pipe_id in self._live:
            raise BrokenInvariantError(f"{replica.pipe_id} is there already")
        self._change(replica.pipe_id, Made(replace(replica)))

    def append(self, pipe_id: str, base_seq: int, count: int, frame: bytes, acked: int) -> None:
        if base_seq != self._replicas[pipe_id].end:
            raise BrokenInvariantError(f"{base_seq} is not the end of {pipe_id}")
        if self.read_only and not self._poisoned:
            raise StorageFullError(f"{self.free} bytes are free, {self.free_min} are kept")
        self._change(pipe_id, Added(base_seq, count, frame, acked))

    def note(self, pipe_id: str, **changes: int | bool | str | None) -> None:
        replica = self._replicas[pipe_id]
        if changes.keys() == {"acked"}:
            replica.acked = changes["acked"]  # type: ignore[assignment]
            return
        if is_report(changes):
            replica.damage, replica.behind = str(changes["damage"]), bool(changes.get("behind"))
        self._change(pipe_id, Noted({"acked": replica.acked, **changes}))

    def cut(self, pipe_id: str, end: int) -> None:
        held = self._live[pipe_id]
        if end != held.replica.end and end not in held.bases:
            raise BrokenInvariantError(f"{end} is not between two frames of {pipe_id}")
        self._change(pipe_id, Cut(end))

    def drop(self, pipe_ids: Sequence[str]) -> None:
        for pipe_id in pipe_ids:
            if pipe_id in self._live:
                self._change(pipe_id, Gone())

    def sync(self) -> None:
        self._work()
        with self._changing:
            self.syncs += 1
            for pipe_id, changes in self._unsynced.items():
                for change in changes:
                    _apply(self._stable, pipe_id, change)
            self._unsynced.clear()

    def read(
        self, pipe_id: str, seq: int, end_seq: int, bytes_max: int, frames_max: int
    ) -> list[bytes]:
        held = self._live.get(pipe_id)
        found: list[bytes] = []
        if held is None or seq >= min(end_seq, held.replica.end):
            return found
        size = 0
        key = pipe_key(pipe_id)
        with self._changing:
            at = max(0, bisect_right(held.bases, seq) - 1)
            frames = list(zip(held.bases[at:], held.frames[at:], strict=True))
        for base_seq, frame in frames:
            if base_seq >= end_seq or len(found) == frames_max:
                break
            if found and size + len(frame) > bytes_max:
                break
            try:
                verify(frame, pipe_key=key)
            except FrameError:
                if found:
                    break
                raise
            found.append(frame)
            size += len(frame)
        return found

    def frame_at(self, pipe_id: str, base_seq: int) -> bytes | None:
        held = self._live.get(pipe_id)
        if held is None or base_seq not in held.bases:
            return None
        return held.frames[held.bases.index(base_seq)]

    def space(self) -> Space:
        return Space(self.free, self._total)

    @property
    def read_only(self) -> bool:
        self._short = self.free < self.free_min + self._short * self.free_min // 4
        return self._poisoned or self._short

    @property
    def failure(self) -> str:
        return "the disk failed" if self._poisoned and not self.starving else ""

    @property
    def starved(self) -> str:
        return "the disk is full" if self._poisoned and self.starving else ""

    def has_room(self) -> bool:
        return self.free >= self.free_min + self.free_min // 4

    def close(self) -> None:
        if not self._poisoned:
            self.sync()

    # --- what befalls it ------------------------------------------------------------------------

    def crash(self, rng: random.Random) -> None:
        """End here, and be opened anew: what was synced is there, and some of the rest."""
        for pipe_id, changes in self._unsynced.items():
            for change in changes[: rng.randint(0, len(changes))]:
                _apply(self._stable, pipe_id, change)
        self._unsynced.clear()
        self._live = {pipe_id: held.copy() for pipe_id, held in self._stable.items()}
        self._replicas = {pipe_id: held.replica for pipe_id, held in self._live.items()}
        self._poisoned = self.failing = self.starving = False

    def lose(self, pipe_id: str, end: int) -> None:
        """Lose frames that were synced, from one on, and see it, as an engine does when it is
        opened."""
        self.sync()
        for each in (self._live, self._stable):
            held = each[pipe_id]
            _cut(held, end)
            held.replica.damage = f"it ends at {end}, and did not"

    def flip(self, pipe_id: str, base_seq: int, at: int = -1) -> None:
        """Let a byte of a frame turn over."""
        for held in (self._live[pipe_id], self._stable.get(pipe_id)):
            if held is not None and base_seq in held.bases:
                index = held.bases.index(base_seq)
                frame = bytearray(held.frames[index])
                frame[at] ^= 1
                held.frames[index] = bytes(frame)

    # --- within -----------------------------------------------------------------------------------

    def _change(self, pipe_id: str, change: Change) -> None:
        failing = self.failing or self.starving
        if failing and not self._poisoned:
            self._unsynced.setdefault(pipe_id, []).append(change)
        self._work()
        with self._changing:
            self._unsynced.setdefault(pipe_id, []).append(change)
            _apply(self._live, pipe_id, change)
        held = self._live.get(pipe_id)
        if held is None:
            self._replicas.pop(pipe_id, None)
        else:
            self._replicas[pipe_id] = held.replica

    def _work(self) -> None:
        self._poisoned = self._poisoned or self.failing or self.starving
        if self.starving:
            raise StorageFullError("the disk is full", outcome_unknown=True)
        if self._poisoned:
            raise BackendError("the disk failed", outcome_unknown=True)


def _apply(held: dict[str, Held], pipe_id: str, change: Change) -> None:
    match change:
        case Made(replica):
            held[pipe_id] = Held(replace(replica))
        case Added(base_seq, count, frame, acked):
            mine = held[pipe_id]
            mine.bases.append(base_seq)
            mine.frames.append(frame)
            replica = mine.replica
            replica.end, replica.acked = base_seq + count, acked
            replica.size_bytes += len(frame)
            replica.frames += 1
        case Noted(changes):
            for name, value in changes.items():
                setattr(held[pipe_id].replica, name, value)
        case Cut(end):
            _cut(held[pipe_id], end)
        case Gone():
            held.pop(pipe_id, None)


def _cut(held: Held, end: int) -> None:
    while held.bases and held.bases[-1] >= end:
        held.bases.pop()
        frame = held.frames.pop()
        held.replica.size_bytes -= len(frame)
        held.replica.frames -= 1
    held.replica.end = end
