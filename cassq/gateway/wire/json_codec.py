"""The JSON 1.0 encoding: headers name the action, and the code that an error has in XML."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson

from cassq.gateway.errors import ActionError
from cassq.gateway.wire.checking import checked
from cassq.gateway.wire.sqs import ACTIONS, ERRORS

TARGET = b"AmazonSQS."
CONTENT_TYPE = b"application/x-amz-json-1.0"
_ACTIONS = {TARGET + action.encode(): action for action in ACTIONS}


def action_of(target: bytes) -> str:
    """The action that the header X-Amz-Target names. Raises ActionError if there is none."""
    action = _ACTIONS.get(target)
    if action is None:
        shown = target.decode("latin-1")
        raise ActionError(
            "UnknownOperationException",
            f"The action {shown!r:.200} is not valid for this endpoint.",
            legacy="InvalidAction",
        )
    return action


def decoded(action: str, body: bytes) -> dict[str, Any]:
    """The parameters in a body. Raises ActionError."""
    try:
        parameters = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError as exc:
        raise ActionError(
            "SerializationException", f"The body is not valid JSON: {exc}."[:300]
        ) from exc
    return checked(action, parameters)


def encoded(members: dict[str, Any]) -> bytes:
    """The body of an answer."""
    return orjson.dumps(members, default=_base64)


def _base64(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be JSON")


def error(failure: ActionError) -> tuple[bytes, bytes]:
    """The body of an error, and the lines of its headers."""
    message = failure.message.encode("utf-8", "replace").decode()
    body = {"__type": f"com.amazonaws.sqs#{failure.code}", "message": message}
    fault = b"Sender" if failure.sender else b"Receiver"
    legacy = legacy_code(failure).encode("ascii", "replace")
    return orjson.dumps(body), b"x-amzn-query-error: %b;%b\r\n" % (legacy, fault)


def legacy_code(failure: ActionError) -> str:
    """The code of an error in the Query encoding: its own, or the table's."""
    if failure.legacy != failure.code:
        return failure.legacy
    return ERRORS.get(failure.code, (failure.code, 0))[0]


def status(failure: ActionError) -> int:
    """The status of an error: its own, or the table's."""
    return failure.status if failure.status != 400 else ERRORS.get(failure.code, ("", 400))[1]
