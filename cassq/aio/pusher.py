"""Pushers for an event loop: what tasks push while an append is in flight is appended together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby, islice
from typing import NoReturn, TypeVar

from cassq.base.arguments import refuse_pickling
from cassq.errors import ClosedError
from cassq.lifecycle.ports import Lifecycle
from cassq.message.message_ids import MessageId, MessageIds
from cassq.producer.admission import OVERHEAD_BYTES
from cassq.producer.pusher import BUFFER_BYTES_MAX, BUFFER_MESSAGES_MAX, Push
from cassq.producer.pusher import Pusher as ThreadPusher
from cassq.worker.eventloop.calls import CallOutcome, LoopCall, deliver, done, into
from cassq.worker.eventloop.loop_thread import LoopThread, check_loop

T = TypeVar("T")

_NOT_PUSHED = "the message was not pushed"
_MAYBE_PUSHED = "the message may have been pushed: it was on its way"


class _Pending:
    """A push that a task waits for. begun: whether the thread has it."""

    __slots__ = ("begun", "future", "push", "size")

    def __init__(self, push: Push, size: int, future: asyncio.Future[MessageId]) -> None:
        self.push: Push = push
        self.size: int = size
        self.future: asyncio.Future[MessageId] = future
        self.begun: bool = False


class _Several:
    """Pushes that a task waits for together."""

    __slots__ = ("future", "pushes", "size")

    def __init__(
        self,
        pushes: Sequence[Push],
        size: int,
        future: asyncio.Future[list[MessageId | Exception]],
    ) -> None:
        self.pushes: Sequence[Push] = pushes
        self.size: int = size
        self.future: asyncio.Future[list[MessageId | Exception]] = future


class Pusher:
    """Pushes to one queue, for the tasks of one event loop; get one from `Queue.pusher`.

    The buffer of messages that wait to be appended is bounded, as in `cassq.Pusher.push_soon`: when
    it is full, `push` and `push_each` wait for room.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        life: Lifecycle,
        open_pusher: Callable[[], ThreadPusher],
    ) -> None:
        self._loop = loop
        self._life = life
        self._open = open_pusher
        self._pusher: ThreadPusher | None = None  # the thread's
        self._loop_thread: LoopThread[_Pending | _Several | LoopCall] = LoopThread(
            loop, "pusher", self._work, wanted=self._begin, cleanup=self._close_now
        )
        self._bytes = 0
        self._messages = 0
        self._rooms: deque[tuple[asyncio.Future[None], int]] = deque()
        self._closed = False

    # --- the loop's side ------------------------------------------------------------------------

    async def push(
        self,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        dedup_id: str | None = None,
        importance: str | None = None,
        priority: int = 0,
    ) -> MessageId:
        """Push one message; returns its id. Durable on return. Arguments and errors: as for
        `cassq.Pusher.push`.

        If it is cancelled, a note of the CancelledError says whether the message may have been
        pushed. Cost: one append and one sync, shared with all pushes that wait at the same time.
        """
        self._check()
        push = Push(payload, headers, key, delay, due, dedup_id, importance, priority)
        size = _size(payload)
        try:
            await self._room_for(size)
        except asyncio.CancelledError as exc:
            exc.add_note(_NOT_PUSHED)
            raise
        pending = _Pending(push, size, self._loop.create_future())
        self._loop_thread.send(pending)
        try:
            return await pending.future
        except asyncio.CancelledError as exc:
            exc.add_note(_MAYBE_PUSHED if pending.begun else _NOT_PUSHED)
            raise

    async def push_many(
        self,
        payloads: Iterable[bytes],
        *,
        headers: Sequence[Mapping[str, str] | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        delay: float | None = None,
        due: datetime | None = None,
        dedup_ids: Sequence[str | None] | None = None,
        importance: str | None = None,
        priority: int | Sequence[int] = 0,
    ) -> MessageIds:
        """Push messages in order; returns their ids. All are durable on return. Arguments, errors
        and cost: as for `cassq.Pusher.push_many`. If it is cancelled, it pushes nevertheless."""
        self._check()
        found = payloads if isinstance(payloads, (list, tuple)) else list(payloads)
        return await self._call(
            lambda: self._opened().push_many(
                found,
                headers=headers,
                keys=keys,
                delay=delay,
                due=due,
                dedup_ids=dedup_ids,
                importance=importance,
                priority=priority,
            )
        )

    async def push_each(self, pushes: Sequence[Push]) -> list[MessageId | Exception]:
        """Push messages, each with its own arguments; returns the id or error of each, as
        `cassq.Pusher.push_each` does. If it is cancelled, it may push nevertheless.

        Cost: that of one `push`, shared with all pushes that wait at the same time.
        """
        self._check()
        size = sum(_size(push.payload) for push in pushes)
        await self._room_for(size)
        several = _Several(pushes, size, self._loop.create_future())
        self._loop_thread.send(several)
        return await several.future

    async def close(self) -> None:
        """Push what waits, and seal the pipe. Later pushes raise ClosedError. Repeatable."""
        self._life.check()
        check_loop(self._loop)
        if not self._closed:
            self._closed = True
            await asyncio.shield(self._ask(self._close_now))
        await self._loop_thread.end()

    @property
    def closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Pusher:
        self._check()
        await self._call(self._opened)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("pusher", "pass the names, and open one there")

    def _check(self) -> None:
        self._life.check()
        check_loop(self._loop)
        if self._closed:
            raise ClosedError("this pusher is closed")

    async def _call(self, act: Callable[[], T]) -> T:
        return await self._ask(act)

    def _ask(self, act: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._loop_thread.send(LoopCall(act, into(future)))
        return future

    def _begin(self, job: _Pending | _Several | LoopCall) -> bool:
        """Whether a job is still wanted; called just before the thread gets it."""
        if isinstance(job, _Pending):
            if job.future.cancelled():
                self._free(job.size)
                return False
            job.begun = True
        return True

    # --- room -----------------------------------------------------------------------------------

    async def _room_for(self, size: int) -> None:
        """Wait in line for room, and take it."""
        if not self._rooms and self._has_room(size):
            self._take(size)
            return
        room: asyncio.Future[None] = self._loop.create_future()
        self._rooms.append((room, size))
        try:
            await room
        except asyncio.CancelledError:
            if room.done() and not room.cancelled():
                self._free(size)
            raise
        self._check_still_open(size)

    def _check_still_open(self, size: int) -> None:
        if self._closed:
            self._free(size)
            self._check()

    def _has_room(self, size: int) -> bool:
        fits = self._bytes + size <= BUFFER_BYTES_MAX and self._messages < BUFFER_MESSAGES_MAX
        return fits or not self._messages

    def _take(self, size: int) -> None:
        self._bytes += size
        self._messages += 1

    def _free(self, size: int) -> None:
        self._bytes -= size
        self._messages -= 1
        while self._rooms and self._has_room(self._rooms[0][1]):
            room, wanted = self._rooms.popleft()
            if not room.done():
                self._take(wanted)
                room.set_result(None)

    # --- the thread's side ----------------------------------------------------------------------

    def _opened(self) -> ThreadPusher:
        if self._pusher is None:
            self._pusher = self._open()
        return self._pusher

    def _close_now(self) -> None:
        if self._pusher is not None:
            self._pusher.close()

    def _work(self, jobs: list[_Pending | _Several | LoopCall]) -> bool:
        for calls, some in groupby(jobs, key=lambda job: isinstance(job, LoopCall)):
            if calls:
                outcomes: list[CallOutcome] = [
                    (job, *done(job)) for job in some if isinstance(job, LoopCall)
                ]
                self._loop_thread.post(partial(deliver, outcomes))
            else:
                self._push([job for job in some if not isinstance(job, LoopCall)])
        return False

    def _push(self, some: list[_Pending | _Several]) -> None:
        pushes: list[Push] = []
        for pending in some:
            if isinstance(pending, _Pending):
                pushes.append(pending.push)
            else:
                pushes += pending.pushes
        outcomes: Sequence[MessageId | Exception]
        try:
            outcomes = self._opened().push_each(pushes)
        except Exception as exc:
            outcomes = [exc] * len(pushes)
        self._loop_thread.post(lambda: self._pushed(some, outcomes))

    def _pushed(
        self, some: list[_Pending | _Several], outcomes: Sequence[MessageId | Exception]
    ) -> None:
        left = iter(outcomes)
        for pending in some:
            self._free(pending.size)
            if isinstance(pending, _Several):
                its = list(islice(left, len(pending.pushes)))
                if not pending.future.done():  # otherwise its task was cancelled
                    pending.future.set_result(its)
                continue
            outcome = next(left)
            if pending.future.done():
                continue
            if isinstance(outcome, Exception):
                pending.future.set_exception(outcome)
            else:
                pending.future.set_result(outcome)


def _size(payload: object) -> int:
    """The room that a push takes, in bytes."""
    return OVERHEAD_BYTES + (len(payload) if isinstance(payload, bytes) else 0)
