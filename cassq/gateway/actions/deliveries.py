"""Deliveries: each queue has two threads for all requests: one receives messages, one settles.

The requests of one turn of the loop reach a thread together: all deletions are written in one
transaction, and the messages for several requests are claimed in one. Requests wait in line, and
never more messages are claimed than they ask for: a message without a receiver would be hidden from
all until its deadline. With two threads, receiving need not wait for the syncs of deletions.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from operator import attrgetter
from typing import NamedTuple

from cassq.base.clock import Stopwatch
from cassq.client.queue import Queue
from cassq.consumer.delivery import Message
from cassq.consumer.receiving import RECEIVE_MAX, AnyReceiver
from cassq.errors import CassqError, CorruptionError, ReceiptError
from cassq.extents.port import ExtentMissingError
from cassq.worker.eventloop.calls import CallOutcome, LoopCall, deliver, done, hand_out, into
from cassq.worker.eventloop.loop_thread import LOOK_SECONDS, LoopThread

logger: logging.Logger = logging.getLogger("cassq")


class _ReceiveRequest:
    """A request that waits for messages. number: its place in line. ms: how long its messages are
    hidden from others. until: when it has waited long enough, by the watch of its `Deliveries`."""

    __slots__ = ("future", "most", "ms", "number", "until")

    def __init__(
        self, number: int, most: int, ms: int, until: float, future: asyncio.Future[list[Message]]
    ) -> None:
        self.number: int = number
        self.most: int = most
        self.ms: int = ms
        self.until: float = until
        self.future: asyncio.Future[list[Message]] = future


class _Cancellation(NamedTuple):
    """A request whose client disconnected."""

    request: _ReceiveRequest


class _Line:
    """Requests that wait for messages: a line for each visibility timeout (`ms`). Ten thousand may
    wait, so no method but `clear` goes over all of them. Used by the receiving thread only."""

    def __init__(self) -> None:
        self._alike: dict[int, OrderedDict[int, _ReceiveRequest]] = {}
        self._asked: Counter[int] = Counter()  # how many messages each line asks for
        self._ends: list[tuple[float, int, int]] = []  # a heap: when, the line, the number

    def __bool__(self) -> bool:
        return bool(self._alike)

    def join(self, request: _ReceiveRequest) -> None:
        self._alike.setdefault(request.ms, OrderedDict())[request.number] = request
        self._asked[request.ms] += request.most
        heapq.heappush(self._ends, (request.until, request.ms, request.number))

    def leave(self, ms: int, number: int) -> _ReceiveRequest | None:
        """Remove a request; None if it is not in line any more."""
        line = self._alike.get(ms)
        request = None if line is None else line.pop(number, None)
        if line is None or request is None:
            return None
        self._asked[ms] -= request.most
        if not line:
            del self._alike[ms], self._asked[ms]
        return request

    def first(self) -> _ReceiveRequest:
        """The request that has waited for longest."""
        heads = (next(iter(line.values())) for line in self._alike.values())
        return min(heads, key=attrgetter("number"))

    def asked(self, ms: int) -> int:
        """How many messages the requests with this visibility timeout ask for."""
        return self._asked[ms]

    def served(self, ms: int, found: list[Message]) -> list[tuple[_ReceiveRequest, list[Message]]]:
        """Distribute messages to the first requests with this visibility timeout; these leave the
        line."""
        dealt: list[tuple[_ReceiveRequest, list[Message]]] = []
        at = 0
        while at < len(found) and ms in self._alike:
            request = next(iter(self._alike[ms].values()))
            self.leave(ms, request.number)
            dealt.append((request, found[at : at + request.most]))
            at += request.most
        return dealt

    def over(self, now: float) -> list[_ReceiveRequest]:
        """The requests that have waited for long enough; they leave the line."""
        found: list[_ReceiveRequest] = []
        while self._ends:
            until, ms, number = self._ends[0]
            if until > now and number in self._alike.get(ms, ()):
                break
            heapq.heappop(self._ends)
            request = self.leave(ms, number)
            if request is not None:
                found.append(request)
        return found

    def next_end(self) -> float:
        """When the next request will have waited for long enough. Call it after `over`."""
        return self._ends[0][0]

    def clear(self) -> list[_ReceiveRequest]:
        """All requests, in order; they leave the line."""
        found = [request for line in self._alike.values() for request in line.values()]
        self._alike.clear()
        self._asked.clear()
        self._ends.clear()
        return sorted(found, key=attrgetter("number"))


class _Deletion(NamedTuple):
    """A request to delete messages, by their receipts."""

    receipts: Sequence[str]
    future: asyncio.Future[frozenset[str]]


class Deliveries:
    """Receives and settles the messages of one group of a queue. open_receiver: opens a receiver;
    called in the thread. in_time: whether messages past their deadline cannot be deleted. Methods
    must be called in the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queue: Queue,
        open_receiver: Callable[[], AnyReceiver],
        *,
        in_time: bool = False,
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._open = open_receiver
        self._in_time = in_time
        self._receiver: AnyReceiver | None = None  # the receiving thread's
        self._line = _Line()  # the receiving thread's
        self._watch = Stopwatch()
        self._numbers = count()
        self._receiving: LoopThread[_ReceiveRequest | _Cancellation | LoopCall] = LoopThread(
            loop, "receiving", self._work, interrupt=self._interrupt, cleanup=self._close_now
        )
        self._settling: LoopThread[_Deletion | LoopCall] = LoopThread(
            loop, "settling", self._settle
        )
        self.waiting: int = 0  # requests that wait

    # --- the loop's side ------------------------------------------------------------------------

    async def receive(self, most: int, ms: int, seconds: float) -> list[Message]:
        """At most `most` messages, hidden from others for `ms` milliseconds; empty if none come
        within `seconds`. If it is cancelled, messages that were received for it are given back,
        uncounted."""
        until = self._watch.seconds() + seconds
        request = _ReceiveRequest(next(self._numbers), most, ms, until, self._loop.create_future())
        self._receiving.send(request)
        self.waiting += 1
        try:
            return await request.future
        except asyncio.CancelledError:
            if request.future.done() and not request.future.cancelled():
                if request.future.exception() is None:
                    self.release_soon([message.receipt for message in request.future.result()])
            else:
                self._receiving.send(_Cancellation(request))
            raise
        finally:
            self.waiting -= 1

    async def delete(self, receipts: Sequence[str]) -> frozenset[str]:
        """Ack messages, durably. Returns the receipts that are not valid any more: their messages
        are settled, or were delivered again."""
        future: asyncio.Future[frozenset[str]] = self._loop.create_future()
        self._settling.send(_Deletion(receipts, future))
        return await future

    async def hide(self, receipts: Sequence[str], seconds: int) -> frozenset[str]:
        """Move the deadlines of messages to `seconds` from now, durably. Returns the receipts that
        are not valid any more."""
        settle = self._queue.settle

        def move() -> frozenset[str]:
            try:
                settle(receipts).extend(seconds, overdue=False)
            except ReceiptError as exc:
                return frozenset(exc.receipts)
            return frozenset()

        future: asyncio.Future[frozenset[str]] = self._loop.create_future()
        self._settling.send(LoopCall(move, into(future)))
        return await future

    async def release(self, receipts: Sequence[str]) -> None:
        """Give messages back as if they had not been received; skips those that are settled."""
        future: asyncio.Future[None] = self._loop.create_future()

        def give_back() -> None:
            with contextlib.suppress(ReceiptError):
                self._queue.settle(receipts).release()

        self._settling.send(LoopCall(give_back, into(future)))
        await future

    def release_soon(self, receipts: Sequence[str]) -> None:
        """`release`, without waiting for it."""
        if receipts:
            self._settling.send(LoopCall(self._queue.settle(receipts).release, _log_release))

    async def close(self) -> None:
        """Carry out pending deletions, and end the threads; requests that wait get nothing.
        Repeatable."""
        self._receiving.send(LoopCall(self._close_now, lambda _result, _error: None))
        await self._receiving.end()
        await self._settling.end()

    def _interrupt(self) -> None:
        if self._receiver is not None:
            self._receiver.interrupt()

    # --- the settling thread ----------------------------------------------------------------------

    def _settle(self, jobs: list[_Deletion | LoopCall]) -> bool:
        deletions = [job for job in jobs if isinstance(job, _Deletion)]
        outcomes: list[CallOutcome] = [
            (job, *done(job)) for job in jobs if isinstance(job, LoopCall)
        ]
        if outcomes:
            self._settling.post(lambda: deliver(outcomes))
        if deletions:
            self._delete(deletions)
        return False

    def _delete(self, deletions: list[_Deletion]) -> None:
        """Carry out all deletions in one transaction."""
        invalid: frozenset[str] = frozenset()
        error: CassqError | None = None
        receipts = [receipt for deletion in deletions for receipt in deletion.receipts]
        try:
            self._queue.settle(receipts).ack(overdue=not self._in_time)
        except ReceiptError as exc:
            invalid = frozenset(exc.receipts)
        except CassqError as exc:
            error = exc
        receiver = self._receiver
        if receiver is not None and error is None:
            receiver.settled(receipt for receipt in receipts if receipt not in invalid)

        def report() -> None:
            for deletion in deletions:
                if deletion.future.done():
                    continue  # its task was cancelled
                if error is not None:
                    deletion.future.set_exception(error)
                elif invalid:
                    deletion.future.set_result(invalid.intersection(deletion.receipts))
                else:
                    deletion.future.set_result(invalid)

        self._settling.post(report)

    # --- the receiving thread ---------------------------------------------------------------------

    def _work(self, jobs: list[_ReceiveRequest | _Cancellation | LoopCall]) -> bool:
        outcomes: list[CallOutcome] = []
        for job in jobs:
            if isinstance(job, _ReceiveRequest):
                self._line.join(job)
            elif isinstance(job, _Cancellation):
                self._line.leave(job.request.ms, job.request.number)
            else:
                outcomes.append((job, *done(job)))
        if outcomes:
            self._receiving.post(lambda: deliver(outcomes))
        if self._line:
            self._serve()
        return bool(self._line)

    def _opened(self) -> AnyReceiver:
        if self._receiver is None:
            self._receiver = self._open()
        return self._receiver

    def _close_now(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
        self._answer([(request, []) for request in self._line.clear()])

    def _serve(self) -> None:
        """Receive for the requests in line; if some get nothing, wait a moment for messages."""
        line = self._line
        try:
            receiver = self._opened()
            while line and self._receive(receiver):
                continue
            now = self._watch.seconds() - receiver.patience
            self._answer([(request, []) for request in line.over(now)])
            if line:
                left = line.next_end() - now
                receiver.wait(max(0.0, min(LOOK_SECONDS, left)))
        except CassqError as exc:
            if isinstance(exc, (CorruptionError, ExtentMissingError)):  # raised for a pipe
                first = line.first()
                line.leave(first.ms, first.number)
                self._answer([(first, exc)])
            else:
                self._answer([(request, exc) for request in line.clear()])
        except Exception as exc:
            self._answer([(request, exc) for request in line.clear()])
            raise

    def _receive(self, receiver: AnyReceiver) -> bool:
        """Receive once for the first in line, and all others with its visibility timeout; False if
        there was nothing."""
        ms = self._line.first().ms
        found = list(receiver.receive(min(RECEIVE_MAX, self._line.asked(ms)), ms))
        self._answer(self._line.served(ms, found))
        return bool(found)

    def _answer(self, answers: Sequence[tuple[_ReceiveRequest, list[Message] | Exception]]) -> None:
        def back(messages: list[Message]) -> None:
            self.release_soon([message.receipt for message in messages])

        if answers:
            self._receiving.post(lambda: hand_out(answers, back))


def _log_release(_result: object, error: BaseException | None) -> None:
    if isinstance(error, ReceiptError):
        logger.info(
            "other clients have since received the messages of a client that disconnected: %s",
            error,
        )
    elif error is not None:
        logger.warning(
            "messages of a client that disconnected come again only after their visibility"
            " timeout: %s",
            error,
        )
