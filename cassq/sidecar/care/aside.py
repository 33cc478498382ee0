"""Aside: calls that block are carried out in threads, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """Some threads of a sidecar's loop. Simulations have one that has none."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, name)

    async def __call__(self, call: Callable[[], T]) -> T:
        """What the call returns or raises; other tasks of the loop go on meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self, *, wait: bool) -> None:
        """Begin nothing more. wait: until what is under way has ended."""
        self._threads.shutdown(wait=wait, cancel_futures=not wait)
