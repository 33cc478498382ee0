"""The dispatcher: carries out the requests of all connections, each answered once, now or later."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from cassq.base.rare_log import short
from cassq.errors import BackendError, CassqError, CorruptionError, StorageFullError
from cassq.extents.protocol.messages import (
    WAIT_MS_MAX,
    Append,
    Code,
    Ends,
    EndsAre,
    Frames,
    Info,
    InfoIs,
    Read,
    RefusedError,
    Replicate,
    Reply,
    Request,
    Scrub,
)
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.replica_state import ReplicaAnswer, ReplicaState
from cassq.sidecar.load import ByteLoad
from cassq.sidecar.sessions.group_sync import GroupSync
from cassq.sidecar.sessions.waiting import Requester, WaitingRequest, WaitingRequests

logger: logging.Logger = logging.getLogger("cassq")

Answer = Callable[[Reply | RefusedError], None]
# Carries out a slow request, while other requests go on.
Slow = Callable[[Any], Coroutine[Any, Any, Reply]]


class Dispatcher:
    """Handles a sidecar's requests. facts: its report about itself. load: counts written bytes.
    slow: handlers for kinds of requests that take longer."""

    def __init__(
        self,
        engine: Engine,
        replica_state: ReplicaState,
        committer: GroupSync,
        facts: Callable[[], dict[str, Any]],
        load: ByteLoad,
    ) -> None:
        self.replica_state = replica_state
        self._load = load
        self.committer = committer
        self.closed: bool = False
        self.slow: dict[type[Scrub] | type[Replicate], Slow] = {}
        self.requests: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._engine = engine
        self._facts = facts
        self._waiters = WaitingRequests()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, requester: Requester, request: Request, answer: Answer) -> None:
        """Carry a request out, or begin to; after `close` it has no effect."""
        if self.closed:
            return
        self.requests[type(request).__name__] += 1
        try:
            match request:
                case Read(wait_ms=wait_ms) | Ends(wait_ms=wait_ms) if wait_ms > 0:
                    self._poll(requester, request, answer)
                case Scrub() | Replicate():
                    slow = self.slow.get(type(request))
                    if slow is None:
                        raise RefusedError(Code.BUSY, "this sidecar is stopping")
                    self._begin(slow(request), answer)
                case Info():
                    answer(InfoIs(self._facts()))
                case _:
                    self.carry_out(request, answer)
        except Exception as exc:
            self._refuse(exc, answer)

    def carry_out(self, request: Request, answer: Answer) -> None:
        """Carry out a request about extents; if its effect must be durable, answer after a sync."""
        outcome = self._handle(request)
        if not outcome.durable:
            answer(outcome.reply)
            return

        def then(error: BackendError | None) -> None:
            if error is None:
                answer(outcome.reply)
            else:
                self._refuse(error, answer)

        self.committer.after_sync(then)

    async def done(self, request: Request) -> Any:
        """Carry out a request that the sidecar makes itself; returns the reply once its effect is
        durable. Raises RefusedError, and BackendError if a sync failed."""
        outcome = self._handle(request)
        if outcome.durable:
            await self.committer.synced()
        return outcome.reply

    def _handle(self, request: Request) -> ReplicaAnswer:
        outcome = self.replica_state.handle(request)
        if isinstance(request, Append) and isinstance(request.frame, bytes):
            self._load.bytes += len(request.frame)
        if outcome.grown:
            self._waiters.wake(outcome.grown)
        return outcome

    def grown(self, pipe_id: str) -> None:
        """Note that an extent was changed other than by a request."""
        self._waiters.wake(pipe_id)

    async def close(self) -> None:
        """End running requests; neither these nor later ones are answered."""
        self.closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- long polls -----------------------------------------------------------------------------

    def _poll(self, requester: Requester, request: Read | Ends, answer: Answer) -> None:
        def look(late: bool) -> bool:
            try:
                reply = self.replica_state.handle(request).reply
                if not late and self._is_to_wait(request, reply):
                    return False
            except Exception as exc:
                self._refuse(exc, answer)
                return True
            answer(reply)
            return True

        if look(False):
            return
        pipes = (
            [request.pipe_id]
            if isinstance(request, Read)
            else [pipe_id for pipe_id, _ in request.asked]
        )
        seconds = min(request.wait_ms, WAIT_MS_MAX) / 1000
        waiter: WaitingRequest

        def look_and_leave(late: bool) -> bool:
            answered = look(late)
            if answered:
                requester.waiters.discard(waiter)
            return answered

        waiter = self._waiters.wait(pipes, seconds, look_and_leave, requester.blocked)
        requester.waiters.add(waiter)

    def _is_to_wait(self, request: Read | Ends, reply: Reply) -> bool:
        """Whether the requester should wait for news that it does not have yet."""
        if isinstance(request, Read):
            assert isinstance(reply, Frames)
            replica = self._engine.replicas().get(request.pipe_id)
            return not reply.frames and replica is not None and not replica.fenced
        assert isinstance(reply, EndsAre)
        unmarked = False
        for (_, known), there in zip(request.asked, reply.ends, strict=True):
            if there is None:
                continue
            acked, end, fenced, closed, _ = there
            if acked > known or fenced or closed:
                return False
            unmarked |= end > acked
        return unmarked

    # --- what takes its time, and what fails ----------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, Reply], answer: Answer) -> None:
        async def run() -> None:
            try:
                reply = await work
            except Exception as exc:
                self._refuse(exc, answer)
            else:
                answer(reply)

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refuse(self, exc: Exception, answer: Answer) -> None:
        refusal = refusal_of(exc)
        if refusal.code is Code.DAMAGED:
            self.replica_state.note_found()
        self.refusals[refusal.code.name] += 1
        answer(refusal)


def refusal_of(exc: Exception) -> RefusedError:
    """The refusal that a client gets for an error."""
    match exc:
        case RefusedError():
            return exc
        case StorageFullError():
            return RefusedError(Code.FULL, exc.message)
        case CorruptionError():
            return RefusedError(Code.DAMAGED, exc.message)
        case CassqError():
            logger.error("a request failed: %s", short(str(exc)))
            return RefusedError(Code.FAILED, exc.message)
        case _:
            # It may quote the request, which may be long.
            what = short(f"{type(exc).__name__}: {exc}")
            cut = RuntimeError(what).with_traceback(exc.__traceback__)
            logger.error("a request failed", exc_info=cut)
            return RefusedError(Code.FAILED, f"a bug of the sidecar: {what}")
