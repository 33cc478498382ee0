"""The service of plain HTTP: pushes, receives and settles batches, on the queues of a host.

GET   /v1/queues                  the names of queues
PUT   /v1/queues/QUEUE            create a queue; an existing one stays as it is
GET   /v1/queues/QUEUE            a queue's statistics
POST  /v1/queues/QUEUE/messages   push messages; they are durable when the answer comes
GET   /v1/queues/QUEUE/messages   receive messages, hidden from others until their deadlines
POST  /v1/queues/QUEUE/settle     settle deliveries by their receipts, or move their deadlines
GET   /v1/openapi.json            this, as an OpenAPI document
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import orjson

from cassq.base.os_errors import untraced
from cassq.client.queue import Queue
from cassq.consumer.receiving import RECEIVE_MAX
from cassq.errors import (
    BackendError,
    CassqError,
    GroupNotFoundError,
    MessageTooLargeError,
    QueueExistsError,
    QueueFullError,
    QueueNotFoundError,
    ReceiptError,
    StorageFullError,
    UsageError,
)
from cassq.gateway.actions.host import Host, HostedQueue
from cassq.gateway.actions.messages import VISIBILITY_SECONDS_MAX, WAIT_SECONDS_MAX
from cassq.gateway.errors import ActionError
from cassq.gateway.plain.formats import Act, acts_of, bad, items_of, kind_of, pushes_of, shown
from cassq.gateway.plain.openapi import document
from cassq.gateway.plain.request import (
    LINES,
    RECEIVED,
    VISIBLE_SECONDS,
    PlainAnswer,
    PlainError,
    PlainRequest,
)
from cassq.model.queues import DEFAULT_GROUP, OWN
from cassq.model.receipts import parsed_all

# The permissions that acts need, by the names that credentials know.
_PERMISSIONS = {"ack": "DeleteMessage", "dead": "DeleteMessage"}
_RETRY = "try again"

Handler = Callable[[Host, PlainRequest], Awaitable[PlainAnswer]]


class PlainService:
    """Answers requests below `/v1`, in the event loop of its host. It never blocks the loop."""

    def __init__(self, host: Host) -> None:
        self.host: Host = host

    async def answer(self, request: PlainRequest) -> PlainAnswer:
        """Carry out a request. Errors are answers too; an exception is a defect."""
        try:
            return await _handler(request)(self.host, request)
        except PlainError as exc:
            answer = refused(exc)
            untraced(exc)
        except CassqError as exc:
            answer = refused(error_of(exc))
            untraced(exc)
        return answer

    def nothing(self, request: PlainRequest) -> PlainAnswer:
        """The answer to a request whose wait for messages was ended."""
        kind = _accepted(request)
        return PlainAnswer(200, shown((), kind), kind)


def refused(error: PlainError, **more: object) -> PlainAnswer:
    """The answer with an error. more: further fields."""
    found = error.as_dict()
    return PlainAnswer(error.status, orjson.dumps({"error": found, **more}), error=found)


def error_of(exc: CassqError) -> PlainError:
    """An error of cassq, as clients see it."""
    status, code = 500, "failed"
    if isinstance(exc, QueueNotFoundError):
        status, code = 404, "queue_not_found"
    elif isinstance(exc, GroupNotFoundError):
        status, code = 404, "group_not_found"
    elif isinstance(exc, MessageTooLargeError):
        status, code = 413, "message_too_large"
    elif isinstance(exc, QueueFullError):
        status, code = 429, "queue_full"
    elif isinstance(exc, UsageError):
        status, code = 400, "bad_request"
    elif isinstance(exc, StorageFullError) or (isinstance(exc, BackendError) and exc.retryable):
        status, code = 503, "unavailable"
    hint = exc.hint or (_RETRY if status == 503 else "")
    return PlainError(status, code, exc.message, hint)


def _handler(request: PlainRequest) -> Handler:
    shape = tuple("{queue}" if at == 1 else part for at, part in enumerate(request.path))
    methods = ROUTES.get(shape)
    if methods is None:
        path = "/".join(("/v1", *request.path))
        raise PlainError(404, "not_found", f"there is nothing at {path!r:.200}", _SEE)
    handler = methods.get(request.method)
    if handler is None:
        raise PlainError(405, "method_not_allowed", f"use {' or '.join(methods)} here", _SEE)
    return handler


_SEE = "see /v1/openapi.json"


# --- parameters ---------------------------------------------------------------------------------


def _number(request: PlainRequest, name: str, otherwise: float, least: float, most: float) -> float:
    text = request.query.get(name)
    if text is None:
        return otherwise
    try:
        value = float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise bad(f"{name} must be a number from {least:g} to {most:g}, not {text!r:.100}")
    return value


def _known(request: PlainRequest, *names: str) -> None:
    """Refuse parameters other than these: an unknown one may be a mistake."""
    unknown = request.query.keys() - {*names}
    if unknown:
        raise bad(f"there is no parameter {min(unknown)!r:.100}", _SEE)


async def _hosted(host: Host, request: PlainRequest, *actions: str) -> HostedQueue:
    """The queue in the path. Raises PlainError unless the caller is allowed these actions on it."""
    name = request.path[1]
    for action in actions:
        _permit(request, action, name)
    try:
        found = await host.find(name)
    except ActionError as exc:
        raise PlainError(404, "queue_not_found", f"there is no queue {name!r:.200}") from exc
    if found.group != DEFAULT_GROUP:
        hint = "ask for the queue itself, with ?group="
        raise PlainError(404, "queue_not_found", f"{name!r:.200} is a group", hint=hint)
    return found


def _permit(request: PlainRequest, action: str, queue: str) -> None:
    if not request.caller.may(action, queue):
        raise PlainError(403, "forbidden", f"these credentials do not allow {action} here")


# --- queues -------------------------------------------------------------------------------------


async def list_queues(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request, "prefix")
    _permit(request, "ListQueues", "")
    listed = host.client.sync.ports.catalog.queues.listed
    rows = await host.client.call(listed, request.query.get("prefix", ""))
    names = [
        row.name
        for row in rows
        if OWN not in row.name and request.caller.may("ListQueues", row.name)
    ]
    return PlainAnswer(200, orjson.dumps({"queues": names}))


async def show_queue(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request)
    hosted = await _hosted(host, request, "GetQueueAttributes")
    stats = await hosted.queue.stats()
    return PlainAnswer(200, orjson.dumps(stats.as_dict(), option=orjson.OPT_NON_STR_KEYS))


async def put_queue(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request)
    name = request.path[1]
    _permit(request, "CreateQueue", name)
    if request.body:
        raise bad("a queue is created without a body", "set it up with `cassq queue update`")
    with contextlib.suppress(QueueExistsError):  # with settings of its own, which it keeps
        await host.client.create_queue(name)
    return PlainAnswer(200, orjson.dumps({"queue": name}))


async def show_document(_host: Host, _request: PlainRequest) -> PlainAnswer:
    return PlainAnswer(200, orjson.dumps(document()))


# --- messages -----------------------------------------------------------------------------------


async def push_messages(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request)
    hosted = await _hosted(host, request, "SendMessage")
    found = pushes_of(items_of(request.body, kind_of(request.content_type, LINES)))
    if not found:
        return PlainAnswer(200, b'{"ids":[]}')
    if isinstance(found[0], bytes):
        ids = await hosted.pusher.push_many(found)
        return PlainAnswer(200, orjson.dumps({"ids": list(map(str, ids))}))
    return _pushed(await hosted.pusher.push_each(found))


def _pushed(outcomes: Sequence[str | Exception]) -> PlainAnswer:
    """The answer to a push. If some messages failed, the status is that of the first failure, so
    that a client which checks nothing else does not think that all were pushed."""
    ids = [None if isinstance(each, Exception) else str(each) for each in outcomes]
    errors: list[dict[str, Any]] = []
    first: PlainError | None = None
    for at, outcome in enumerate(outcomes):
        if isinstance(outcome, CassqError):
            error = error_of(outcome)
            first = first or error
            errors.append({"at": at, **error.as_dict()})
            untraced(outcome)
        elif isinstance(outcome, Exception):
            raise outcome
    if first is None:
        return PlainAnswer(200, orjson.dumps({"ids": ids}))
    return refused(first, ids=ids, errors=errors)


def _accepted(request: PlainRequest) -> str:
    return kind_of(request.accept.partition(",")[0], LINES)


async def receive_messages(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request, "max", "wait", "visible", "group")
    kind = _accepted(request)
    most = _number(request, "max", RECEIVED, 1, RECEIVE_MAX)
    if most != int(most):
        raise bad(f"max must be a whole number, not {most:g}")
    wait = _number(request, "wait", 0, 0, WAIT_SECONDS_MAX)
    visible = _number(request, "visible", VISIBLE_SECONDS, 0, VISIBILITY_SECONDS_MAX)
    hosted = await _hosted(host, request, "ReceiveMessage")
    deliveries = await hosted.deliveries_to(request.query.get("group", DEFAULT_GROUP))
    found = await deliveries.receive(int(most), round(visible * 1000), wait)
    receipts = [message.receipt for message in found]

    async def give_back() -> None:
        await deliveries.release(receipts)

    return PlainAnswer(200, shown(found, kind), kind, give_back if found else None)


async def settle_messages(host: Host, request: PlainRequest) -> PlainAnswer:
    _known(request)
    acts = acts_of(items_of(request.body, kind_of(request.content_type, LINES)))
    verbs = {_PERMISSIONS.get(act.verb, "ChangeMessageVisibility") for act in acts}
    hosted = await _hosted(host, request, *sorted(verbs))
    for act in acts:
        parsed_all(act.receipts)  # checks all before anything is done
    invalid: list[str] = []
    for act in acts:
        if not act.receipts:
            continue
        if act.verb == "ack":
            invalid += await hosted.deliveries.delete(act.receipts)
        else:
            invalid += await host.client.call(_settle, hosted.queue.sync, act)
    return PlainAnswer(200, orjson.dumps({"invalid": sorted(invalid)}))


def _settle(queue: Queue, act: Act) -> Sequence[str]:
    """Carry out an act; returns the receipts that are not valid."""
    settlement, options = queue.settle(act.receipts), act.options
    try:
        match act.verb:
            case "nack":
                settlement.nack(options.get("delay"), options.get("error"))
            case "release":
                settlement.release()
            case "dead":
                settlement.dead(options.get("error", ""))
            case _:
                settlement.extend(options["seconds"])
    except ReceiptError as exc:
        return exc.receipts
    return ()


ROUTES: Mapping[tuple[str, ...], Mapping[str, Handler]] = {
    ("queues",): {"GET": list_queues},
    ("queues", "{queue}"): {"GET": show_queue, "PUT": put_queue},
    ("queues", "{queue}", "messages"): {"GET": receive_messages, "POST": push_messages},
    ("queues", "{queue}", "settle"): {"POST": settle_messages},
    ("openapi.json",): {"GET": show_document},
}
