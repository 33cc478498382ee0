"""Single messages: sending, receiving and deleting them, and changing their visibility."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from hashlib import md5
from typing import Any

from cassq.consumer.delivery import Message
from cassq.errors import GroupNotFoundError, QueueNotFoundError, UsageError
from cassq.gateway.actions import fifo
from cassq.gateway.actions.attributes import MessageTerms
from cassq.gateway.actions.contents import (
    DEDUPLICATION,
    Content,
    Received,
    body_of,
    checksum,
    chosen,
    content_of,
    received,
)
from cassq.gateway.actions.faults import fault, wrong_value
from cassq.gateway.actions.host import Host, HostedQueue
from cassq.gateway.errors import ActionError
from cassq.gateway.request import Answer, Request
from cassq.message.message_ids import as_uuid, uuid_at
from cassq.model.receipts import parsed
from cassq.producer.pusher import Push

DELAY_SECONDS_MAX = 900
VISIBILITY_SECONDS_MAX = 43_200
WAIT_SECONDS_MAX = 20
RECEIVED_MAX = 10
ATTEMPT, GROUP = "ReceiveRequestAttemptId", "MessageGroupId"


def ranged(name: str, value: int, most: int, least: int = 0) -> int:
    """A number, if it is within its limits. Raises ActionError otherwise."""
    if not least <= value <= most:
        raise wrong_value(name, value, f"must be between {least} and {most}, if provided")
    return value


# --- sending ------------------------------------------------------------------------------------


async def send_message(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    parameters = request.parameters
    terms = hosted.terms
    content = content_of(parameters)
    check_size(terms, content.size)
    push = push_of(terms, parameters, content)
    message_id = await hosted.pusher.push(push.payload, **push.options())
    return Answer(sent(terms, content, message_id))


def sent(terms: MessageTerms, content: Content, message_id: str) -> dict[str, Any]:
    """The answer to the sender of a message."""
    if not terms.fifo:
        return content.answer(as_uuid(message_id))
    pipe_id, _, digits = message_id.partition(":")
    found = content.answer(uuid_at(pipe_id, seq := int(digits)))
    found["SequenceNumber"] = fifo.sequence_number(pipe_id, seq)
    return found


def check_size(terms: MessageTerms, size: int) -> None:
    """Raise ActionError for a message that is too large for its queue."""
    if size > terms.size_max:
        raise fault(
            "InvalidParameterValue",
            "One or more parameters are invalid. Reason: Message must be shorter than"
            f" {terms.size_max} bytes.",
        )


def push_of(terms: MessageTerms, parameters: Mapping[str, Any], content: Content) -> Push:
    """How to push a message. Raises ActionError."""
    if terms.fifo:
        return fifo.push_of(terms, parameters, content)
    group = fifo.checked_id(GROUP, parameters.get(GROUP))
    if parameters.get("MessageDeduplicationId") is not None:
        raise wrong_value(
            "MessageDeduplicationId",
            parameters["MessageDeduplicationId"],
            "The request includes a parameter that is not valid for this queue type",
        )
    delay = parameters.get("DelaySeconds")
    if delay is None:
        delay = terms.delay
    else:
        ranged("DelaySeconds", delay, DELAY_SECONDS_MAX)
    key = None if group is None else group.encode()
    return Push(content.payload, content.headers, key, delay or None)


# --- receiving ----------------------------------------------------------------------------------


async def receive_message(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    parameters, terms = request.parameters, hosted.terms
    most = ranged("MaxNumberOfMessages", parameters.get("MaxNumberOfMessages", 1), RECEIVED_MAX, 1)
    visible = parameters.get("VisibilityTimeout")
    if visible is None:
        visible = terms.visible
    ranged("VisibilityTimeout", visible, VISIBILITY_SECONDS_MAX)
    wait = parameters.get("WaitTimeSeconds")
    if wait is None:
        wait = terms.wait
    ranged("WaitTimeSeconds", wait, WAIT_SECONDS_MAX)
    deliveries = hosted.deliveries
    attempt = fifo.checked_id(ATTEMPT, parameters.get(ATTEMPT)) if terms.fifo else None
    again = attempt and await _received_again(hosted, attempt, visible)
    if again:
        return Answer({"Messages": again})
    try:
        found = await deliveries.receive(most, visible * 1000, float(wait))
    except (QueueNotFoundError, GroupNotFoundError):
        raise
    except UsageError as exc:
        raise fault("UnsupportedOperation", str(exc)) from exc
    if not found:
        return Answer({})

    async def give_back() -> None:
        await deliveries.release([message.receipt for message in found])

    names = {
        *(parameters.get("MessageSystemAttributeNames") or ()),
        *(parameters.get("AttributeNames") or ()),
    }
    wanted = parameters.get("MessageAttributeNames") or ()
    shown = [_shown(host, hosted, message, names, wanted) for message in found]
    if attempt:
        hosted.attempts.note(attempt, [message.receipt for message in found], shown)
    return Answer({"Messages": shown}, give_back)


async def _received_again(hosted: HostedQueue, attempt: str, visible: int) -> list[Any]:
    """The messages that this attempt received before, hidden again; none if any of them was changed
    since."""
    handles, messages = hosted.attempts.found(attempt) or ([], [])
    if handles and await hosted.deliveries.hide(handles, visible):
        hosted.attempts.changed(handles)
        return []
    return messages


def _shown(
    host: Host, hosted: HostedQueue, message: Message, names: Set[str], wanted: Sequence[str]
) -> dict[str, Any]:
    """A message as it is in the answer. names, wanted: the system attributes and the attributes to
    show."""
    payload = message.payload
    body, is_text = body_of(payload)
    members: dict[str, Any] = {
        "MessageId": as_uuid(message.id),
        "ReceiptHandle": message.receipt,
        "MD5OfBody": md5(payload if is_text else body.encode(), usedforsecurity=False).hexdigest(),
        "Body": body,
    }
    if not (names or wanted):
        return members
    content = received(message.headers, is_text=is_text)
    if names:
        system = _system(host, hosted.name, message, content, fifo_queue=hosted.fifo)
        if "All" not in names:
            system = {name: value for name, value in system.items() if name in names}
        if system:
            members["Attributes"] = system
    attributes = chosen(wanted, content.attributes) if wanted else None
    if attributes:
        members["MessageAttributes"] = attributes
        members["MD5OfMessageAttributes"] = checksum(attributes)
    return members


def _system(
    host: Host, name: str, message: Message, content: Received, *, fifo_queue: bool
) -> dict[str, str]:
    first_ms = message.first_received_ms
    now_ms = host.client.sync.ports.catalog.now_ms()
    found = {
        "SenderId": host.account,
        "SentTimestamp": str(message.pushed_ms),
        "ApproximateReceiveCount": str(message.attempts),
        "ApproximateFirstReceiveTimestamp": str(host.wall_ms(first_ms or now_ms)),
        **content.system,
    }
    if message.key is not None:
        found[GROUP] = message.key.decode(errors="replace")
    if fifo_queue:
        if content.dedup_id is not None:
            found.setdefault(DEDUPLICATION, content.dedup_id)
        found["SequenceNumber"] = fifo.sequence_number(message.pipe_id, message.seq)
    source = content.death.get("queue")
    if isinstance(source, str) and source != name:
        found["DeadLetterQueueSourceArn"] = host.arn(source)
    return found


# --- settling -----------------------------------------------------------------------------------


def receipt_of(hosted: HostedQueue, handle: str) -> str:
    """A receipt handle, checked. Raises ActionError for anything but a handle of this queue."""
    try:
        is_ours = parsed(handle).group_id == hosted.group_id
    except UsageError:
        is_ours = False
    if not is_ours:
        raise fault(
            "ReceiptHandleIsInvalid", f"The input receipt handle {handle!r:.100} is not valid."
        )
    return handle


async def delete_message(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    handle = receipt_of(hosted, request.parameters["ReceiptHandle"])
    if await deleted_too_late(host, hosted, [handle]):
        raise fifo.expired(handle)
    return Answer({})


async def deleted_too_late(host: Host, hosted: HostedQueue, handles: list[str]) -> list[str]:
    """Delete messages. Returns the receipts that have expired, which a FIFO queue refuses. Deleting
    a message twice is allowed."""
    invalid = await hosted.deliveries.delete(handles)
    hosted.attempts.changed(handles)
    if not (invalid and hosted.fifo):
        return []
    catalog = host.client.sync.ports.catalog
    return await host.client.call(fifo.all_expired, catalog, invalid)


async def change_message_visibility(host: Host, request: Request) -> Answer:
    hosted = await host.hosted(request)
    seconds = ranged(
        "VisibilityTimeout", request.parameters["VisibilityTimeout"], VISIBILITY_SECONDS_MAX
    )
    handle = receipt_of(hosted, request.parameters["ReceiptHandle"])
    hosted.attempts.changed([handle])
    if await hosted.deliveries.hide([handle], seconds):
        raise not_in_flight(handle)
    return Answer({})


def not_in_flight(handle: str) -> ActionError:
    """The error for a receipt handle whose message was given back, settled, or received again."""
    return fault(
        "MessageNotInflight",
        f"The message with the receipt handle {handle!r:.100} is not in flight.",
    )
