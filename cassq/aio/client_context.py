"""What one client's queues, pushers and poppers share."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from cassq.aio.popper import Popper
from cassq.aio.pusher import Pusher
from cassq.client.client import Client
from cassq.errors import CassqError, ClosedError
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.worker.eventloop.calls import Calls
from cassq.worker.eventloop.loop_thread import check_loop

P = ParamSpec("P")
T = TypeVar("T")


class ClientContext:
    """What the objects of one client share. closing: whether the client refuses further calls."""

    def __init__(self, calls: Calls, client: Client) -> None:
        self.loop: asyncio.AbstractEventLoop = calls.loop
        self.life: Lifecycle = client.runtime.life
        self.closing: bool = False
        self._runtime = client.runtime
        self._calls = calls
        self._open: weakref.WeakSet[Pusher | Popper] = weakref.WeakSet()

    @property
    def ports(self) -> Ports:
        """The backends. Raises BackendUnavailableError while no server has answered yet."""
        return self._runtime.ports

    def check(self) -> None:
        """Raise ForkedClientError, ClosedError or UsageError if the client cannot be used here."""
        self.life.check()
        check_loop(self.loop)
        if self.closing:
            raise ClosedError()

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Client.call`."""
        self.check()
        return await self._calls.make(act, *args, **kwargs)

    def opened(self, thing: Pusher | Popper) -> None:
        """Remember a pusher or popper to close later."""
        self._open.add(thing)

    async def close(self, close_client: Callable[[], object]) -> None:
        """Close everything, and the client last. Raises the first error, once all is closed."""
        closings = [thing.close() for thing in list(self._open)]
        outcomes = await asyncio.gather(*closings, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        try:
            await self._calls.make(close_client)
        except CassqError as exc:
            failures.append(exc)
        await self._calls.end()
        if failures:
            raise failures[0]
