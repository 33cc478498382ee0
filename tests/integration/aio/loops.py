"""Running a test's coroutine in an event loop, and a disk that holds up whatever it syncs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import cassq.aio
from cassq.extents.files.disk import Disk
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.integration.stage import client_on

HELD_SECONDS = 20.0  # long after what a test needs

Main = Callable[[cassq.aio.Client], Awaitable[None]]


def in_loop(url: str, main: Main) -> None:
    """Run `main` with a client of `url`, in a loop of its own."""
    run(lambda: cassq.aio.connect(url), main)


def run(connecting: Callable[[], cassq.aio.Connecting], main: Main) -> None:
    """Run `main` with a client; it fails when it takes for ever."""

    async def whole() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), connecting() as client:
            await main(client)

    asyncio.run(whole())


async def until(what: str, condition: Callable[[], object]) -> None:
    """Let the loop turn until `condition` is true."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"waited in vain: {what}")


class GateDisk(Disk):
    """A disk on which syncs of data, while `shut`, wait until it is let go. syncs: how many there
    were; held: released for each that waits."""

    def __init__(self) -> None:
        self.syncs = 0
        self.shut = False
        self.held = threading.Semaphore(0)
        self._opened = threading.Event()

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        if self.shut:
            self.held.release()
            assert self._opened.wait(HELD_SECONDS)
        super().sync_data(fd)

    def let_go(self) -> None:
        self._opened.set()


def on_disk(directory: Path, disk: Disk) -> Callable[[], cassq.aio.Connecting]:
    """Opens a client on a disk of the test's own."""
    return lambda: cassq.aio.Connecting(lambda: client_on(directory, disk))
