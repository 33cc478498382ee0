"""Poppers for an event loop: pop, iterate and settle without blocking it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NoReturn

from cassq.base.arguments import error_text, milliseconds, refuse_pickling
from cassq.base.clock import Stopwatch
from cassq.consumer.delivery import Error
from cassq.consumer.delivery import Message as Delivered
from cassq.errors import ClosedError, UsageError
from cassq.worker.eventloop.fetcher import Fetcher
from cassq.worker.eventloop.message import Message

# An iteration prefetches what it finishes in about a tenth of a second, and no more than this.
AHEAD_MAX = 1024
QUICK_SECONDS = 0.05
SLOW_SECONDS = 0.1
UNUSED_SECONDS = 0.5  # prefetched messages that are not used for this long go back


class Popper:
    """Pops messages for one group of a queue, for the tasks of one event loop; get one from
    `Queue.popper`. It is opened by `async with`, or by its first call."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, open_fetcher: Callable[[], Awaitable[Fetcher]]
    ) -> None:
        self._loop = loop
        self._open = open_fetcher
        self._opening = asyncio.Lock()
        self._fetcher: Fetcher | None = None
        self._ahead: deque[Message] = deque()
        self._ahead_most = 1
        self._ahead_watch = Stopwatch()
        self._took_at = 0.0  # when an iteration last took a message, by the loop's clock
        self._unused: asyncio.TimerHandle | None = None
        self._stopped = False
        self._closed = False

    # --- taking ---------------------------------------------------------------------------------

    async def pop(self, max_messages: int = 1, wait: float = 0.0) -> list[Message]:
        """At most `max_messages` messages; empty if none arrive within `wait` seconds, or when the
        popper was stopped.

        Several tasks may wait at once, and get messages in the order of their calls. If a task is
        cancelled, messages that were claimed for it are given back, uncounted. Errors and cost: as
        for `cassq.Popper.pop`.
        """
        fetcher = await self._opened()
        if self._ahead and isinstance(max_messages, int):
            fetcher.check()
            return [self._next() for _ in range(min(max_messages, len(self._ahead)))]
        return await fetcher.take(max_messages, wait)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one. Waits if there are none, and ends when the popper is stopped or
        closed. Prefetches as many as are finished in a tenth of a second; messages that are not
        used for half a second go back."""
        while not (self._stopped or self._closed):
            if not self._ahead:
                try:
                    await self._take_ahead()
                except ClosedError:
                    return
            if self._ahead:
                yield self._next()

    def _next(self) -> Message:
        self._took_at = self._loop.time()
        return self._ahead.popleft()

    async def _take_ahead(self) -> None:
        fetcher = await self._opened()
        seconds = self._ahead_watch.seconds()
        if seconds < QUICK_SECONDS:
            self._ahead_most = min(AHEAD_MAX, 2 * self._ahead_most)
        elif seconds > SLOW_SECONDS:
            self._ahead_most = max(1, self._ahead_most // 4)
        self._ahead.extend(await fetcher.take(self._ahead_most, None, ahead=True))
        self._ahead_watch = Stopwatch()
        if len(self._ahead) > 1 and self._unused is None:
            self._took_at = self._loop.time()
            self._unused = self._loop.call_later(UNUSED_SECONDS, self._look_for_unused)

    def _look_for_unused(self) -> None:
        """Give back prefetched messages that are not used."""
        self._unused = None
        if not self._ahead:
            return
        left = self._took_at + UNUSED_SECONDS - self._loop.time()
        if left > 0:
            self._unused = self._loop.call_later(left, self._look_for_unused)
        else:
            self._ahead_most = 1
            self._give_back_ahead()

    def _give_back_ahead(self) -> None:
        if self._ahead and self._fetcher is not None:
            messages = [message.delivered for message in self._ahead]
            self._ahead.clear()
            self._fetcher.give_back(messages)

    @asynccontextmanager
    async def transaction(
        self, max_messages: int = 1, wait: float = 0.0
    ) -> AsyncIterator[list[Message]]:
        """Pop for an `async with` block. Commits the messages at its end, or rolls them back if it
        raises or is cancelled; messages that were settled inside are left as they are."""
        messages = await self.pop(max_messages, wait)
        try:
            yield messages
        except BaseException as exc:
            left = [message for message in messages if not message.settled]
            if left and not self._closed:
                await asyncio.shield(self._loop.create_task(self.rollback(left, error=exc)))
            raise
        await self.commit(message for message in messages if not message.settled)

    # --- settling -------------------------------------------------------------------------------

    async def commit(self, messages: Iterable[Message]) -> None:
        """Ack messages. Durable on return. Raises ClaimLostError if another popper has some of
        them; the others are committed. Cost: one synced transaction for all."""
        fetcher = await self._opened()
        await fetcher.call(fetcher.popper.commit, _delivered(messages))

    async def flush(self) -> None:
        """Write the acks collected so far, durably."""
        fetcher = await self._opened()
        await fetcher.call(fetcher.popper.flush)

    async def rollback(
        self, messages: Iterable[Message], delay: float | None = None, error: Error = None
    ) -> None:
        """Give messages back, as deliveries that count: see `cassq.Popper.rollback`."""
        if delay is not None:
            milliseconds("delay", delay)
        text = error_text("error", error)
        fetcher = await self._opened()
        await fetcher.call(fetcher.popper.rollback, _delivered(messages), delay, text)

    async def release(self, messages: Iterable[Message]) -> None:
        """Give messages back untried: this delivery does not count. Durable on return. Prefetched
        messages go back too."""
        fetcher = await self._opened()
        found = _delivered(messages)
        self._give_back_ahead()
        await fetcher.call(fetcher.popper.release, found)

    async def dead(self, messages: Iterable[Message], reason: Error = "") -> None:
        """Reject messages: they become dead letters of the group. Durable on return."""
        text = error_text("reason", reason)
        fetcher = await self._opened()
        await fetcher.call(fetcher.popper.dead, _delivered(messages), text)

    # --- life -----------------------------------------------------------------------------------

    async def name(self) -> str:
        """Its name, which its claims show."""
        return (await self._opened()).popper.name

    def stop(self) -> None:
        """Deliver no more messages: iterations and waiting pops end. Messages in hand can still be
        settled. Returns at once."""
        self._stopped = True
        self._give_back_ahead()
        if self._fetcher is not None:
            self._fetcher.stop()

    @property
    def stopped(self) -> bool:
        """Whether the popper was stopped or closed, and hands out nothing more."""
        return self._stopped or self._closed

    async def close(self) -> None:
        """Write the acks, and give all other messages back; prefetched ones do not count as
        delivered. Repeatable. If it is cancelled, it closes nevertheless."""
        self._closed = True
        if self._unused is not None:
            self._unused.cancel()
        self._give_back_ahead()
        async with self._opening:
            fetcher = self._fetcher
        if fetcher is not None:
            await fetcher.close()

    @property
    def closed(self) -> bool:
        return self._closed

    async def __aenter__(self) -> Popper:
        await self._opened()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickling("popper", "pass the names, and open one there")

    async def _opened(self) -> Fetcher:
        if self._closed:
            raise ClosedError("this popper is closed; its messages were given back")
        if self._fetcher is None:
            async with self._opening:
                if self._fetcher is None:
                    self._fetcher = await self._open()
                    if self._stopped:
                        self._fetcher.stop()
        return self._fetcher


def _delivered(messages: Iterable[Message]) -> list[Delivered]:
    """Messages as threads see them. Raises UsageError for anything else."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise UsageError(
            f"this takes many messages, not {type(messages).__name__}",
            hint="put one message in a list: popper.commit([message])",
        )
    found: list[Delivered] = []
    for message in messages:
        if not isinstance(message, Message):
            raise UsageError(f"only messages of this popper can be settled, not {message!r:.100}")
        found.append(message.delivered)
    return found
