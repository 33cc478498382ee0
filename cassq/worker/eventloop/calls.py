"""Calls: a thread that makes the calls of an event loop's tasks, one after another.

Any call may block on storage, even one that only reads. So none is made in the loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from cassq.worker.eventloop.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")


class LoopCall:
    """Something to call in a thread. callback: called in the loop with its result, or its error."""

    __slots__ = ("act", "callback")

    def __init__(
        self,
        act: Callable[[], object],
        callback: Callable[[object, BaseException | None], object],
    ) -> None:
        self.act: Callable[[], object] = act
        self.callback: Callable[[object, BaseException | None], object] = callback


CallOutcome = tuple[LoopCall, object, BaseException | None]


def done(call: LoopCall) -> tuple[object, BaseException | None]:
    """Make a call; returns its result, and its error or None."""
    try:
        return call.act(), None
    except Exception as exc:
        return None, exc


def deliver(outcomes: list[CallOutcome]) -> None:
    """In the loop: pass on the outcomes of calls."""
    for call, result, error in outcomes:
        call.callback(result, error)


def into(future: asyncio.Future[Any]) -> Callable[[object, BaseException | None], object]:
    """A callback that puts the outcome of a call into a future, unless its task was cancelled."""

    def take(result: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    return take


class WaitingTask(Protocol[T]):
    """A task that waits for messages; its future receives them."""

    future: asyncio.Future[list[T]]


def hand_out(
    answers: Sequence[tuple[WaitingTask[T], list[T] | Exception]],
    give_back: Callable[[list[T]], object],
) -> None:
    """In the loop: hand messages to the tasks that wait for them. Messages for cancelled tasks go
    back."""
    for want, answer in answers:
        if isinstance(answer, Exception):
            if not want.future.done():
                want.future.set_exception(answer)
        elif want.future.done():
            give_back(answer)
        else:
            want.future.set_result(answer)


class Calls:
    """One thread for the calls of one loop. cleanup: see `LoopThread`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, cleanup: Callable[[], object] = lambda: None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._loop_thread: LoopThread[LoopCall] = LoopThread(
            loop, "calls", self._work, cleanup=cleanup
        )

    async def make(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in the thread, after the calls made before. If the wait is cancelled, it
        is called nevertheless."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._loop_thread.send(LoopCall(lambda: act(*args, **kwargs), into(future)))
        return await future

    async def end(self) -> None:
        """End the thread, once all calls are made."""
        await self._loop_thread.end()

    def _work(self, calls: list[LoopCall]) -> bool:
        outcomes = [(call, *done(call)) for call in calls]
        self._loop_thread.post(lambda: deliver(outcomes))
        return False
