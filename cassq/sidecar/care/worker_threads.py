"""Worker threads: run blocking calls in threads, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThreads:
    """A few threads of a sidecar's loop. Simulations use another class, without threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)

    async def __call__(self, call: Callable[[], T]) -> T:
        """The result of the call, or its error; other tasks of the loop run meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self, *, wait: bool) -> None:
        """Start no more calls. wait: until running calls have ended."""
        self._threads.shutdown(wait=wait, cancel_futures=not wait)
