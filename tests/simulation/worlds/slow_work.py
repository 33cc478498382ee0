"""What simulated sidecars do that takes its time: the real scrubbing and copying, step by step.

Their coroutines run in whichever process called the sidecar, without an event loop: where a real
one would wait, for a thread or for a sync, the scheduler may let others go on. If the sidecar has
crashed meanwhile the work ends there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from cassq.base.clock import Clock
from cassq.errors import BackendError, BackendUnavailableError
from cassq.extents.protocol.messages import Read, Replicate, Reply, Request, Scrub
from cassq.sidecar.care.replicating import CopySteps, Replicating
from cassq.sidecar.care.scrubbing import Scrubbing
from cassq.sidecar.care.worker_threads import WorkerThreads
from cassq.sidecar.engine.port import Engine
from cassq.sidecar.engine.replica_state import ReplicaState
from cassq.sidecar.load import ByteLoad
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.group_sync import GroupSync, Then

T = TypeVar("T")
Moment = Callable[[], None]


class Bounds(NamedTuple):
    """How much sidecars do at once; small, so that there is much in between."""

    stretch_bytes: int
    scrub_frames: int
    copy: CopySteps


def draw_bounds(rng: random.Random) -> Bounds:
    """Of a seed."""
    seconds, frames = rng.choice((0.0, 0.01, 60.0)), rng.choice((1, 1, 3))
    return Bounds(
        stretch_bytes=rng.choice((1, 500, 1 << 25)),
        scrub_frames=rng.choice((1, 2, 1000)),
        copy=CopySteps(seconds, rng.choice((1, 1 << 20)), frames),
    )


class SimWorkerThreads(WorkerThreads):
    """No thread: a moment before the call, and one after it."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    async def __call__(self, call: Callable[[], T]) -> T:
        self._moment()
        result = call()
        self._moment()
        return result

    def close(self, *, wait: bool) -> None:
        """Nothing is under way."""


class SimCommitter(GroupSync):
    """No thread: who waits for a sync makes one."""

    def __init__(self, sync: Callable[[], None], moment: Moment) -> None:
        self._sync = sync
        self._moment = moment

    def after_sync(self, then: Then) -> None:
        try:
            self._sync()
        except BackendError as exc:
            then(exc)
        else:
            then(None)

    async def synced(self) -> None:
        self._moment()
        self._sync()
        self._moment()

    def close(self) -> None:
        """Nothing is under way."""


class SlowWork:
    """The real parts of one run of a sidecar. moment: time passes; raises when it has crashed.
    ask: another sidecar, by its address; its reply, or why there is none."""

    def __init__(
        self,
        engine: Engine,
        replica_state: ReplicaState,
        clock: Clock,
        bounds: Bounds,
        moment: Moment,
        ask: Callable[[str, Request], Any],
    ) -> None:
        @contextmanager
        def source(address: str) -> Iterator[Callable[[Read], Any]]:
            yield lambda request: _replied(ask(address, request))

        threads, load = SimWorkerThreads(moment), ByteLoad()
        committer = SimCommitter(engine.sync, moment)
        self.desk = Dispatcher(engine, replica_state, committer, dict, load)
        self.scrubbing = Scrubbing(
            *(engine, replica_state, threads),
            stretch_bytes=bounds.stretch_bytes,
            step_frames=bounds.scrub_frames,
        )
        self.replicating = Replicating(
            *(engine, self.desk, source, clock, load), threads=threads, steps=bounds.copy
        )

    def carry_out(self, request: Scrub | Replicate) -> Reply:
        """Raises RefusedError, BackendError, and what `moment` raises."""
        if isinstance(request, Scrub):
            return _run(self.scrubbing(request))
        return _run(self.replicating(request))


def _replied(reply: Any) -> Any:
    """What a source answered; raised, if that is why it did not."""
    if isinstance(reply, BackendError):
        raise reply
    if reply is None:
        raise BackendUnavailableError("the source does not answer")
    return reply


def _run(work: Coroutine[Any, Any, Reply]) -> Reply:
    """Nothing in it waits for a loop, so one step is all of it."""
    try:
        work.send(None)
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    raise AssertionError("something waits for an event loop")
