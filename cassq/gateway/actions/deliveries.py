"""Deliveries: one thread for each queue that receives messages and settles them, for all requests.

What the requests of one turn of the loop ask for reaches the thread together: all that is deleted
is written in one transaction, and what several wait for is claimed in one. Requests that wait stand
in line, and never more is claimed than they ask for: a message that nobody gets would be hidden
from everybody until its deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cassq.base.clock import Stopwatch
from cassq.client.queue import Queue
from cassq.consumer.delivery import Message
from cassq.consumer.receiving import RECEIVE_MAX, Receiver
from cassq.errors import CassqError, CorruptionError, ReceiptError
from cassq.eventloop.calls import Call, Told, done, hand_out, into, tell
from cassq.eventloop.courier import LOOK_SECONDS, Courier
from cassq.extents.port import ExtentMissingError

logger: logging.Logger = logging.getLogger("cassq")


class _Want:
    """Messages that a request waits for. ms: for how long they become its own. seconds: how long it
    waits. gone: its client left."""

    __slots__ = ("future", "gone", "most", "ms", "seconds", "watch")

    def __init__(
        self, most: int, ms: int, seconds: float, future: asyncio.Future[list[Message]]
    ) -> None:
        self.most: int = most
        self.ms: int = ms
        self.seconds: float = seconds
        self.future: asyncio.Future[list[Message]] = future
        self.gone: bool = False
        self.watch: Stopwatch = Stopwatch()

    @property
    def left(self) -> float:
        """For how many seconds more it waits."""
        return self.seconds - self.watch.seconds()


class _Deletion(NamedTuple):
    """Messages to be deleted, by their receipts."""

    receipts: Sequence[str]
    future: asyncio.Future[frozenset[str]]


class Deliveries:
    """Receives and settles the messages of one group of a queue. open_receiver: opens a receiver;
    called in the thread. Methods are called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queue: Queue,
        open_receiver: Callable[[], Receiver],
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._open = open_receiver
        self._receiver: Receiver | None = None  # the thread's
        self._line: deque[_Want] = deque()  # the thread's
        self._courier: Courier[_Want | _Deletion | Call] = Courier(
            loop, "deliveries", self._work, interrupt=self._interrupt, put_away=self._close_now
        )
        self.waiting: int = 0  # requests that wait

    # --- the loop's side ------------------------------------------------------------------------

    async def receive(self, most: int, ms: int, seconds: float) -> list[Message]:
        """At most `most` messages, which are nobody else's for `ms` milliseconds; empty if none
        come within `seconds`. Cancelled, it gives back, uncounted, what was received for it."""
        want = _Want(most, ms, seconds, self._loop.create_future())
        self._courier.send(want)
        self.waiting += 1
        try:
            return await want.future
        except asyncio.CancelledError:
            want.gone = True
            if want.future.done() and not want.future.cancelled():
                if want.future.exception() is None:
                    self.release_soon([message.receipt for message in want.future.result()])
            else:
                self._courier.hurry()
            raise
        finally:
            self.waiting -= 1

    async def delete(self, receipts: Sequence[str]) -> frozenset[str]:
        """Ack messages, durably. Returns the receipts that are not valid any more: their messages
        are settled, or were delivered again."""
        future: asyncio.Future[frozenset[str]] = self._loop.create_future()
        self._courier.send(_Deletion(receipts, future))
        return await future

    async def hide(self, receipts: Sequence[str], seconds: int) -> frozenset[str]:
        """Move the deadlines of messages to `seconds` from now, durably. Returns the receipts of
        messages that nobody has any more."""
        settle = self._queue.settle

        def move() -> frozenset[str]:
            try:
                settle(receipts).extend(seconds, overdue=False)
            except ReceiptError as exc:
                return frozenset(exc.receipts)
            return frozenset()

        future: asyncio.Future[frozenset[str]] = self._loop.create_future()
        self._courier.send(Call(move, into(future)))
        return await future

    async def release(self, receipts: Sequence[str]) -> None:
        """Give messages back as if they had not been received, but for those that are settled."""
        future: asyncio.Future[None] = self._loop.create_future()

        def give_back() -> None:
            with contextlib.suppress(ReceiptError):
                self._queue.settle(receipts).release()

        self._courier.send(Call(give_back, into(future)))
        await future

    def release_soon(self, receipts: Sequence[str]) -> None:
        """`release`, without waiting for it."""
        if receipts:
            self._courier.send(Call(self._queue.settle(receipts).release, _told_of_release))

    async def close(self) -> None:
        """Do what was asked for, and end the thread; requests that wait get nothing. Repeatable."""
        self._courier.send(Call(self._close_now, lambda _result, _error: None))
        await self._courier.end()

    def _interrupt(self) -> None:
        if self._receiver is not None:
            self._receiver.interrupt()

    # --- the thread's side ----------------------------------------------------------------------

    def _work(self, jobs: list[_Want | _Deletion | Call]) -> bool:
        deletions: list[_Deletion] = []
        told: list[Told] = []
        for job in jobs:
            if isinstance(job, _Want):
                self._line.append(job)
            elif isinstance(job, _Deletion):
                deletions.append(job)
            else:
                told.append((job, *done(job)))
        if deletions:
            self._delete(deletions)
        if told:
            self._courier.post(lambda: tell(told))
        if any(want.gone for want in self._line):
            self._line = deque(want for want in self._line if not want.gone)
        if self._line:
            self._serve()
        return bool(self._line)

    def _delete(self, deletions: list[_Deletion]) -> None:
        """Ack all that was asked for in one transaction."""
        invalid: frozenset[str] = frozenset()
        error: CassqError | None = None
        receipts = [receipt for deletion in deletions for receipt in deletion.receipts]
        try:
            self._queue.settle(receipts).ack()
        except ReceiptError as exc:
            invalid = frozenset(exc.receipts)
        except CassqError as exc:
            error = exc

        def report() -> None:
            for deletion in deletions:
                if deletion.future.done():
                    continue  # its task left
                if error is not None:
                    deletion.future.set_exception(error)
                else:
                    deletion.future.set_result(invalid.intersection(deletion.receipts))

        self._courier.post(report)

    def _opened(self) -> Receiver:
        if self._receiver is None:
            self._receiver = self._open()
        return self._receiver

    def _close_now(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._answer([(want, []) for want in self._line])
        self._line.clear()

    def _serve(self) -> None:
        """Receive for those in line, and wait a moment if there is nothing for some of them."""
        line = self._line
        try:
            receiver = self._opened()
            while line and self._receive(receiver):
                continue
            over = [want for want in line if want.left <= 0]
            if over:
                self._line = deque(want for want in line if want not in over)
                self._answer([(want, []) for want in over])
            elif line:
                receiver.wait(min(LOOK_SECONDS, *(want.left for want in line)))
        except CassqError as exc:
            once = isinstance(exc, (CorruptionError, ExtentMissingError))  # raised for a pipe
            self._answer([(line.popleft(), exc) for _ in range(1 if once else len(line))])
        except Exception as exc:
            self._answer([(line.popleft(), exc) for _ in range(len(line))])
            raise

    def _receive(self, receiver: Receiver) -> bool:
        """Receive once for the first in line, and all others that want their messages for as long;
        False if there was nothing."""
        ms = self._line[0].ms
        alike = [want for want in self._line if want.ms == ms]
        most = min(RECEIVE_MAX, sum(want.most for want in alike))
        found = receiver.receive(most, ms)
        at = 0
        answers: list[tuple[_Want, list[Message] | Exception]] = []
        for want in alike:
            if at >= len(found):
                break
            share = list(found[at : at + want.most])
            at += len(share)
            answers.append((want, share))
        if answers:
            served = {id(want) for want, _ in answers}
            self._line = deque(want for want in self._line if id(want) not in served)
            self._answer(answers)
        return bool(found) and bool(self._line)

    def _answer(self, answers: Sequence[tuple[_Want, list[Message] | Exception]]) -> None:
        def back(messages: list[Message]) -> None:
            self.release_soon([message.receipt for message in messages])

        if answers:
            self._courier.post(lambda: hand_out(answers, back))


def _told_of_release(_result: object, error: BaseException | None) -> None:
    if isinstance(error, ReceiptError):
        logger.info("messages of a client that left are with others by now: %s", error)
    elif error is not None:
        logger.warning("messages of a client that left come when their time is over: %s", error)
