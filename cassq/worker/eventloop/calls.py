"""Calls: a thread that makes the calls of an event loop's tasks, one after another.

Storage may hold up any call, also one that only reads. So none is made in the loop itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from cassq.worker.eventloop.courier import Courier

P = ParamSpec("P")
T = TypeVar("T")


class LoopCall:
    """Something to be called in a thread. told: is called in the loop with what came of it: a
    result, or an error."""

    __slots__ = ("act", "told")

    def __init__(
        self,
        act: Callable[[], object],
        told: Callable[[object, BaseException | None], object],
    ) -> None:
        self.act: Callable[[], object] = act
        self.told: Callable[[object, BaseException | None], object] = told


Told = tuple[LoopCall, object, BaseException | None]


def done(call: LoopCall) -> tuple[object, BaseException | None]:
    """Make a call; what came of it."""
    try:
        return call.act(), None
    except Exception as exc:
        return None, exc


def tell(told: list[Told]) -> None:
    """In the loop: say what came of calls."""
    for call, result, error in told:
        call.told(result, error)


def into(future: asyncio.Future[Any]) -> Callable[[object, BaseException | None], object]:
    """Puts what came of a call into a future, unless its task left."""

    def take(result: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    return take


class Wanting(Protocol[T]):
    """What a task waits for."""

    future: asyncio.Future[list[T]]


def hand_out(
    answers: Sequence[tuple[Wanting[T], list[T] | Exception]],
    give_back: Callable[[list[T]], object],
) -> None:
    """In the loop: hand messages to the tasks that wait for them; those of tasks that left go
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
    """One thread for the calls of one loop. put_away: see `Courier`."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, put_away: Callable[[], object] = lambda: None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = loop
        self._courier: Courier[LoopCall] = Courier(loop, "calls", self._work, put_away=put_away)

    async def make(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in the thread, after the calls made before. Cancelled, it is called
        nevertheless."""
        future: asyncio.Future[T] = self.loop.create_future()
        self._courier.send(LoopCall(lambda: act(*args, **kwargs), into(future)))
        return await future

    async def end(self) -> None:
        """End the thread, once all calls are made."""
        await self._courier.end()

    def _work(self, calls: list[LoopCall]) -> bool:
        told = [(call, *done(call)) for call in calls]
        self._courier.post(lambda: tell(told))
        return False
