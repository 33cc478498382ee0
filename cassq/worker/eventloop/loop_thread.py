"""Loop threads: each does jobs for the tasks of an event loop, one batch after another.

A loop thread belongs to a pusher, a popper or a client, not to one call. Jobs that are sent during
one turn of the loop reach it together, and results that it posts before the loop turns wake the
loop once. So ten thousand tasks that push share a few syncs and a few wake-ups.

If the loop is closed while the thread still works, the thread cannot report any more: it logs a
warning, closes what it has, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import count as counter
from typing import Generic, TypeVar

from cassq.base.clock import AutoResetEvent
from cassq.errors import CassqError, UsageError

logger: logging.Logger = logging.getLogger("cassq")

J = TypeVar("J")

# How often an idle thread checks whether its loop was closed.
LOOK_SECONDS = 2.0

_numbers = counter(1)


class LoopThread(Generic[J]):
    """One thread that works for one loop.

    wanted: called in the loop with each job just before the thread gets it; False drops the job.
    work: called in the thread with the jobs that came, in order; returns whether to call it again
    even if no job comes. interrupt: called in the loop when jobs come, to end a wait in `work`.
    cleanup: called in the thread if its loop was closed, to close what the thread works with.

    All methods but `post` must be called in the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        work: Callable[[list[J]], bool],
        *,
        wanted: Callable[[J], bool] = lambda _: True,
        interrupt: Callable[[], object] = lambda: None,
        cleanup: Callable[[], object] = lambda: None,
    ) -> None:
        self._loop = loop
        self._name = f"cassq-aio-{name}-{next(_numbers)}"
        self._work = work
        self._wanted = wanted
        self._interrupt = interrupt
        self._cleanup = cleanup
        self._turn: list[J] = []  # sent since the last turn of the loop
        self._jobs: deque[J] = deque()
        self._event = AutoResetEvent()
        self._results: deque[Callable[[], object]] = deque()
        self._reporting = False
        self._thread: threading.Thread | None = None
        self._ending = False
        self._ended: asyncio.Future[None] | None = None

    def send(self, job: J) -> None:
        """Send the thread a job, to do after those sent before it. Returns at once."""
        self._turn.append(job)
        if len(self._turn) == 1:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        jobs, self._turn = self._turn, []
        self._jobs.extend(filter(self._wanted, jobs))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Wake the thread, so that it looks at its jobs again."""
        self._event.set()
        if self._thread is not None:
            self._interrupt()

    def post(self, act: Callable[[], object]) -> None:
        """Call something in the loop; for the thread. Raises RuntimeError if the loop is closed."""
        self._results.append(act)
        if not self._reporting:
            self._reporting = True
            self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._reporting = False
        while self._results:
            self._results.popleft()()

    async def end(self) -> None:
        """End the thread, once it has done everything that was sent. Repeatable."""
        if self._ended is None:
            self._ended = self._loop.create_future()
            self._loop.call_soon(self._let_go)  # after what this turn still hands over
        await asyncio.shield(self._ended)

    def _let_go(self) -> None:
        if self._turn:
            self._loop.call_soon(self._let_go)
            return
        if self._thread is None:
            self._is_over()
            return
        self._ending = True
        self.wake()

    def _is_over(self) -> None:
        if self._thread is not None:
            self._thread.join()  # calling this was its last act
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
            self.post(self._is_over)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            self._orphaned()

    def _serve(self) -> None:
        more = False
        while True:
            jobs = [self._jobs.popleft() for _ in range(len(self._jobs))]
            if jobs or more:
                more = self._work(jobs)
            elif self._ending:
                return
            else:
                self._event.wait(LOOK_SECONDS)
            if self._loop.is_closed():
                raise RuntimeError("the event loop is closed")

    def _orphaned(self) -> None:
        logger.warning(
            "an event loop was closed before its cassq client: %s gives back what it has;"
            " close the client first, as `async with` does",
            self._name,
        )
        try:
            self._cleanup()
        except CassqError as exc:
            logger.warning("%s could not be cleaned up: %s", self._name, exc)


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Raise UsageError unless this is the loop that runs now."""
    if asyncio.get_running_loop() is not loop:
        raise UsageError(
            "this client belongs to another event loop",
            hint="open a client in each loop, with cassq.aio.connect",
        )
