"""Takers: one thread that pops and settles for the tasks of an event loop, through one popper.

Tasks that wait for messages wait in line. The thread pops for all of them at once and never more
than they asked for, so what is claimed has a task that wants it. A task that was cancelled while
messages were on their way to it has them given back, uncounted.

While the thread waits for messages, acks and everything else interrupt it, so one thread is enough.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from cassq.base.arguments import check_count, check_seconds
from cassq.base.clock import Stopwatch
from cassq.consumer.delivery import Message as Delivered
from cassq.errors import CassqError, ClaimLostError, ClosedError, CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.popper import POP_MAX, WAIT_MAX_SECONDS, Popper
from cassq.worker.eventloop.calls import LoopCall, Told, done, hand_out, into, tell
from cassq.worker.eventloop.courier import LOOK_SECONDS, Courier, check_loop
from cassq.worker.eventloop.message import Message, Verbs

logger: logging.Logger = logging.getLogger("cassq")

P = ParamSpec("P")
T = TypeVar("T")


class Want:
    """Messages that a task waits for. wait: for how many seconds at most; None: without end.
    ahead: they are more than it needs now, if the group allows for that. gone: it left."""

    __slots__ = ("ahead", "future", "gone", "most", "wait", "watch")

    def __init__(
        self, most: int, wait: float | None, future: asyncio.Future[list[Message]], *, ahead: bool
    ) -> None:
        self.most: int = most
        self.wait: float | None = wait
        self.future: asyncio.Future[list[Message]] = future
        self.ahead: bool = ahead
        self.gone: bool = False
        self.watch: Stopwatch = Stopwatch()

    @property
    def left(self) -> float:
        """For how many seconds more it waits."""
        return WAIT_MAX_SECONDS if self.wait is None else self.wait - self.watch.seconds()


class Taker:
    """Takes from a popper for the tasks of one loop. Its methods are called in that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, popper: Popper, ports: Ports) -> None:
        self.popper: Popper = popper
        self.loop: asyncio.AbstractEventLoop = loop
        self._life = ports.life
        self._now_ms = ports.catalog.now_ms
        self._courier: Courier[Want | LoopCall] = Courier(
            loop, "popper", self._work, interrupt=popper.interrupt, put_away=popper.close
        )
        self._line: deque[Want] = deque()  # the thread's
        self._wanting: set[Want] = set()  # the loop's
        self._closing = False
        self._verbs = Verbs(self.acks_later, self.ack_soon, self.call)

    # --- the loop's side ------------------------------------------------------------------------

    def check(self) -> None:
        """Raise ForkedClientError, ClosedError or UsageError if it cannot be used here."""
        self._life.check()
        check_loop(self.loop)
        if self._closing:
            raise ClosedError("this popper is closed; its messages were given back")

    async def take(
        self, most: int, wait: float | None = 0.0, *, ahead: bool = False
    ) -> list[Message]:
        """At most `most` messages; empty if none arrive within `wait` seconds (None: no limit), or
        the popper was stopped. Cancelled, it gives back, uncounted, what was claimed for it."""
        check_count("max_messages", most, POP_MAX)
        if wait is not None:
            check_seconds("wait", wait, WAIT_MAX_SECONDS)
        self.check()
        want = Want(most, wait, self.loop.create_future(), ahead=ahead)
        self._wanting.add(want)
        self._courier.send(want)
        try:
            return await want.future
        except asyncio.CancelledError:
            want.gone = True
            if want.future.done() and not want.future.cancelled():
                if want.future.exception() is None:
                    self.give_back([message.delivered for message in want.future.result()])
            else:
                self._courier.hurry()
            raise
        finally:
            self._wanting.discard(want)

    def give_back(self, messages: Sequence[Delivered]) -> None:
        """Give messages back untried. Returns at once."""
        if messages:
            self._courier.send(LoopCall(lambda: self.popper.release(messages), _told_of_release))

    def acks_later(self, message: Delivered) -> bool:
        """Whether an ack of a message only has to be noted. Raises as `check` does."""
        self.check()
        return not (message.settled or message.is_written_at_once(self._now_ms()))

    def ack_soon(self, message: Delivered) -> None:
        """Have the thread note an ack, which is written with others."""
        self._courier.send(LoopCall(message.ack, _told_of_ack))

    def call_soon(
        self, act: Callable[[], object], told: Callable[[object, BaseException | None], object]
    ) -> None:
        """Have something called in the thread. Returns at once; told: see `LoopCall`."""
        self._courier.send(LoopCall(act, told))

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in the thread, after what was asked for before. Cancelled, it is called
        nevertheless."""
        self.check()
        return await self._call(act, *args, **kwargs)

    async def _call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        future: asyncio.Future[T] = self.loop.create_future()
        self._courier.send(LoopCall(lambda: act(*args, **kwargs), into(future)))
        return await future

    def stop(self) -> None:
        """Hand out nothing more; tasks that wait get nothing. Returns at once."""
        self.popper.stop()
        self._courier.hurry()

    async def close(self) -> None:
        """Write the acks, and give all other messages back; tasks that wait get none. Can be
        repeated."""
        self._life.check()
        check_loop(self.loop)
        if not self._closing:
            self._closing = True
            self.popper.stop()
            closing: asyncio.Future[None] = self.loop.create_future()
            self._courier.send(LoopCall(self.popper.close, into(closing)))
            try:
                await asyncio.shield(closing)
            finally:
                for want in list(self._wanting):
                    if not want.future.done():
                        want.future.set_result([])
                await self._courier.end()
        await self._courier.end()

    # --- the thread's side ----------------------------------------------------------------------

    def _work(self, jobs: list[Want | LoopCall]) -> bool:
        told: list[Told] = []
        for job in jobs:
            if isinstance(job, Want):
                self._line.append(job)
                continue
            result, error = done(job)
            told.append((job, result, error))
        if told:
            self._courier.post(lambda: tell(told))
        if any(want.gone for want in self._line):
            self._line = deque(want for want in self._line if not want.gone)
        if self._line:
            self._pop()
        return bool(self._line)

    def _pop(self) -> None:
        """Pop once for those in line, and answer those that got something or waited long enough."""
        popper, line = self.popper, self._line
        if popper.claims_ahead:
            most = min(POP_MAX, sum(want.most for want in line))
        else:  # the first may have to settle its messages before there are any for the next
            most = 1 if line[0].ahead else line[0].most
        wait = max(0.0, min(LOOK_SECONDS, *(want.left for want in line)))
        try:
            found: Sequence[Delivered] = popper.pop(most, wait)
        except ClosedError:
            found = ()
        except CassqError as exc:
            once = isinstance(exc, (CorruptionError, ExtentMissingError))  # raised for a pipe
            self._answer([(line.popleft(), exc) for _ in range(1 if once else len(line))])
            return
        except Exception as exc:
            self._answer([(line.popleft(), exc) for _ in range(len(line))])
            raise
        answers: list[tuple[Want, list[Message] | Exception]] = []
        at = 0
        left = list(found)
        while line and at < len(left):
            want = line.popleft()
            share = left[at : at + want.most]
            at += len(share)
            answers.append((want, [Message(each, self._verbs) for each in share]))
        stopped = popper.stopped
        for want in [want for want in line if stopped or want.left <= 0]:
            line.remove(want)
            answers.append((want, []))
        if answers:
            self._answer(answers)

    def _answer(self, answers: Sequence[tuple[Want, list[Message] | Exception]]) -> None:
        def back(messages: list[Message]) -> None:
            self.give_back([message.delivered for message in messages])

        self._courier.post(lambda: hand_out(answers, back))


def _told_of_release(_result: object, error: BaseException | None) -> None:
    if isinstance(error, (ClaimLostError, ClosedError)):
        logger.info("no messages to give back: %s", error)  # others have them, or may
    elif error is not None:
        logger.warning("messages could not be given back, and come when they expire: %s", error)


def _told_of_ack(_result: object, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("an ack was not written, so its message comes again: %s", error)
