"""Replicating: pulls a sealed extent from another sidecar, a bounded part at a time.

A copy is fenced from the start, and reports that it is a copy until it is whole, so it does not
count in majorities. A damaged extent is copied again in its place, and keeps reporting its damage
until the copy is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from cassq.base.clock import Clock
from cassq.errors import BackendError
from cassq.extents.protocol.messages import (
    Code,
    Frames,
    Open,
    Read,
    RefusedError,
    Replicate,
    Replicated,
    Settle,
)
from cassq.message.frames import FrameError, pipe_key, verify
from cassq.sidecar.care.worker_threads import WorkerThreads
from cassq.sidecar.engine.checks import check_open
from cassq.sidecar.engine.port import Engine, Replica
from cassq.sidecar.load import ByteLoad
from cassq.sidecar.sessions.dispatcher import Dispatcher

EPOCH = 2  # the sealer's: the writer's is 1
ANEW = "it is being copied anew"
_THREADS = 4

# Connects to the sidecar at an address. Within the context, the function that it gives sends a
# request, blocks, and returns the reply; it raises RefusedError or BackendError.
Sources = Callable[[str], AbstractContextManager[Callable[[Read], Any]]]


class CopySteps(NamedTuple):
    """How copies proceed. seconds: a request is answered after this time, even if little was
    copied. size_bytes, frames: the most to request at once."""

    seconds: float = 0.5
    size_bytes: int = 2 * 1024 * 1024
    frames: int = 10_000


class Replicating:
    """Copies from other sidecars. sources: connects to them. load: counts written bytes."""

    def __init__(
        self,
        engine: Engine,
        dispatcher: Dispatcher,
        sources: Sources,
        clock: Clock,
        load: ByteLoad,
        *,
        threads: WorkerThreads | None = None,
        steps: CopySteps | None = None,
    ) -> None:
        # When an extent was last copied to, in boot milliseconds: it may have no row yet.
        self.touched_ms: dict[str, int] = {}
        self._engine = engine
        self._dispatcher = dispatcher
        self._sources = sources
        self._clock = clock
        self._load = load
        self._busy: set[str] = set()
        self._threads = threads or WorkerThreads(_THREADS, "cassq-copy")
        self.steps = steps or CopySteps()

    def close(self) -> None:
        """Give up what is under way."""
        self._threads.close(wait=False)

    async def __call__(self, request: Replicate) -> Replicated:
        """Continue a copy, by about `bytes_max` or for about `steps.seconds`. Raises RefusedError
        and BackendError; what was copied before stays, and the next call continues from there."""
        pipe_id = request.pipe_id
        if pipe_id in self._busy:
            raise RefusedError(Code.BUSY, f"{pipe_id} is being copied already")
        self._busy.add(pipe_id)
        try:
            self.touched_ms[pipe_id] = self._clock.boot_ms()
            if await self._is_whole(request):
                return Replicated(request.end)
            seq = await self._copy(request)
            await self._dispatcher.committer.synced()
            return Replicated(seq)
        finally:
            self._busy.discard(pipe_id)
            self._forget()

    def _forget(self) -> None:
        """Forget extents that are gone."""
        if len(self.touched_ms) > 2 * len(self._engine.replicas()) + 100:
            there = self._engine.replicas()
            self.touched_ms = {key: at for key, at in self.touched_ms.items() if key in there}

    async def _is_whole(self, request: Replicate) -> bool:
        """Whether the extent is here and good; if not, this begins a copy, unless one was begun."""
        check_open(Open(request.pipe_id, EPOCH, request.queue_name, request.strict))
        pipe_id, end = request.pipe_id, request.end
        replica = self._engine.replicas().get(pipe_id)
        if replica is None:
            self._create(request)
            return False
        lost = replica.damage and not replica.queue_name  # the row that named its queue
        is_other = (replica.queue_name, replica.strict) != (request.queue_name, request.strict)
        if is_other and not lost:
            raise RefusedError(Code.CONFLICT, f"{pipe_id} is an extent of another queue")
        if replica.copying:
            if replica.end > end:
                self._start_over(replica, request)
            return False
        if replica.damage or (replica.final is None and replica.end < end):
            self._start_over(replica, request)
            return False
        await self._dispatcher.done(Settle(pipe_id, end))  # refused if it has another end
        return True

    def _create(self, request: Replicate) -> None:
        if self._engine.read_only:
            raise RefusedError(Code.FULL, "this sidecar is read-only")
        if self._dispatcher.replica_state.draining:
            raise RefusedError(Code.DRAINING, "this sidecar accepts no new extents")
        self._engine.create(
            Replica(
                request.pipe_id,
                request.queue_name,
                request.strict,
                self._clock.wall_ms(),
                EPOCH,
                fenced=True,
                copying=True,
            )
        )

    def _start_over(self, replica: Replica, request: Replicate) -> None:
        pipe_id, why = replica.pipe_id, ANEW
        if replica.damage and not replica.damage.startswith(ANEW):
            why = f"{ANEW}; it was damaged: {replica.damage}"
        # In this order, so that a crash leaves a copy that lacks what the extent had.
        self._engine.note(
            pipe_id,
            queue_name=request.queue_name,
            strict=request.strict,
            epoch=max(EPOCH, replica.epoch),
            fenced=True,
            copying=True,
            final=None,
            damage=why,
            behind=False,
            acked=0,
        )
        self._engine.cut(pipe_id, 0)

    async def _copy(self, request: Replicate) -> int:
        began_ms, copied, steps = self._clock.boot_ms(), 0, self.steps
        with self._sources(request.source) as connection:
            while True:
                replica = self._engine.replicas().get(request.pipe_id)
                if replica is None or not replica.copying:
                    why = f"{request.pipe_id} was dropped meanwhile"
                    raise RefusedError(Code.BUSY, why)
                seq = replica.end
                if seq == request.end:
                    self._finish(request)
                    return seq
                took = (self._clock.boot_ms() - began_ms) / 1000
                if copied and (copied >= request.bytes_max or took >= steps.seconds):
                    return seq
                most = max(1, min(steps.size_bytes, request.bytes_max - copied))
                read = Read(request.pipe_id, seq, request.end, most, steps.frames, 0)
                copied += self._add(request, seq, await self._ask(connection, request.source, read))

    async def _ask(self, connection: Callable[[Read], Any], source: str, read: Read) -> Frames:
        try:
            reply = await self._threads(partial(connection, read))
        except RefusedError as exc:
            raise RefusedError(exc.code, f"the source {source} refuses: {exc.message}") from exc
        except BackendError as exc:
            raise RefusedError(Code.FAILED, f"the source fails: {exc.message}") from exc
        assert isinstance(reply, Frames)
        if not reply.frames:
            why = f"the source {source} has nothing at {read.seq}, it ends at {reply.end}"
            raise RefusedError(Code.FAILED, why)
        return reply

    def _add(self, request: Replicate, seq: int, got: Frames) -> int:
        """Verify and append what came. Nothing else happens in between: this is one step of the
        event loop."""
        pipe_id, data = request.pipe_id, got.frames
        replica = self._engine.replicas().get(pipe_id)
        if replica is None or replica.end != seq:
            raise RefusedError(Code.BUSY, f"{pipe_id} was changed meanwhile")
        key, at = pipe_key(pipe_id), 0
        while at < len(data):
            try:
                span = verify(data, at, pipe_key=key)
            except FrameError as exc:
                why = f"the source {request.source} gave a damaged frame: {exc.message}"
                raise RefusedError(Code.DAMAGED, why) from exc
            if span.base_seq != seq or seq + span.messages > request.end:
                why = f"the source {request.source} gave a frame at {span.base_seq}, not {seq}"
                raise RefusedError(Code.FAILED, why)
            frame = data[at : at + span.size]
            self._engine.append(pipe_id, seq, span.messages, frame, 0)
            at += span.size
            seq += span.messages
        self._load.bytes += at
        return at

    def _finish(self, request: Replicate) -> None:
        self._engine.note(request.pipe_id, copying=False, fenced=True, final=request.end, damage="")
        self._dispatcher.grown(request.pipe_id)
