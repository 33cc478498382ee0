"""Fetchers: one thread that pops and settles for the tasks of an event loop, through one popper.

Tasks that wait for messages wait in line. The thread pops for all of them at once, and never more
than they asked for, so each claimed message has a task that wants it. If a task is cancelled while
messages are on their way to it, they are given back, uncounted.

Acks and all other requests interrupt the thread while it waits for messages, so one is enough.
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
from cassq.worker.eventloop.calls import CallOutcome, LoopCall, deliver, done, hand_out, into
from cassq.worker.eventloop.loop_thread import LOOK_SECONDS, LoopThread, check_loop
from cassq.worker.eventloop.message import Message, SettleCallbacks

logger: logging.Logger = logging.getLogger("cassq")

P = ParamSpec("P")
T = TypeVar("T")


class TakeRequest:
    """A task's request for messages. wait: seconds at most; None: no limit. ahead: `most` is more
    than the task needs now, so one is enough if the group cannot give more. gone: the task was
    cancelled."""

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
        """How many seconds it still waits."""
        return WAIT_MAX_SECONDS if self.wait is None else self.wait - self.watch.seconds()


class Fetcher:
    """Takes from a popper for the tasks of one loop. Its methods are called in that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, popper: Popper, ports: Ports) -> None:
        self.popper: Popper = popper
        self.loop: asyncio.AbstractEventLoop = loop
        self._life = ports.life
        self._now_ms = ports.catalog.now_ms
        self._loop_thread: LoopThread[TakeRequest | LoopCall] = LoopThread(
            loop, "popper", self._work, interrupt=popper.interrupt, cleanup=popper.close
        )
        self._line: deque[TakeRequest] = deque()  # the thread's
        self._waiting: set[TakeRequest] = set()  # the loop's
        self._closing = False
        self._callbacks = SettleCallbacks(self.acks_later, self.ack_soon, self.call)

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
        the popper was stopped. If it is cancelled, messages that were claimed for it are given
        back, uncounted."""
        check_count("max_messages", most, POP_MAX)
        if wait is not None:
            check_seconds("wait", wait, WAIT_MAX_SECONDS)
        self.check()
        request = TakeRequest(most, wait, self.loop.create_future(), ahead=ahead)
        self._waiting.add(request)
        self._loop_thread.send(request)
        try:
            return await request.future
        except asyncio.CancelledError:
            request.gone = True
            if request.future.done() and not request.future.cancelled():
                if request.future.exception() is None:
                    self.give_back([message.delivered for message in request.future.result()])
            else:
                self._loop_thread.wake()
            raise
        finally:
            self._waiting.discard(request)

    def give_back(self, messages: Sequence[Delivered]) -> None:
        """Give messages back untried. Returns at once."""
        if messages:
            self._loop_thread.send(LoopCall(lambda: self.popper.release(messages), _log_release))

    def acks_later(self, message: Delivered) -> bool:
        """Whether an ack of a message only has to be noted. Raises as `check` does."""
        self.check()
        return not (message.settled or message.is_written_at_once(self._now_ms()))

    def ack_soon(self, message: Delivered) -> None:
        """Have the thread note an ack, which is written with others."""
        self._loop_thread.send(LoopCall(message.ack, _log_ack))

    def call_soon(
        self, act: Callable[[], object], callback: Callable[[object, BaseException | None], object]
    ) -> None:
        """Call something in the thread. Returns at once. callback: see `LoopCall`."""
        self._loop_thread.send(LoopCall(act, callback))

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call something in the thread, after earlier requests. If the wait is cancelled, it is
        called nevertheless."""
        self.check()
        return await self._call(act, *args, **kwargs)

    async def _call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        future: asyncio.Future[T] = self.loop.create_future()
        self._loop_thread.send(LoopCall(lambda: act(*args, **kwargs), into(future)))
        return await future

    def stop(self) -> None:
        """Hand out nothing more; tasks that wait get nothing. Returns at once."""
        self.popper.stop()
        self._loop_thread.wake()

    async def close(self) -> None:
        """Write the acks, and give all other messages back; tasks that wait get none.
        Repeatable."""
        self._life.check()
        check_loop(self.loop)
        if not self._closing:
            self._closing = True
            self.popper.stop()
            closing: asyncio.Future[None] = self.loop.create_future()
            self._loop_thread.send(LoopCall(self.popper.close, into(closing)))
            try:
                await asyncio.shield(closing)
            finally:
                for request in list(self._waiting):
                    if not request.future.done():
                        request.future.set_result([])
                await self._loop_thread.end()
        await self._loop_thread.end()

    # --- the thread's side ----------------------------------------------------------------------

    def _work(self, jobs: list[TakeRequest | LoopCall]) -> bool:
        outcomes: list[CallOutcome] = []
        for job in jobs:
            if isinstance(job, TakeRequest):
                self._line.append(job)
                continue
            result, error = done(job)
            outcomes.append((job, result, error))
        if outcomes:
            self._loop_thread.post(lambda: deliver(outcomes))
        if any(request.gone for request in self._line):
            self._line = deque(request for request in self._line if not request.gone)
        if self._line:
            self._pop()
        return bool(self._line)

    def _pop(self) -> None:
        """Pop once for the requests in line; answer those that got messages or waited long
        enough."""
        popper, line = self.popper, self._line
        if popper.claims_ahead:
            most = min(POP_MAX, sum(request.most for request in line))
        else:  # the next message may come only after the first in line has settled its own
            most = 1 if line[0].ahead else line[0].most
        wait = max(0.0, min(LOOK_SECONDS, *(request.left for request in line)))
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
        answers: list[tuple[TakeRequest, list[Message] | Exception]] = []
        at = 0
        left = list(found)
        while line and at < len(left):
            request = line.popleft()
            share = left[at : at + request.most]
            at += len(share)
            answers.append((request, [Message(each, self._callbacks) for each in share]))
        stopped = popper.stopped
        for request in [request for request in line if stopped or request.left <= 0]:
            line.remove(request)
            answers.append((request, []))
        if answers:
            self._answer(answers)

    def _answer(self, answers: Sequence[tuple[TakeRequest, list[Message] | Exception]]) -> None:
        def back(messages: list[Message]) -> None:
            self.give_back([message.delivered for message in messages])

        self._loop_thread.post(lambda: hand_out(answers, back))


def _log_release(_result: object, error: BaseException | None) -> None:
    if isinstance(error, (ClaimLostError, ClosedError)):
        logger.info("no messages to give back: %s", error)  # others have them, or may have them
    elif error is not None:
        logger.warning(
            "messages were not given back, so they come again only when their claims expire: %s",
            error,
        )


def _log_ack(_result: object, error: BaseException | None) -> None:
    if error is not None:
        logger.warning("an ack was not written, so its message will come again: %s", error)
