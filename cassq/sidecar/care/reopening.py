"""Reopening: a sidecar whose disk was full goes on by itself once there is room.

After a write or a sync that failed nobody knows what is on the disk. So nothing of what is in
memory is gone on with: the directory is closed, and opened as at a start, where all that is there
is read, and compared with what was synced.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable

from cassq.base.clock import Clock
from cassq.errors import BackendError, ConfigError, StorageFullError
from cassq.sidecar.engine.port import Engine

logger: logging.Logger = logging.getLogger("cassq")

LOOK_SECONDS = 1.0
PAUSE_MS, PAUSE_MAX_MS = 2_000, 300_000
CALM_MS = 60_000  # who starves again within this time after it was opened waits longer
TRIES = 5  # of opening it, where it fails otherwise than for want of space


class Pauses:
    """How long an engine that starved is left alone, in boot milliseconds: PAUSE_MS, and twice as
    long each time that it starves again soon, so that clients do not come to it in vain all the
    time where room is told of that cannot be had."""

    def __init__(self) -> None:
        self._pause_ms = PAUSE_MS
        self._opened_ms: int | None = None
        self._starved_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        """Of an engine that is starved now: whether it was left alone for long enough."""
        if self._starved_ms is None:
            self._starved_ms = now_ms
            soon = self._opened_ms is not None and now_ms - self._opened_ms < CALM_MS
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS) if soon else PAUSE_MS
        return now_ms - self._starved_ms >= self._pause_ms

    def opened(self, now_ms: int) -> None:
        """It was opened anew, or that was tried."""
        self._opened_ms, self._starved_ms = now_ms, None


class Reopening:
    """Opens an engine anew that starved. open_it: opens its directory. times: that it did.
    look_seconds: between two looks at it."""

    def __init__(
        self, open_it: Callable[[], Engine], clock: Clock, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self.times: int = 0
        self._open = open_it
        self._clock = clock
        self._look_seconds = look_seconds
        self._pauses = Pauses()

    async def wanted(self, engine: Engine) -> None:
        """Return once an engine is starved, was left alone for a while, and has room again."""
        told = False
        while True:
            await asyncio.sleep(self._look_seconds)
            starved = engine.starved
            if not starved:
                continue
            if not told:
                logger.error(
                    "the sidecar takes nothing: %s. It goes on by itself once its disk has room",
                    starved,
                )
                told = True
            if await self._may_open(engine):
                return

    async def opened(self, engine: Engine, stop: asyncio.Event) -> Engine | None:
        """Close an engine, and open its directory anew; None if `stop` is set before that can be
        done. Nobody may use the former one any more.

        Raises CorruptionError and ConfigError as at a start, BackendError when it cannot be opened
        though there is room.
        """
        loop = asyncio.get_running_loop()
        logger.warning("the disk has room again: what is there is read anew")
        await loop.run_in_executor(None, _close, engine)
        tries = 0
        while True:
            try:
                found = await loop.run_in_executor(None, self._opened, engine.generation)
            except StorageFullError as exc:
                logger.error("there is no room to go on: %s", exc)
            except BackendError as exc:
                tries += 1
                if tries == TRIES:
                    raise
                logger.error("it cannot go on yet: %s", exc)
            else:
                self.times += 1
                return found
            finally:
                self._pauses.opened(self._clock.boot_ms())
            while not await self._may_open(engine):
                if stop.is_set():
                    return None
                await asyncio.sleep(self._look_seconds)

    async def _may_open(self, engine: Engine) -> bool:
        if not self._pauses.is_over(self._clock.boot_ms()):
            return False
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, engine.has_room)
        except BackendError:
            return False  # the disk does not even say

    def _opened(self, generation: str) -> Engine:
        engine = self._open()
        if engine.generation != generation:
            engine.close()
            raise ConfigError(
                "the data directory is not the one that was here",
                hint="start the sidecar again: what it had is copied to it then",
            )
        return engine


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except BackendError as exc:
        # What it could not write now was never acknowledged.
        logger.warning("it could not be closed well: %s", exc)
    # RocksDB keeps a directory for as long as anybody has a part of it: the traceback of an error
    # may have one.
    gc.collect()


def damage_of(engine: Engine) -> dict[str, str]:
    """What is known to be damaged, though it may not be noted: it is to be told on, whatever is
    found on the disk. A copy that is not whole tells so itself."""
    replicas = engine.replicas().values()
    return {each.pipe_id: each.damage for each in replicas if each.damage and not each.copying}
