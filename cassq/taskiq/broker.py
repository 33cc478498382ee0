"""The broker: taskiq's messages in a queue of cassq, for the event loop that starts it."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

from cassq import aio
from cassq.errors import ClosedError, QueueExistsError, UsageError
from cassq.extras import wanted
from cassq.model.priorities import check_priority
from cassq.model.queues import check_queue_name
from cassq.popper import KEEP_ALIVE_SECONDS
from cassq.settings import QueueSettings

with wanted("the broker for taskiq needs", "taskiq", "taskiq"):
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage

logger: logging.Logger = logging.getLogger("cassq")

DEFAULT_QUEUE = "taskiq"
UNKNOWN_SECONDS_MAX = 60.0  # the longest pause before a task that a worker lacks comes again


class Broker(AsyncBroker):
    """A broker whose tasks wait in one queue, created if it does not exist.

    url: as for `cassq.connect`. queue: its name. settings: of the queue, if it is created.
    keep_alive: how many seconds a task may run before it is given to another worker.

    The label `delay` makes a task wait in the queue for these seconds; tasks with a higher label
    `priority`, 0 to 9, go first. `startup` and `shutdown` open and close the client.
    """

    def __init__(
        self,
        url: str | None = None,
        queue: str = DEFAULT_QUEUE,
        *,
        settings: QueueSettings | None = None,
        keep_alive: float | None = KEEP_ALIVE_SECONDS,
        **options: Any,
    ) -> None:
        """options: those of taskiq's AsyncBroker."""
        super().__init__(**options)
        self._url = url
        self._name = check_queue_name(queue)
        self._settings: QueueSettings = settings or {}
        self._keep_alive = keep_alive
        self._client: aio.Client | None = None
        self._queue: aio.Queue | None = None

    async def startup(self) -> None:
        """Open the client and the queue, then do what taskiq does. Raises as `cassq.connect`."""
        if self._client is None:
            self._client = await aio.connect(self._url)
            try:
                self._queue = await self._client.create_queue(self._name, **self._settings)
            except QueueExistsError:  # its settings are its owner's
                self._queue = await self._client.queue(self._name)
        await super().startup()

    async def shutdown(self) -> None:
        """Do what taskiq does, then give back messages that were not acked, and close the
        client."""
        await super().shutdown()
        client, self._client, self._queue = self._client, None, None
        if client is not None:
            await client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Push a task; durable on return. Raises UsageError for wrong values of the labels, and as
        `Pusher.push`."""
        await self._opened().push(
            message.message,
            headers={"taskiq-id": message.task_id, "taskiq-task": message.task_name},
            delay=_number("delay", message.labels.get("delay")),
            priority=check_priority(int(_number("priority", message.labels.get("priority")) or 0)),
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks that come; taskiq acks each as its `ack_type` says. Tasks that are not acked
        when this ends are given back, and count as delivered. A task that this process does not
        know, which taskiq would ack, is given back too, to come again after one second, two, four
        and so on. A message that taskiq did not write becomes a dead letter."""
        async with self._opened().popper(keep_alive=self._keep_alive) as popper:
            async for message in popper:
                try:
                    name = self._task_name(message)
                except Exception as exc:
                    await message.dead(f"taskiq did not write it: {exc}")
                    continue
                if self.find_task(name) is None:
                    seconds = min(2.0 ** min(message.attempts - 1, 16), UNKNOWN_SECONDS_MAX)
                    logger.error("message %s: no task %r in this worker", message.id, name)
                    await message.nack(seconds, error=f"no task {name!r} in this worker")
                    continue
                yield AckableMessage(data=message.payload, ack=message.ack)

    def _task_name(self, message: aio.Message) -> str:
        name = message.headers.get("taskiq-task")
        if name is None:  # not sent by this broker
            name = self.formatter.loads(message=message.payload).task_name
        return name

    def _opened(self) -> aio.Queue:
        if self._queue is None:
            raise ClosedError("this broker is not started", hint="await broker.startup()")
        return self._queue


def _number(label: str, value: object) -> float | None:
    """A label as a number; labels may come as strings."""
    if value is None:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as exc:
        raise UsageError(f"the label {label} must be a number, not {value!r}") from exc
