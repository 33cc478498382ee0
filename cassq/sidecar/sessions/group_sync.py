"""Group commit: a durable request is answered after a sync that began after its write.

One sync runs at a time, in its own thread; requests that arrive meanwhile wait for the next one. So
one sync serves all requests that arrived during the one before it, from all connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, CassqError

logger: logging.Logger = logging.getLogger("cassq")

# Called once the write is durable, or with an error if that is unknown.
Then = Callable[[BackendError | None], None]


class GroupSync:
    """Syncs as long as requests wait. sync: `Engine.sync`."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "cassq-sync")
        self._waiting: list[Then] = []
        self._running = False
        self.syncs: int = 0
        self.seconds: float = 0.0
        self.failures: int = 0

    def after_sync(self, then: Then) -> None:
        """Call `then` in the event loop when everything written until now is on disk."""
        self._waiting.append(then)
        if not self._running:
            self._running = True
            # Soon, not now: requests that arrived together are synced together.
            self._loop.call_soon(self._begin)

    async def synced(self) -> None:
        """Return when everything written until now is on disk; raises BackendError."""
        future = self._loop.create_future()

        def then(error: BackendError | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.after_sync(then)
        await future

    def close(self) -> None:
        """Wait for a running sync. Requests that still wait are never answered."""
        self._waiting.clear()
        self._thread.shutdown()

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            self._running = False
            return
        watch = Stopwatch()
        future = self._loop.run_in_executor(self._thread, self._sync)
        future.add_done_callback(lambda done: self._end(done, waiting, watch))

    def _end(self, done: asyncio.Future[None], waiting: list[Then], watch: Stopwatch) -> None:
        self.syncs += 1
        self.seconds += watch.seconds()
        failed = done.exception()
        error: BackendError | None = None
        if failed is not None:
            self.failures += 1
            logger.error("a sync failed: %s", failed, exc_info=not isinstance(failed, CassqError))
            error = BackendError(f"the sync failed: {failed}", outcome_unknown=True)
        self._begin()  # first, so that the disk works while answers are written
        for then in waiting:
            then(error)
