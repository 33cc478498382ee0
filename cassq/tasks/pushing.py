"""Pushes from event loops: calls pushed in one turn of a loop are handed to a thread together.

An app has one such thread, however many loops and queues there are. The thread pushes the calls
that have arrived with one sync for each queue, and wakes each loop once.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from cassq.errors import ClosedError
from cassq.message.message_ids import MessageId
from cassq.producer.pusher import Push, Pusher

Outcome = MessageId | Exception


class _PendingCall:
    """A push that a task waits for."""

    __slots__ = ("future", "push", "queue")

    def __init__(self, queue: str, push: Push, future: asyncio.Future[MessageId]) -> None:
        self.queue: str = queue
        self.push: Push = push
        self.future: asyncio.Future[MessageId] = future


class _Turn:
    """Collects the pushes of one turn of a loop. It does not keep the loop alive."""

    def __init__(self, hand_over: Callable[[_Batch], object]) -> None:
        self._hand_over = hand_over
        self._waiting: list[_PendingCall] = []

    def add(self, pending: _PendingCall, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(pending)
        if len(self._waiting) == 1:
            loop.call_soon(self._send, loop)

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, self._waiting = self._waiting, []
        self._hand_over(_Batch(loop, waiting))


class _Batch:
    """Pushes of one loop, and their outcomes."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pushes: list[_PendingCall]) -> None:
        self._loop = loop
        self.pushes: list[_PendingCall] = pushes
        self._outcomes: Sequence[Outcome] = ()

    def report(self, outcomes: Sequence[Outcome]) -> None:
        """Pass the outcomes to the tasks that wait. Safe in any thread."""
        self._outcomes = outcomes
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:  # the loop was closed: no task of it waits
            if not self._loop.is_closed():
                raise

    def _tell(self) -> None:
        for pending, outcome in zip(self.pushes, self._outcomes, strict=True):
            future = pending.future
            if future.done():
                continue  # its task was cancelled
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class Pushing:
    """The thread that pushes for the event loops of an app. pusher: opens the pusher of a queue, by
    name."""

    def __init__(self, pusher: Callable[[str], Pusher]) -> None:
        self._pusher = pusher
        self._turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Turn] = (
            weakref.WeakKeyDictionary()
        )
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def push(self, queue: str, push: Push) -> MessageId:
        """Push a message; returns its id. If the wait is cancelled, it is pushed nevertheless."""
        loop = asyncio.get_running_loop()
        turn = self._turns.get(loop)
        if turn is None:
            turn = self._turns[loop] = _Turn(self._hand_over)
        future: asyncio.Future[MessageId] = loop.create_future()
        turn.add(_PendingCall(queue, push, future), loop)
        return await future

    def _hand_over(self, batch: _Batch) -> None:
        with self._lock:
            if self._closed:
                batch.report([ClosedError("this app was closed")] * len(batch.pushes))
                return
            if self._thread is None:
                name = "cassq-tasks-pusher"
                self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
                self._thread.start()
            self._batches.put(batch)

    def close(self) -> None:
        """End the thread, once it has pushed everything."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            self._batches.put(None)
            thread.join()

    def _serve(self) -> None:
        while (batch := self._batches.get()) is not None:
            batches = [batch]
            while not self._batches.empty():
                more = self._batches.get()
                if more is None:
                    self._push(batches)
                    return
                batches.append(more)
            self._push(batches)

    def _push(self, batches: list[_Batch]) -> None:
        """Push what some loops sent, the calls of each queue together."""
        by_queue: dict[str, list[_PendingCall]] = {}
        for batch in batches:
            for pending in batch.pushes:
                by_queue.setdefault(pending.queue, []).append(pending)
        outcomes: dict[int, Outcome] = {}
        for queue, some in by_queue.items():
            found: Sequence[Outcome]
            try:
                found = self._pusher(queue).push_each([pending.push for pending in some])
            except Exception as exc:
                found = [exc] * len(some)
            outcomes.update(zip(map(id, some), found, strict=True))
        for batch in batches:
            batch.report([outcomes[id(pending)] for pending in batch.pushes])
