"""Messages and receipts in the bodies of plain HTTP: lines of JSON (NDJSON), or one msgpack array.

A message to push is its payload alone, or an object: `payload` (text; in msgpack also bytes), or
`payload_base64`; and `headers`, `key` or `key_base64`, `priority`, `delay` in seconds, `dedup_id`.
The whole body is checked before anything is done.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import orjson

from cassq.base.arguments import check_seconds, milliseconds
from cassq.client.settlement import DEADLINE_MAX_SECONDS
from cassq.consumer.delivery import Message
from cassq.errors import UsageError
from cassq.gateway.plain.request import JSON, LINES, MSGPACK, PlainError
from cassq.plurals import counted
from cassq.producer.pusher import Push

PUSHED_MAX = 10_000
ACTS = ("ack", "nack", "release", "dead", "extend")
_FIELDS = {
    *("payload", "payload_base64", "headers", "key", "key_base64"),
    *("priority", "delay", "dedup_id"),
}
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "ack": (),
    "nack": ("delay", "error"),
    "release": (),
    "dead": ("error",),
    "extend": ("seconds",),
}


def bad(message: str, hint: str = "") -> PlainError:
    """The error for a wrong request."""
    return PlainError(400, "bad_request", message, hint)


def kind_of(media_type: str, otherwise: str) -> str:
    """`LINES` or `MSGPACK`, whichever a media type stands for. Raises PlainError."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind in ("", "*/*", "application/x-www-form-urlencoded"):  # curl says so unasked
        return otherwise
    if kind in (LINES, JSON, "application/jsonl", "text/plain"):
        return LINES
    if kind in (MSGPACK, "application/x-msgpack", "application/vnd.msgpack"):
        return MSGPACK
    raise PlainError(
        415,
        "unsupported_media_type",
        f"{kind!r:.100} is not supported",
        f"use {LINES} or {MSGPACK}",
    )


def items_of(body: bytes, kind: str) -> list[Any]:
    """The items of a body: of each line that is not empty, or of the array. Raises PlainError."""
    if kind == MSGPACK:
        try:
            found = msgspec.msgpack.decode(body)
        except msgspec.DecodeError as exc:
            raise bad(f"the body is not msgpack: {exc}") from exc
        if not isinstance(found, list):
            raise bad("the body must be one msgpack array")
        return found
    items: list[Any] = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if line and not line.isspace():
            try:
                items.append(orjson.loads(line))
            except orjson.JSONDecodeError as exc:
                raise bad(
                    f"line {number} is not JSON: {exc}", "send one value in each line"
                ) from exc
    return items


def pushes_of(items: Sequence[Any]) -> list[bytes] | list[Push]:
    """Messages to push; only payloads if no message has another field. Raises PlainError."""
    if len(items) > PUSHED_MAX:
        raise bad(
            f"the body has {counted(len(items), 'message')}, and may have {PUSHED_MAX:,}",
            "send them in several requests",
        )
    if all(type(item) is bytes for item in items):
        return list(items)
    if all(type(item) is str for item in items):
        return [_encoded(at, "payload", item) for at, item in enumerate(items)]
    return [_push(at, item) for at, item in enumerate(items)]


def _push(at: int, item: object) -> Push:
    if not isinstance(item, dict):
        return Push(_bytes(at, "payload", item))
    unknown = item.keys() - _FIELDS
    if unknown:
        raise bad(f"{_nth(at)} has the unknown field {min(map(str, unknown))!r:.100}")
    payload = _either(at, item, "payload")
    if payload is None:
        raise bad(f"{_nth(at)} has no payload", "give payload, or payload_base64")
    return Push(
        payload,
        headers=_headers(at, item.get("headers")),
        key=_either(at, item, "key"),
        delay=_typed(at, item, "delay", (int, float)),
        dedup_id=_typed(at, item, "dedup_id", (str,)),
        priority=_typed(at, item, "priority", (int,)) or 0,
    )


def _nth(at: int) -> str:
    return f"message {at + 1}"


def _typed(at: int, item: Mapping[str, Any], name: str, types: tuple[type, ...]) -> Any:
    value = item.get(name)
    if value is not None and type(value) not in types:
        wanted = "a text" if str in types else "a number"
        raise bad(f"{name} of {_nth(at)} must be {wanted}, not {value!r:.100}")
    return value


def _either(at: int, item: Mapping[str, Any], name: str) -> bytes | None:
    """A field of bytes, plain or in base64; None if it is missing. Raises PlainError."""
    plain, encoded = item.get(name), item.get(f"{name}_base64")
    if encoded is None:
        return None if plain is None else _bytes(at, name, plain)
    if plain is not None:
        raise bad(f"{_nth(at)} has both {name} and {name}_base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error) as exc:
        raise bad(f"{name}_base64 of {_nth(at)} is not base64") from exc


def _bytes(at: int, name: str, value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return _encoded(at, name, value)
    raise bad(
        f"{name} of {_nth(at)} must be a text, not {value!r:.100}",
        f"encode it, as JSON if you like, and send it as {name}",
    )


def _encoded(at: int, name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:  # half of a pair of surrogates
        raise bad(f"{name} of {_nth(at)} is not Unicode: {exc.reason}") from exc


def _headers(at: int, value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    ):
        raise bad(f"headers of {_nth(at)} must be an object of texts")
    return value


def shown(messages: Sequence[Message], kind: str) -> bytes:
    """Messages as the body of an answer."""
    if kind == MSGPACK:
        return msgspec.msgpack.encode([_as_dict(message, _as_it_is) for message in messages])
    lines = [orjson.dumps(_as_dict(message, _as_text)) for message in messages]
    return b"".join(line + b"\n" for line in lines)


def _as_dict(message: Message, put: Callable[[dict[str, Any], str, bytes], None]) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": str(message.id)}
    put(fields, "payload", message.payload)
    if message.headers:
        fields["headers"] = dict(message.headers)
    if message.key is not None:
        put(fields, "key", message.key)
    if message.priority:
        fields["priority"] = message.priority
    fields["attempts"] = message.attempts
    fields["pushed_ms"] = message.pushed_ms
    fields["receipt"] = message.receipt
    return fields


def _as_it_is(fields: dict[str, Any], name: str, value: bytes) -> None:
    fields[name] = value


def _as_text(fields: dict[str, Any], name: str, value: bytes) -> None:
    try:
        fields[name] = value.decode()
    except UnicodeDecodeError:
        fields[f"{name}_base64"] = base64.b64encode(value).decode()


class Act(NamedTuple):
    """What to do with deliveries: one of `ACTS`, their receipts, and its options by name."""

    verb: str
    receipts: list[str]
    options: dict[str, Any]


def acts_of(items: Sequence[Any]) -> list[Act]:
    """The acts of a body; each item has one verb, with one receipt or several. Adjacent items that
    ask for the same are joined, because each act is a write. Raises PlainError."""
    acts: list[Act] = []
    for number, item in enumerate(items, 1):
        act = _act(number, item)
        last = acts[-1] if acts else None
        if last is not None and (last.verb, last.options) == (act.verb, act.options):
            last.receipts.extend(act.receipts)
        else:
            acts.append(act)
    return acts


def _act(number: int, item: object) -> Act:
    verbs = [verb for verb in ACTS if isinstance(item, dict) and verb in item]
    if not isinstance(item, dict) or len(verbs) != 1:
        raise bad(f"act {number} must be an object with one of {', '.join(ACTS)}")
    verb, options = verbs[0], dict(item)
    receipts = options.pop(verb)
    receipts = [receipts] if isinstance(receipts, str) else receipts
    if isinstance(receipts, list):
        receipts = receipts.copy()
    if not isinstance(receipts, list) or not all(isinstance(each, str) for each in receipts):
        raise bad(f"{verb} of act {number} must be a receipt, or an array of receipts")
    unknown = options.keys() - {*_OPTIONS[verb]}
    if unknown:
        raise bad(f"act {number} has the unknown field {min(map(str, unknown))!r:.100}")
    for name, value in options.items():
        types = (str,) if name == "error" else (int, float)
        if type(value) not in types:
            raise bad(f"{name} of act {number} must be {'a text' if str in types else 'a number'}")
    if verb == "extend" and not options:
        raise bad(f"act {number} has no seconds", "say how long to extend")
    try:
        milliseconds(f"delay of act {number}", options.get("delay"))
        check_seconds(f"seconds of act {number}", options.get("seconds", 0), DEADLINE_MAX_SECONDS)
    except UsageError as exc:
        raise bad(exc.message, exc.hint or "") from exc
    return Act(verb, receipts, options)
