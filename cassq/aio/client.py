"""The client of an event loop: opens queues, and closes what was opened."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Generator
from functools import partial
from typing import NoReturn, ParamSpec, TypeVar, Unpack

from cassq.aio.client_context import ClientContext
from cassq.aio.queue import Queue
from cassq.base.arguments import refuse_pickling
from cassq.client.client import Client as ThreadClient
from cassq.client.connecting import connect as connect_threads
from cassq.settings import Durability, QueueSettings
from cassq.worker.eventloop.calls import Calls
from cassq.worker.eventloop.loop_thread import check_loop

P = ParamSpec("P")
T = TypeVar("T")


def connect(
    url: str | None = None,
    *,
    durability: Durability | None = None,
    spill: str | None = None,
    create: bool = True,
) -> Connecting:
    """A client of the queues at `url`, for the running event loop: `async with connect(url) as
    client`, or `client = await connect(url)`, and `await client.close()` at the end.

    Arguments and errors: as for `cassq.connect`. Cost: a thread.
    """
    return Connecting(
        partial(connect_threads, url, durability=durability, spill=spill, create=create)
    )


class Connecting:
    """A client that is about to be opened: await it, or enter it with `async with`."""

    def __init__(self, open_client: Callable[[], ThreadClient]) -> None:
        self._open_client = open_client
        self._client: Client | None = None

    def __await__(self) -> Generator[None, None, Client]:
        return self._opened().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._opened()
        return self._client

    async def __aexit__(self, *exc_info: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _opened(self) -> Client:
        loop = asyncio.get_running_loop()
        opened: list[ThreadClient] = []

        def cleanup() -> None:
            for client in opened:
                client.close()

        calls = Calls(loop, cleanup)

        def open_client() -> ThreadClient:
            opened.append(self._open_client())
            return opened[0]

        try:
            return Client(calls, await calls.make(open_client))
        except asyncio.CancelledError:
            await calls.make(cleanup)
            await calls.end()
            raise
        except BaseException:
            await calls.end()
            raise


class Client:
    """The queues of one URL, for one event loop; get one from `connect`.

    sync: the same client, with methods that block. Use them through `call`, as in
    `await client.call(client.sync.schedules)`.
    """

    def __init__(self, calls: Calls, sync: ThreadClient) -> None:
        self.sync: ThreadClient = sync
        self._context = ClientContext(calls, sync)
        self._closing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self.sync.url

    async def create_queue(self, name: str, **policy: Unpack[QueueSettings]) -> Queue:
        """Create a queue, or return an equal one that exists: see `cassq.Client.create_queue`."""
        return Queue(self._context, await self.call(self.sync.create_queue, name, **policy))

    async def queue(self, name: str) -> Queue:
        """The queue with this name. Raises QueueNotFoundError if it does not exist."""
        return Queue(self._context, await self.call(self.sync.queue, name))

    async def queues(self, prefix: str = "") -> list[Queue]:
        """The queues whose names begin with `prefix`, by name."""
        return [Queue(self._context, queue) for queue in await self.call(self.sync.queues, prefix)]

    async def delete_queue(self, name: str) -> None:
        """Delete a queue with its messages, groups, dead letters and schedules, permanently."""
        await self.call(self.sync.delete_queue, name)

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a blocking call in the client's thread, after earlier calls; returns what it
        returns, and raises what it raises. If the awaiting task is cancelled, the call is made
        nevertheless. A slow call delays the client's other calls, but not pushers and poppers."""
        return await self._context.call(act, *args, **kwargs)

    # --- life -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close every pusher and popper: push what waits, write acks, and give back the messages in
        hand. Repeatable. If it is cancelled, it closes nevertheless."""
        context = self._context
        if context.life.forked:
            return  # it belongs to the parent
        check_loop(context.loop)
        if self._closing is None:
            context.closing = True
            self._closing = context.loop.create_task(context.close(self.sync.close))
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __del__(self) -> None:
        life = self._context.life
        if self._closing is None and not (life.closed or life.forked):
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("client", "pass its url, and call cassq.aio.connect(url) there")

    def __repr__(self) -> str:
        return f"<aio {self.sync!r:.200}>"
