"""The service: answers the requests of SQS clients, on the queues of one URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import cassq.aio
from cassq.errors import GroupNotFoundError, QueueFullError, QueueNotFoundError, UsageError
from cassq.gateway.actions import batches, messages, queues, redriving
from cassq.gateway.actions.faults import fault, no_queue
from cassq.gateway.actions.host import ACCOUNT, REGION, Host
from cassq.gateway.request import Answer, Request

Handler = Callable[[Host, Request], Awaitable[Answer]]

HANDLERS: Mapping[str, Handler] = {
    "AddPermission": queues.add_permission,
    "CancelMessageMoveTask": redriving.cancel_message_move_task,
    "ChangeMessageVisibility": messages.change_message_visibility,
    "ChangeMessageVisibilityBatch": batches.change_message_visibility_batch,
    "CreateQueue": queues.create_queue,
    "DeleteMessage": messages.delete_message,
    "DeleteMessageBatch": batches.delete_message_batch,
    "DeleteQueue": queues.delete_queue,
    "GetQueueAttributes": queues.get_queue_attributes,
    "GetQueueUrl": queues.get_queue_url,
    "ListDeadLetterSourceQueues": queues.list_dead_letter_source_queues,
    "ListMessageMoveTasks": redriving.list_message_move_tasks,
    "ListQueueTags": queues.list_queue_tags,
    "ListQueues": queues.list_queues,
    "PurgeQueue": queues.purge_queue,
    "ReceiveMessage": messages.receive_message,
    "RemovePermission": queues.remove_permission,
    "SendMessage": messages.send_message,
    "SendMessageBatch": batches.send_message_batch,
    "SetQueueAttributes": queues.set_queue_attributes,
    "StartMessageMoveTask": redriving.start_message_move_task,
    "TagQueue": queues.tag_queue,
    "UntagQueue": queues.untag_queue,
}


class ActionService:
    """Answers requests by the handlers of their actions."""

    def __init__(self, host: Host) -> None:
        self.host: Host = host

    async def answer(self, request: Request) -> Answer:
        """See `cassq.gateway.request.Service`."""
        handler = HANDLERS.get(request.action)
        if handler is None:
            raise fault("InvalidAction", f"There is no action {request.action!r:.100}.")
        try:
            await self.host.check_whole(request)
            return await handler(self.host, request)
        except (QueueNotFoundError, GroupNotFoundError) as exc:
            if isinstance(exc, GroupNotFoundError):
                await self.host.forget(self.host.named(request))  # there may be another by now
            raise no_queue(request.parameters.get("QueueUrl", "")) from exc
        except QueueFullError as exc:
            raise fault("OverLimit", str(exc)) from exc
        except UsageError as exc:
            raise fault("InvalidParameterValue", str(exc)) from exc


@asynccontextmanager
async def open_service(
    url: str | None = None, *, region: str = REGION, account: str = ACCOUNT, groups: bool = False
) -> AsyncIterator[ActionService]:
    """A service for the queues at `url`, in the event loop that runs; closed at the end of the
    block. region, account: as in the ARNs and URLs of queues. groups: see `Host`. Raises as
    `cassq.connect` does."""
    connecting = cassq.aio.connect(url)
    async with service_of(connecting, region=region, account=account, groups=groups) as service:
        yield service


@asynccontextmanager
async def service_of(
    connecting: cassq.aio.Connecting,
    *,
    region: str = REGION,
    account: str = ACCOUNT,
    groups: bool = False,
) -> AsyncIterator[ActionService]:
    """A service for the queues of a client that is about to be opened; otherwise as
    `open_service`."""
    async with connecting as client:
        host = Host(client, region=region, account=account, groups=groups)
        try:
            yield ActionService(host)
        finally:
            await host.close()
