"""Scrubbing: reads frames only to check that they are whole, a bounded stretch at a time."""

from __future__ import annotations

from functools import partial
from typing import Any

from xxhash import xxh3_128

from cassq.extents.protocol.messages import Code, RefusedError, Scrub, Scrubbed
from cassq.message.frames import FrameError, frame_span
from cassq.sidecar.care.worker_threads import WorkerThreads
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.replica_state import ReplicaState

# A stretch ends with the first frame that makes it this long: the same on every replica.
STRETCH_BYTES = 32 * 1024 * 1024
_STEP_BYTES = 1024 * 1024
STEP_FRAMES = 1000


class Scrubbing:
    """Reads frames of an engine in a thread, while the event loop may change the engine.

    stretch_bytes: must be the same on all sidecars of a cluster. step_frames: how many to read at
    once.
    """

    def __init__(
        self,
        engine: Engine,
        replica_state: ReplicaState,
        threads: WorkerThreads | None = None,
        *,
        stretch_bytes: int = STRETCH_BYTES,
        step_frames: int = STEP_FRAMES,
    ) -> None:
        self.frames: int = 0
        self.bytes: int = 0
        self.stretch_bytes: int = stretch_bytes
        self.step_frames: int = step_frames
        self._engine = engine
        self._replica_state = replica_state
        self._threads = threads or WorkerThreads(1, "cassq-scrub")

    def close(self) -> None:
        """Wait for reads under way."""
        self._threads.close(wait=True)

    async def __call__(self, request: Scrub) -> Scrubbed:
        """Verify a stretch, and note damage that is found. Raises RefusedError.

        Cost: a read of `stretch_bytes`.
        """
        pipe_id, seq = request.pipe_id, request.seq
        digest = xxh3_128()
        left = self.stretch_bytes
        while left > 0:
            replica = self._engine.replicas().get(pipe_id)
            if replica is None:
                raise RefusedError(Code.UNKNOWN, f"there is no extent {pipe_id!r} here")
            if seq >= replica.end:
                break
            try:
                frames = await self._read(pipe_id, seq, replica.end)
            except FrameError as exc:
                return self._damaged(pipe_id, seq, exc.message, digest)
            if not frames:
                return self._damaged(pipe_id, seq, f"the frame at seq {seq} is missing", digest)
            for frame in frames:
                span = frame_span(frame)
                if span.base_seq > seq:
                    damage = f"the frame at seq {seq} is missing"
                    return self._damaged(pipe_id, seq, damage, digest)
                digest.update(frame)
                seq = span.base_seq + span.messages
                self.frames += 1
                self.bytes += len(frame)
                left -= len(frame)
                if left <= 0:
                    break
        damage = self._damage(pipe_id)
        return Scrubbed(seq, damage, digest.hexdigest())

    async def _read(self, pipe_id: str, seq: int, end: int) -> list[bytes]:
        read = partial(self._engine.read, pipe_id, seq, end, _STEP_BYTES, self.step_frames)
        try:
            return await self._threads(read)
        except (KeyError, FrameError):
            if pipe_id in self._engine.replicas():
                raise
            damage = f"extent {pipe_id!r} was dropped meanwhile"
            raise RefusedError(Code.UNKNOWN, damage) from None

    def _damaged(self, pipe_id: str, seq: int, damage: str, digest: Any) -> Scrubbed:
        self._replica_state.found(pipe_id, damage)
        self._replica_state.note_found()
        return Scrubbed(seq, damage, digest.hexdigest())

    def _damage(self, pipe_id: str) -> str:
        replica = self._engine.replicas().get(pipe_id)
        return replica.damage if replica is not None else ""
