"""Loop threads: what is sent in one turn is done together, in order; the end, and closed loops."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from cassq.errors import CassqError
from cassq.worker.eventloop.calls import Calls
from cassq.worker.eventloop.loop_thread import LoopThread
from tests.integration.deadlines import DEADLINE_SECONDS, eventually


def test_what_is_sent_in_a_turn_is_done_together_and_in_order() -> None:
    batches: list[list[int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def work(jobs: list[int]) -> bool:
            batches.append(jobs)
            return False

        thread: LoopThread[int] = LoopThread(loop, "test", work, wanted=lambda job: job != 3)
        for number in range(6):
            thread.send(number)
        await thread.end()
        await thread.end()

    asyncio.run(main())
    assert batches == [[0, 1, 2, 4, 5]]


def test_it_works_on_while_there_is_more_to_do_and_ends_after_that() -> None:
    left = [5]

    async def main() -> None:
        def work(jobs: list[int]) -> bool:
            left[0] -= 1
            return left[0] > 0

        thread: LoopThread[int] = LoopThread(asyncio.get_running_loop(), "test", work)
        thread.send(0)
        await thread.end()

    asyncio.run(main())
    assert left == [0]


def test_one_that_was_sent_nothing_has_no_thread() -> None:
    async def main() -> None:
        before = set(threading.enumerate())
        thread: LoopThread[int] = LoopThread(asyncio.get_running_loop(), "test", lambda _: False)
        await thread.end()
        assert set(threading.enumerate()) <= before

    asyncio.run(main())


def test_the_results_of_many_calls_wake_the_loop_once() -> None:
    wakes: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args, **kw: (wakes.append(args), wake(*args, **kw))[1]  # type: ignore[method-assign]
        calls = Calls(loop)
        made = await asyncio.gather(*(calls.make(pow, 2, n) for n in range(100)))
        assert made == [2**n for n in range(100)]
        assert len(wakes) == 1
        with pytest.raises(ZeroDivisionError):
            await calls.make(divmod, 1, 0)
        await calls.end()

    asyncio.run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_a_loop_that_was_closed_is_noticed_and_everything_put_away(
    caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    caplog.set_level(logging.WARNING, "cassq")
    cleanup = threading.Event()
    made: list[LoopThread[int]] = []

    def put() -> None:
        cleanup.set()
        if fails:
            raise CassqError("the disk is full")

    async def main() -> None:
        thread: LoopThread[int] = LoopThread(
            asyncio.get_running_loop(), "test", lambda _: False, cleanup=put
        )
        made.append(thread)
        thread.send(0)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert cleanup.wait(DEADLINE_SECONDS)
    eventually(
        "its thread ends",
        lambda: not any(t.name.startswith("cassq-aio-test") for t in threading.enumerate()),
    )
    assert "an event loop was closed before its cassq client" in caplog.text
    assert ("could not be cleaned up: the disk is full" in caplog.text) == fails
