"""When a sidecar that starved opens its directory anew, and what it makes of what it finds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import BackendError, ConfigError, CorruptionError, StorageFullError
from cassq.sidecar.care.reopening import (
    CALM_MS,
    PAUSE_MAX_MS,
    PAUSE_MS,
    TRIES,
    Pauses,
    Reopening,
    damage_of,
)
from cassq.sidecar.engine.port import Engine, Replica
from tests.simulation.worlds.memory_engine import MemoryEngine

PIPE = "0123456789abcdef01234567"
OTHER = "89abcdef0123456701234567"
FREE_MIN = 1000


# --- how long it waits --------------------------------------------------------------------------


def test_an_engine_that_starved_is_left_alone_for_a_while() -> None:
    pauses = Pauses()
    assert not pauses.is_over(5_000)
    assert not pauses.is_over(5_000 + PAUSE_MS - 1)
    assert pauses.is_over(5_000 + PAUSE_MS)


def starve_again(pauses: Pauses, now_ms: int) -> int:
    """How long it is left alone."""
    assert not pauses.is_over(now_ms)
    waited_ms = 0
    while not pauses.is_over(now_ms + waited_ms):
        waited_ms += PAUSE_MS
    return waited_ms


def test_one_that_starves_again_soon_waits_twice_as_long_each_time() -> None:
    pauses, now_ms = Pauses(), 1_000
    waited: list[int] = []
    for _ in range(10):
        waited.append(starve_again(pauses, now_ms))
        now_ms += waited[-1]
        pauses.opened(now_ms)
        now_ms += CALM_MS - 1
    assert waited[:4] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS, 8 * PAUSE_MS]
    assert waited[-1] == PAUSE_MAX_MS
    pauses.opened(now_ms)
    assert starve_again(pauses, now_ms + CALM_MS) == PAUSE_MS, "it was well for a while"


# --- what it does -------------------------------------------------------------------------------


class RunningClock(ManualClock):
    """Goes on by half a second with each look."""

    def boot_ms(self) -> int:
        self.advance(0.5)
        return super().boot_ms()


class Directory:
    """What is opened: an engine in memory, or one error after the other."""

    def __init__(self, *errors: Exception, free: int = 10 * FREE_MIN) -> None:
        self.engine = MemoryEngine(free=free, free_min=FREE_MIN)
        self.errors = list(errors)
        self.opened = 0
        self.opens: Callable[[], Engine] = lambda: self.engine
        self.stop = asyncio.Event()
        self.reopening = Reopening(self._open, RunningClock(), look_seconds=0.0)

    def _open(self) -> Engine:
        self.opened += 1
        if self.errors:
            raise self.errors.pop(0)
        return self.opens()

    def starve(self) -> None:
        self.engine.starving = True
        with pytest.raises(StorageFullError):
            self.engine.create(Replica(PIPE, "orders", False, 1, 1))
        assert self.engine.starved

    def reopened(self) -> Engine | None:
        return asyncio.run(self.reopening.opened(self.engine, self.stop))


def test_it_is_opened_again_when_it_starved_and_has_room() -> None:
    directory = Directory(free=FREE_MIN + FREE_MIN // 4 - 1)
    looks: list[str] = []

    async def scene() -> None:
        wanted = asyncio.ensure_future(directory.reopening.wanted(directory.engine))

        async def looked(what: str) -> None:
            for _ in range(200):
                await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
            assert not wanted.done(), what
            looks.append(what)

        await looked("it is well")
        directory.starve()
        await looked("the disk has not a quarter more than the limit yet")
        directory.engine.free += 1
        await asyncio.wait_for(wanted, 20)

    asyncio.run(scene())
    assert len(looks) == 2


def test_an_engine_that_failed_for_another_reason_is_not_reopened() -> None:
    directory = Directory()
    directory.engine.failing = True
    with pytest.raises(BackendError):
        directory.engine.sync()

    async def scene() -> None:
        wanted = asyncio.ensure_future(directory.reopening.wanted(directory.engine))
        for _ in range(500):
            await asyncio.sleep(0)
        assert not wanted.done()
        wanted.cancel()

    assert directory.engine.failure
    assert not directory.engine.starved
    asyncio.run(scene())


def test_want_of_room_while_it_is_opened_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="cassq")
    directory = Directory(*(StorageFullError("no room") for _ in range(2 * TRIES)))
    directory.starve()
    assert directory.reopened() is directory.engine
    assert directory.opened == 2 * TRIES + 1
    assert directory.reopening.times == 1
    assert caplog.text.count("there is not enough space to continue") == 2 * TRIES


def test_what_is_not_ready_yet_is_tried_again_a_few_times() -> None:
    directory = Directory(*(BackendError("it is locked") for _ in range(TRIES - 1)))
    directory.starve()
    assert directory.reopened() is directory.engine
    again = Directory(*(BackendError("it is locked") for _ in range(TRIES)))
    again.starve()
    with pytest.raises(BackendError, match="it is locked"):
        again.reopened()
    assert (again.opened, again.reopening.times) == (TRIES, 0)


@pytest.mark.parametrize("error", [CorruptionError("it is damaged"), ConfigError("it is taken")])
def test_what_no_start_can_open_ends_it_at_once(error: Exception) -> None:
    directory = Directory(error)
    directory.starve()
    with pytest.raises(type(error)):
        directory.reopened()
    assert directory.opened == 1


def test_another_directory_in_its_place_is_not_taken_for_it() -> None:
    directory = Directory()
    directory.starve()
    other = MemoryEngine("memory-2")
    directory.opens = lambda: other
    with pytest.raises(ConfigError, match="not the one that was here"):
        directory.reopened()


def test_a_stop_while_there_is_no_room_takes_effect() -> None:
    directory = Directory(StorageFullError("no room"))
    directory.starve()
    directory.engine.free = 0
    directory.stop.set()
    assert directory.reopened() is None
    assert directory.opened == 1


# --- what is told on ----------------------------------------------------------------------------


def test_damage_that_could_not_be_noted_is_kept_and_copies_speak_for_themselves() -> None:
    engine = MemoryEngine()
    for pipe_id in (PIPE, OTHER, "good"):
        engine.create(Replica(pipe_id, "orders", False, 1, 1))
    engine.note(OTHER, damage="it is being copied anew", copying=True)
    engine.starving = True
    with pytest.raises(StorageFullError):
        engine.note(PIPE, damage="a frame is bad")
    assert damage_of(engine) == {PIPE: ("a frame is bad", False)}
    lagging = MemoryEngine()
    lagging.create(Replica(PIPE, "orders", False, 1, 1, damage="it ends at 3", behind=True))
    assert damage_of(lagging) == {PIPE: ("it ends at 3", True)}
