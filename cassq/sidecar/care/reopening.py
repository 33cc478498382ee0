"""Reopening: a sidecar whose disk was full resumes by itself once there is room; one that met a
damaged table resumes once opening the directory has mended it.

After a failed write or sync it is unknown what is on the disk. So nothing in memory is kept: the
directory is closed, and opened as at a start, when everything in it is read and compared with what
was synced.
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
CALM_MS = 60_000  # an engine that starves again this soon after opening waits longer
TRIES = 5  # of opening it, when it fails for other reasons than lack of space


class Pauses:
    """How long a starved engine is not reopened, in boot milliseconds: PAUSE_MS, doubled each time
    it starves again soon. Otherwise clients would keep trying in vain if the disk reports space
    that cannot be used."""

    def __init__(self) -> None:
        self._pause_ms = PAUSE_MS
        self._opened_ms: int | None = None
        self._starved_ms: int | None = None

    def is_over(self, now_ms: int) -> bool:
        """Whether an engine that is starved now was left alone for long enough."""
        if self._starved_ms is None:
            self._starved_ms = now_ms
            soon = self._opened_ms is not None and now_ms - self._opened_ms < CALM_MS
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MAX_MS) if soon else PAUSE_MS
        return now_ms - self._starved_ms >= self._pause_ms

    def opened(self, now_ms: int) -> None:
        """Note that the engine was opened again, or that this was tried."""
        self._opened_ms, self._starved_ms = now_ms, None


class Reopening:
    """Reopens an engine that starved. open_it: opens its directory. times: how often it was
    reopened. look_seconds: between two looks at it."""

    def __init__(
        self, open_it: Callable[[], Engine], clock: Clock, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self.times: int = 0
        self._open = open_it
        self._clock = clock
        self._look_seconds = look_seconds
        self._pauses = Pauses()

    async def wanted(self, engine: Engine) -> None:
        """Return once an engine starved, was left alone for a while, and has room again."""
        logged = False
        while True:
            await asyncio.sleep(self._look_seconds)
            starved = engine.starved
            if not starved:
                continue
            if not logged:
                logger.error(
                    "the sidecar accepts nothing: %s. It continues by itself once its disk has"
                    " space, files can be opened, and a damaged table was mended",
                    starved,
                )
                logged = True
            if await self._may_open(engine):
                return

    async def opened(self, engine: Engine, stop: asyncio.Event) -> Engine | None:
        """Close an engine and reopen its directory; None if `stop` is set first. The old engine
        must not be used any more.

        Raises CorruptionError and ConfigError as at a start, BackendError when it cannot be opened
        although there is room.
        """
        loop = asyncio.get_running_loop()
        logger.warning("the data directory is opened again")
        await loop.run_in_executor(None, _close, engine)
        tries = 0
        while True:
            try:
                found = await loop.run_in_executor(None, self._opened, engine.generation)
            except StorageFullError as exc:
                logger.error("there is not enough space to continue: %s", exc)
            except BackendError as exc:
                tries += 1
                if tries == TRIES:
                    raise
                logger.error("the sidecar cannot continue yet: %s", exc)
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
                hint="restart the sidecar; its former extents are then copied to it",
            )
        return engine


def _close(engine: Engine) -> None:
    try:
        engine.close()
    except BackendError as exc:
        # What it could not write now was never acknowledged.
        logger.warning("the engine could not be closed cleanly: %s", exc)
    # RocksDB keeps a directory open while any of its objects is referenced, for example by the
    # traceback of an error.
    gc.collect()


def damage_of(engine: Engine) -> dict[str, tuple[str, bool]]:
    """The known damage by pipe id, and whether the replica is only behind. It must stay reported
    whatever is found on disk, where it may not be noted. Unfinished copies are left out: they
    report themselves."""
    replicas = engine.replicas().values()
    known = [each for each in replicas if each.damage and not each.copying]
    return {each.pipe_id: (each.damage, each.behind) for each in known}
