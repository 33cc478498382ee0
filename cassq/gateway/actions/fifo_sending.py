"""Sending to a FIFO queue: what arrives while a batch is pushed is the next batch, in its order.

A push with a dedup id costs two syncs, and so do five thousand that are pushed together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cassq.aio.pusher import Pusher
from cassq.errors import CassqError, UsageError
from cassq.producer.pusher import Push

BATCH_MAX = 1000
BATCH_BYTES_MAX = 8 << 20


class _Sent(NamedTuple):
    push: Push
    future: asyncio.Future[str | Exception]


class FifoSender:
    """Pushes for all requests to one FIFO queue. pusher: its pusher, now."""

    def __init__(self, pusher: Callable[[], Pusher]) -> None:
        self._pusher = pusher
        self._waiting: list[_Sent] = []
        self._task: asyncio.Task[None] | None = None

    async def push_each(self, pushes: Sequence[Push]) -> list[str | Exception]:
        """Push messages with dedup ids; returns what became of each: its id, or its error."""
        loop = asyncio.get_running_loop()
        sent = [_Sent(push, loop.create_future()) for push in pushes]
        self._waiting += sent
        if self._task is None:
            self._task = loop.create_task(self._work())
        return [await each.future for each in sent]

    async def _work(self) -> None:
        try:
            await asyncio.sleep(0)  # those of this turn of the loop go together
            while self._waiting:
                await self._send(self._next())
        finally:
            self._task = None

    def _next(self) -> list[_Sent]:
        size, count = 0, 0
        for each in self._waiting[:BATCH_MAX]:
            size += len(each.push.payload)
            if count and size > BATCH_BYTES_MAX:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _send(self, batch: Sequence[_Sent]) -> None:
        pushes = [each.push for each in batch]
        results: Sequence[str | Exception]
        try:
            try:
                results = await self._pusher().push_many(
                    [push.payload for push in pushes],
                    headers=[push.headers for push in pushes],
                    keys=[push.key for push in pushes],
                    dedup_ids=[push.dedup_id for push in pushes],
                )
            except UsageError:  # of one of them
                results = await self._pusher().push_each(pushes)
        except CassqError as exc:  # whoever sends again gets the id of what was pushed
            results = [exc] * len(batch)
        except BaseException as exc:
            for each in batch:
                if not each.future.done():
                    each.future.set_exception(exc)
            raise
        for each, result in zip(batch, results, strict=True):
            if not each.future.done():
                each.future.set_result(result)
