"""Scrubbing and copying between sidecars in memory: as a real one does it, a frame at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xxhash import xxh3_128

from cassq.extents.protocol.messages import (
    Code,
    Frames,
    Read,
    RefusedError,
    Replicate,
    Replicated,
    Scrub,
    Scrubbed,
)
from cassq.message.frames import FrameError, pipe_key, verify
from cassq.sidecar.engine.port import Engine, Replica
from cassq.sidecar.engine.replica_state import ReplicaState

STRETCH_FRAMES = 3
ANEW = "it is being copied anew"


def scrubbed(engine: Engine, replica_state: ReplicaState, request: Scrub) -> Scrubbed:
    """Verify some frames. Raises RefusedError."""
    pipe_id, seq, digest = request.pipe_id, request.seq, xxh3_128()
    replica = _there(engine, pipe_id)
    for _ in range(STRETCH_FRAMES):
        try:
            frames = engine.read(pipe_id, seq, replica.end, 1, 1)
        except FrameError as exc:
            replica_state.found(pipe_id, exc.message)
            replica_state.note_found()
            return Scrubbed(seq, exc.message, "")
        for each in frames:
            digest.update(each)
            seq = sum(verify(each, pipe_key=pipe_key(pipe_id))[:2])
    return Scrubbed(seq, replica.damage, digest.hexdigest())


def replicated(engine: Engine, request: Replicate, ask: Callable[[Read], Any]) -> Replicated:
    """Copy one frame more; synced. ask: the source, which answers or refuses. Raises
    RefusedError."""
    pipe_id, mine = request.pipe_id, engine.replicas().get(request.pipe_id)
    if mine is not None and mine.final == request.end and not (mine.damage or mine.copying):
        return Replicated(mine.end)
    if mine is None or not mine.copying:
        _begin(engine, request, mine)
    mine = _there(engine, pipe_id)
    if mine.end < request.end:
        reply = ask(Read(pipe_id, mine.end, request.end, 1, 1, 0))
        if not isinstance(reply, Frames) or not reply.frames:
            raise RefusedError(Code.FAILED, f"the source {request.source} fails: {reply}")
        base_seq, count, _ = verify(reply.frames, pipe_key=pipe_key(pipe_id))
        engine.append(pipe_id, base_seq, count, reply.frames, 0)
    mine = _there(engine, pipe_id)
    if mine.end == request.end:
        engine.note(pipe_id, copying=False, final=mine.end, damage="")
    engine.sync()
    return Replicated(mine.end)


def _begin(engine: Engine, request: Replicate, mine: Replica | None) -> None:
    pipe_id = request.pipe_id
    if mine is None:
        if engine.read_only:
            raise RefusedError(Code.FULL, "this sidecar is read-only")
        engine.create(Replica(pipe_id, request.queue_name, request.strict, 0, 2))
        engine.note(pipe_id, copying=True, fenced=True)
    else:
        engine.note(pipe_id, epoch=2, copying=True, fenced=True, final=None, damage=ANEW)
        engine.cut(pipe_id, 0)


def _there(engine: Engine, pipe_id: str) -> Replica:
    replica = engine.replicas().get(pipe_id)
    if replica is None:
        raise RefusedError(Code.UNKNOWN, f"there is no extent {pipe_id!r} here")
    return replica
