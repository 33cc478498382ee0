"""A queue for an event loop: pushing, popping, running a handler; anything else through `call`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NoReturn, ParamSpec, TypeVar, Unpack

from cassq.aio.client_context import ClientContext
from cassq.aio.popper import Popper
from cassq.aio.pusher import Pusher
from cassq.base.arguments import refuse_pickling
from cassq.client.queue import Group
from cassq.client.queue import Queue as ThreadQueue
from cassq.errors import UsageError
from cassq.inspect.stats import QueueStats
from cassq.message.message_ids import MessageId, MessageIds
from cassq.model.queues import DEFAULT_GROUP, QueuePolicy
from cassq.popper import KEEP_ALIVE_SECONDS
from cassq.settings import GroupSettings, QueueSettings, Start, WorkerSettings
from cassq.worker.eventloop.fetcher import Fetcher
from cassq.worker.eventloop.message import Message
from cassq.worker.handler import AsyncHandler, is_async
from cassq.worker.tasks import AsyncWorker

P = ParamSpec("P")
T = TypeVar("T")


class Queue:
    """A named stream of messages; get one from `Client.create_queue` or `Client.queue`.

    sync: the same queue, with methods that block. Use them through `call`, as in
    `await queue.call(queue.sync.audit)`.
    """

    def __init__(self, context: ClientContext, sync: ThreadQueue) -> None:
        self._context = context
        self.sync: ThreadQueue = sync
        self._pusher: Pusher | None = None
        self._poppers: dict[str, Popper] = {}  # of `pop`, by group

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def id(self) -> str:
        return self.sync.id

    # --- pushing and popping --------------------------------------------------------------------

    def pusher(self) -> Pusher:
        """A pusher with a pipe of its own. Cost: none until the first push; then a thread."""
        self._context.check()
        pusher = Pusher(self._context.loop, self._context.life, self.sync.pusher)
        self._context.opened(pusher)
        return pusher

    def popper(
        self, group: str = DEFAULT_GROUP, *, keep_alive: float | None = KEEP_ALIVE_SECONDS
    ) -> Popper:
        """A member of a consumer group. It is opened by `async with`, or by its first call; that
        raises GroupNotFoundError if the group does not exist. keep_alive: as for
        `cassq.Queue.popper`; claims are kept alive while the popper is open and its process runs.
        Cost: none until it is opened; then a thread."""
        context = self._context
        context.check()

        async def opened() -> Fetcher:
            popper = await context.call(self.sync.popper, group, keep_alive=keep_alive)
            return Fetcher(context.loop, popper, context.ports)

        popper = Popper(context.loop, opened)
        context.opened(popper)
        return popper

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
        """Push one message through a pusher that the queue keeps open: see `Pusher.push`."""
        return await self._own_pusher().push(
            payload,
            headers=headers,
            key=key,
            delay=delay,
            due=due,
            dedup_id=dedup_id,
            importance=importance,
            priority=priority,
        )

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
        """Push messages in order through the same pusher: see `Pusher.push_many`."""
        return await self._own_pusher().push_many(
            payloads,
            headers=headers,
            keys=keys,
            delay=delay,
            due=due,
            dedup_ids=dedup_ids,
            importance=importance,
            priority=priority,
        )

    async def pop(
        self, max_messages: int = 1, wait: float = 0.0, *, group: str = DEFAULT_GROUP
    ) -> list[Message]:
        """Pop through a popper that the queue keeps open for the group: see `Popper.pop`. Settle
        every message: otherwise its claim lives as long as the client."""
        popper = self._poppers.get(group)
        if popper is None or popper.closed:
            popper = self._poppers[group] = self.popper(group)
        return await popper.pop(max_messages, wait)

    def _own_pusher(self) -> Pusher:
        if self._pusher is None or self._pusher.closed:
            self._pusher = self.pusher()
        return self._pusher

    async def run(self, handler: AsyncHandler, **settings: Unpack[WorkerSettings]) -> None:
        """Await `handler(message)` for every message of a group, in tasks of this loop, until
        cancelled: short for `await (await queue.worker(handler, ...)).serve()`.

        Handles no signals. If it is cancelled, it cancels the running tasks and nacks their
        messages.
        """
        await (await self.worker(handler, **settings)).serve()

    async def worker(
        self, handler: AsyncHandler, **settings: Unpack[WorkerSettings]
    ) -> AsyncWorker:
        """A worker for an async handler. Run it by `await worker.serve()`, and end it by
        `worker.stop()`. Settings and errors: as for `cassq.Queue.worker`."""
        if not is_async(handler):
            raise UsageError(
                "handler must be an async function here",
                hint="write async def, or use cassq.Queue.run, which runs a plain one in threads",
            )
        worker = await self.call(self.sync.worker, handler, **settings)
        assert isinstance(worker, AsyncWorker)
        return worker

    # --- everything else ------------------------------------------------------------------------

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """See `Client.call`."""
        return await self._context.call(act, *args, **kwargs)

    async def stats(self) -> QueueStats:
        """See `cassq.Queue.stats`. The methods below are those of `cassq.Queue` too."""
        return await self.call(self.sync.stats)

    async def update(self, **policy: Unpack[QueueSettings]) -> QueuePolicy:
        """Change settings; returns the new policy."""
        return await self.call(self.sync.update, **policy)

    async def create_group(
        self, name: str, *, start: Start | datetime = "beginning", **policy: Unpack[GroupSettings]
    ) -> Group:
        """Create a consumer group, or return an equal one that exists."""
        return await self.call(self.sync.create_group, name, start=start, **policy)

    async def groups(self) -> list[Group]:
        """The consumer groups by name."""
        return await self.call(self.sync.groups)

    async def cancel(self, message_id: str | None = None, *, dedup_id: str | None = None) -> bool:
        """Cancel a delayed message."""
        return await self.call(self.sync.cancel, message_id, dedup_id=dedup_id)

    async def pause(self, *, push: bool = True, pop: bool = True) -> None:
        """Until `resume`, refuse pushes, and let pops return nothing."""
        await self.call(self.sync.pause, push=push, pop=pop)

    async def resume(self, *, push: bool = True, pop: bool = True) -> None:
        """End a pause."""
        await self.call(self.sync.resume, push=push, pop=pop)

    async def purge(self, group: str | None = None, *, held: bool = False) -> dict[str, int]:
        """Permanently remove all messages that wait for a group; None: for every group."""
        return await self.call(self.sync.purge, group, held=held)

    def __reduce__(self) -> NoReturn:
        refuse_pickling("queue", "pass its name and the client's url, and open it there")

    def __repr__(self) -> str:
        return f"<aio Queue {self.name}>"
