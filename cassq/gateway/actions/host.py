"""The host: the queues of one URL, under the names, URLs and ARNs that SQS clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import quote, unquote, urlsplit

from cassq.aio.client import Client
from cassq.aio.pusher import Pusher
from cassq.aio.queue import Queue
from cassq.client.receiving import open_receiver
from cassq.consumer.receiving import AnyReceiver
from cassq.errors import GroupNotFoundError, QueueNotFoundError, UsageError
from cassq.gateway.actions.attributes import MessageTerms, terms_of
from cassq.gateway.actions.deliveries import Deliveries
from cassq.gateway.actions.faults import fault, no_queue
from cassq.gateway.actions.fifo import ReceiveAttempts
from cassq.gateway.errors import ActionError
from cassq.gateway.lane_receiver import NOT_IN_ORDER, NOT_IN_ORDER_HINT, LaneReceiver
from cassq.gateway.request import Request
from cassq.model.queues import DEFAULT_GROUP, QueuePolicy

ACCOUNT = "000000000000"
REGION = "us-east-1"
KNOWN_SECONDS = 1.0  # how long a row is used before it is read again, if nothing watches it
COUNTED_SECONDS = 1.0
CLOCKS_MS = 20  # reading two clocks one after the other makes a smaller difference
GROUP_SEPARATOR = "--"  # separates a queue's name from its group's
# The actions for a group that SQS clients see as a queue.
OF_GROUPS = (
    "ReceiveMessage",
    "DeleteMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "GetQueueAttributes",
    "PurgeQueue",
)
IDLE_SECONDS = 60.0  # after this, the threads of a queue that is not used end


class HostedQueue:
    """A queue that SQS clients use. name: the name that they use. group, group_id: name and id of
    the group for which they consume. used_at: when it was last used, by the loop's clock. read_at:
    when its row was read. attempts: receive attempts at a FIFO queue, through this gateway."""

    def __init__(
        self, client: Client, queue: Queue, group_id: str, group: str = DEFAULT_GROUP
    ) -> None:
        self.queue: Queue = queue
        self.group_id: str = group_id
        self.group: str = group
        self.name: str = shown_name(queue.name, group)
        self.used_at: float = 0.0
        self.read_at: float = 0.0
        self.attempts: ReceiveAttempts = ReceiveAttempts()
        self._client = client
        self._known = queue.sync.watched.row().policy  # the policy of `_terms`
        self._terms = terms_of(self._known)
        self._pusher: Pusher | None = None
        self._deliveries: dict[str, Deliveries] = {}  # by the group's name

    @property
    def policy(self) -> QueuePolicy:
        """The present policy. Raises QueueNotFoundError if the queue was deleted. Cost: a memory
        read."""
        return self.queue.sync.watched.row().policy

    @property
    def terms(self) -> MessageTerms:
        """The present terms. Errors and cost: as for `policy`."""
        policy = self.policy
        if policy is not self._known:
            self._terms, self._known = terms_of(policy), policy
        return self._terms

    @property
    def is_watched(self) -> bool:
        """Whether changes by others are noticed in the background."""
        return self._pusher is not None or bool(self._deliveries)

    @property
    def pusher(self) -> Pusher:
        """The pusher for all requests; those of one turn of the loop share an append."""
        if self._pusher is None or self._pusher.closed:
            self._pusher = self.queue.pusher()
        return self._pusher

    @property
    def deliveries(self) -> Deliveries:
        """The deliveries to `group`. They also settle messages of any group."""
        return self._deliveries.get(self.group) or self._deliver(self.group)

    async def deliveries_to(self, group: str) -> Deliveries:
        """The deliveries to a group. Raises GroupNotFoundError. Cost: a read, the first time."""
        if group not in self._deliveries and group != self.group:
            listed = self._client.sync.ports.catalog.queues.groups
            rows = await self._client.call(listed, self.queue.id)
            if all(row.name != group for row in rows):
                raise GroupNotFoundError(f"queue {self.name!r} has no group {group!r:.200}")
        return self._deliveries.get(group) or self._deliver(group)

    def _deliver(self, group: str) -> Deliveries:
        made = self._deliveries[group] = Deliveries(
            asyncio.get_running_loop(),
            self.queue.sync,
            lambda: self._open_receiver(group),
            in_time=self.fifo,
        )
        return made

    def _open_receiver(self, name: str) -> AnyReceiver:
        sync, runtime = self.queue.sync, self._client.sync.runtime
        if name != self.group:
            return open_receiver(runtime, sync, name)
        groups = runtime.ports.catalog.queues.groups(self.queue.id)
        group = next((each for each in groups if each.id == self.group_id), None)
        if self.fifo:
            if group is None or group.policy.order != "key":
                raise UsageError(NOT_IN_ORDER, hint=NOT_IN_ORDER_HINT)
            return LaneReceiver(runtime, sync, group, lambda: 1000 * self.terms.delay)
        if group is not None and group.policy.fair:
            return LaneReceiver(runtime, sync, group, lambda: 0)  # its pushes are delayed
        return open_receiver(runtime, sync, name)

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.terms.fifo

    @property
    def is_idle(self) -> bool:
        """Whether no request waits for its messages."""
        return not any(each.waiting for each in self._deliveries.values())

    async def close(self) -> None:
        """End its threads. It can be used again."""
        pusher, self._pusher = self._pusher, None
        deliveries, self._deliveries = self._deliveries, {}
        if pusher is not None:
            await pusher.close()
        for each in deliveries.values():
            await each.close()


def shown_name(queue: str, group: str) -> str:
    """The name that SQS clients use for a queue with one of its groups."""
    return queue if group == DEFAULT_GROUP else f"{queue}{GROUP_SEPARATOR}{group}"


class Host:
    """The queues of one URL, for SQS clients. groups: whether they see each group, except the
    default one, as another queue."""

    def __init__(
        self, client: Client, *, region: str = REGION, account: str = ACCOUNT, groups: bool = False
    ) -> None:
        self.client: Client = client
        self.groups: bool = groups
        self.region: str = region
        self.account: str = account
        self._loop = asyncio.get_running_loop()
        self._hosted: dict[str, HostedQueue] = {}
        self._jobs: dict[asyncio.Future[None], Callable[[], None]] = {}  # how to stop each
        self._ahead_ms = 0  # how far the wall clock is ahead of the catalog's time
        self._counts: dict[str, tuple[float, dict[str, str]]] = {}  # by group id
        self._tidying: asyncio.Task[None] | None = None

    # --- names ----------------------------------------------------------------------------------

    def url(self, request: Request, name: str) -> str:
        """The URL of a queue, with the address at which the client reached the gateway."""
        return f"{request.base_url}/{self.account}/{quote(name, safe='')}"

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account}:{name}"

    def name_in_arn(self, arn: str) -> str:
        """The name of the queue with an ARN. Raises ActionError for what is not one."""
        parts = arn.split(":", 5)
        if len(parts) != 6 or parts[0] != "arn" or parts[2] != "sqs" or not parts[5]:
            raise fault("InvalidParameterValue", f"{arn!r:.200} is not the ARN of a queue.")
        return parts[5]

    def named(self, request: Request) -> str:
        """The name of the queue that a request is for: the last part of its QueueUrl. Raises
        ActionError, also if the caller is not allowed this action on it."""
        url: str = request.parameters.get("QueueUrl") or ""
        try:
            name = unquote(urlsplit(url).path.rpartition("/")[2])
        except ValueError:  # its host is not valid
            name = ""
        if not name:
            raise fault("InvalidAddress", f"{url!r:.200} is not the URL of a queue.")
        self.check(request, name)
        return name

    def check(self, request: Request, name: str) -> None:
        """Raise ActionError unless the caller is allowed this action on a queue."""
        if not request.caller.may(request.action, name):
            raise fault("AccessDenied", f"Access to {request.action} on {name!r:.200} is denied.")

    def wall_ms(self, catalog_ms: int) -> int:
        """Catalog time as wall time. Gives the same result as long as neither clock is changed."""
        ports = self.client.sync.ports
        ahead_ms = ports.clock.wall_ms() - ports.catalog.now_ms()
        if abs(ahead_ms - self._ahead_ms) > CLOCKS_MS:
            self._ahead_ms = ahead_ms
        return catalog_ms + self._ahead_ms

    # --- queues ---------------------------------------------------------------------------------

    async def hosted(self, request: Request) -> HostedQueue:
        """The queue that a request is for. Raises ActionError."""
        return await self.find(self.named(request))

    async def find(self, name: str) -> HostedQueue:
        """The queue with this name. Raises ActionError. Cost: none for one in use."""
        now = self._loop.time()
        found = self._hosted.get(name)
        if found is not None:
            if found.is_watched or now - found.read_at < KNOWN_SECONDS:
                try:
                    _ = found.policy
                except QueueNotFoundError:
                    await self.forget(name)  # another one may have its name by now
                else:
                    found.used_at = now
                    return found
            else:
                del self._hosted[name]
        try:
            queue, group = await self.client.queue(name), DEFAULT_GROUP
        except QueueNotFoundError as exc:
            own, separator, group = name.rpartition(GROUP_SEPARATOR)
            if not (self.groups and separator) or group == DEFAULT_GROUP:
                raise no_queue(name) from exc
            queue = await self._with_group(own, group)
        groups = await self.client.call(self.client.sync.ports.catalog.queues.groups, queue.id)
        group_id = next((each.id for each in groups if each.name == group), "")
        if group != DEFAULT_GROUP and not group_id:
            raise no_queue(name)
        return self._keep(queue, group_id, group)

    async def _with_group(self, name: str, group: str) -> Queue:
        """The queue with this name, for one of its groups. Raises ActionError."""
        try:
            return await self.client.queue(name)
        except QueueNotFoundError as exc:
            raise no_queue(shown_name(name, group)) from exc

    async def check_whole(self, request: Request) -> None:
        """Raise ActionError if a request is for a group that SQS clients see as a queue, and its
        action is only for whole queues."""
        if request.action in OF_GROUPS or not request.parameters.get("QueueUrl"):
            return
        name = self.named(request) if self.groups else ""
        if await self.is_group(name):
            raise fault(
                "UnsupportedOperation",
                f"{name} is a group, and {request.action} is for whole queues: use"
                f" {name.rpartition(GROUP_SEPARATOR)[0]}.",
            )

    async def is_group(self, name: str) -> bool:
        """Whether a name stands for a group. Cost: none for a name without a group."""
        if not self.groups or GROUP_SEPARATOR not in name:
            return False
        try:
            return (await self.find(name)).group != DEFAULT_GROUP
        except ActionError:  # nothing has this name
            return False

    async def shown_names(self, prefix: str) -> list[str]:
        """The names with this prefix that SQS clients see. Cost: one read; with groups, one more
        for each queue."""
        queues = self.client.sync.ports.catalog.queues

        def listed() -> list[str]:
            if not self.groups:
                return [row.name for row in queues.listed(prefix)]
            names: set[str] = set()
            for row in queues.listed():
                names.add(row.name)
                names.update(shown_name(row.name, each.name) for each in queues.groups(row.id))
            return sorted(name for name in names if name.startswith(prefix))

        return await self.client.call(listed)

    def _keep(self, queue: Queue, group_id: str, group: str) -> HostedQueue:
        """Keep a queue that was just read, unless another request was faster."""
        name = shown_name(queue.name, group)
        found = self._hosted.get(name)
        if found is None or found.queue.id != queue.id or found.group_id != group_id:
            found = self._hosted[name] = HostedQueue(self.client, queue, group_id, group)
        found.used_at = found.read_at = self._loop.time()
        if self._tidying is None:
            self._tidying = self._loop.create_task(self._tidy())
        return found

    async def counted(
        self, hosted: HostedQueue, count: Callable[[], dict[str, str]]
    ) -> dict[str, str]:
        """How many messages a queue has: the result of `count`, kept for a second."""
        now, group_id = self._loop.time(), hosted.group_id
        known = self._counts.get(group_id)
        if known is None or now - known[0] >= COUNTED_SECONDS:
            known = self._counts[group_id] = now, await self.client.call(count)
        return known[1]

    async def forget(self, name: str) -> None:
        """End the threads of a queue that is gone."""
        found = self._hosted.pop(name, None)
        if found is not None:
            await found.close()

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(IDLE_SECONDS / 2)
            before = self._loop.time() - IDLE_SECONDS
            self._counts.clear()
            for name, hosted in list(self._hosted.items()):
                if hosted.used_at < before and hosted.is_idle:
                    await self.forget(name)

    def start(self, run: Callable[[], None], stop: Callable[[], None]) -> None:
        """Run a job in its own thread. stop: makes it end soon."""
        job = self._loop.run_in_executor(None, run)
        self._jobs[job] = stop
        job.add_done_callback(self._jobs.pop)

    async def close(self) -> None:
        """End all jobs and threads."""
        for stop in self._jobs.values():
            stop()
        await asyncio.gather(*self._jobs)
        if self._tidying is not None:
            self._tidying.cancel()
        for name in list(self._hosted):
            await self.forget(name)
