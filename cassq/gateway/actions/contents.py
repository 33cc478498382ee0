"""Contents of messages: bodies and attributes of SQS as payloads and headers, and their checksums.

A String attribute is a header with its name, so native consumers see it too. One more header holds
other types, and values that no header can hold, as JSON.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Any, NamedTuple

from cassq.gateway.actions.faults import fault, wrong_value
from cassq.lifecycle.retries import DEATH_HEADER, death_of
from cassq.producer.dedup import DEDUP_HEADER

SIZE_MAX = 1_048_576  # bytes of a message with its attributes, or of a batch
ATTRIBUTES_MAX = 10
NAME_LENGTH_MAX = 256
HEADER = "cassq-sqs"  # holds, as JSON, what other headers cannot
ENCODING = "cassq-encoding"  # the attribute of a payload that is not text
TRACE = "AWSTraceHeader"
DEDUPLICATION = "MessageDeduplicationId"

_OWN = "cassq-"
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r"))  # characters of ASCII that XML does not allow
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_RESERVED = re.compile(r"(aws|amazon)\.", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_STRING, _BINARY = b"\x01", b"\x02"
_compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

Value = Mapping[str, Any]


class Content(NamedTuple):
    """A message as it is pushed. size: as SQS counts it, in bytes."""

    payload: bytes
    headers: dict[str, str] | None
    size: int
    body_md5: str
    attributes_md5: str | None
    system_md5: str | None

    def answer(self, message_id: str) -> dict[str, Any]:
        """The answer to its sender."""
        told = {"MessageId": message_id, "MD5OfMessageBody": self.body_md5}
        if self.attributes_md5 is not None:
            told["MD5OfMessageAttributes"] = self.attributes_md5
        if self.system_md5 is not None:
            told["MD5OfMessageSystemAttributes"] = self.system_md5
        return told


def content_of(parameters: Mapping[str, Any]) -> Content:
    """The content of a message to send. Raises ActionError."""
    body: str = parameters["MessageBody"]
    attributes: Mapping[str, Value] | None = parameters.get("MessageAttributes")
    system: Mapping[str, Value] | None = parameters.get("MessageSystemAttributes")
    if not body:
        raise fault("MissingParameter", "The request must contain the parameter MessageBody.")
    payload = _text("MessageBody", body)
    body_md5 = md5(payload, usedforsecurity=False).hexdigest()
    if not attributes and not system:
        return Content(payload, None, len(payload), body_md5, None, None)
    return _with_attributes(payload, body_md5, attributes or {}, system or {})


def _with_attributes(
    payload: bytes, body_md5: str, attributes: Mapping[str, Value], system: Mapping[str, Value]
) -> Content:
    """The content of a message that has some attributes. Raises ActionError."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise fault(
            "InvalidParameterValue",
            f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum"
            f" [{ATTRIBUTES_MAX}].",
        )
    for name in system:
        if name != TRACE:
            raise wrong_value("MessageSystemAttributes", name, f"only {TRACE} is supported")
    size = len(payload)
    for name, value in attributes.items():
        _check_name(name)
        size += len(name.encode()) + _size(name, value)
    for name, value in system.items():
        _size(name, value)
    return Content(
        payload,
        _headers(attributes, system),
        size,
        body_md5,
        checksum(attributes) if attributes else None,
        checksum(system) if system else None,
    )


def _text(name: str, text: str) -> bytes:
    """Text as bytes. Raises ActionError for characters that SQS does not allow."""
    if text.isascii():
        encoded = text.encode()
        if len(encoded.translate(None, _CONTROLS)) == len(encoded):
            return encoded  # nearly all texts are plain ASCII
    wrong = None if text.isprintable() else _NOT_XML.search(text)  # XML allows what is printable
    if wrong is not None:
        raise fault(
            "InvalidMessageContents",
            f"Invalid characters found: {name} contains {wrong[0]!a} at character {wrong.start()}.",
        )
    return text.encode()


def _check_name(name: str) -> None:
    if not 0 < len(name) <= NAME_LENGTH_MAX or not _NAME.fullmatch(name):
        reason = "use letters, digits, '_', '-' and single '.', not at the ends"
    elif _RESERVED.match(name):
        reason = "names with this prefix are reserved"
    else:
        return
    raise wrong_value("MessageAttributes.Name", name, reason)


def _size(name: str, value: Value) -> int:
    """The size of a value with its type, in bytes. Raises ActionError for an invalid one."""
    kind = value.get("DataType") or ""
    base = kind.partition(".")[0]
    if base not in ("String", "Number", "Binary") or len(kind) > NAME_LENGTH_MAX:
        raise fault(
            "InvalidParameterValue",
            f"The type of message (system) attribute {name!r} is invalid: it must begin with"
            " String, Number or Binary.",
        )
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise fault(
            "UnsupportedOperation", f"Message attribute list values are not supported: {name!r}."
        )
    wanted, other = ("BinaryValue", "StringValue")[:: 1 if base == "Binary" else -1]
    found = value.get(wanted)
    if not found or value.get(other):
        raise fault(
            "InvalidParameterValue",
            f"The message (system) attribute {name!r} with type {kind!r} must contain a non-empty"
            f" {wanted}, and nothing else.",
        )
    if base == "Binary":
        return len(kind) + len(found)
    if base == "Number" and not _NUMBER.fullmatch(found):
        raise fault("InvalidParameterValue", f"The message attribute {name!r} is not a number.")
    return len(_text(name, kind)) + len(_text(name, found))


def _headers(attributes: Mapping[str, Value], system: Mapping[str, Value]) -> dict[str, str]:
    headers: dict[str, str] = {}
    more: dict[str, dict[str, str]] = {}
    for name, value in attributes.items():
        kind = value["DataType"]
        if kind != "String":
            more.setdefault("types", {})[name] = kind
        if kind.startswith("Binary"):
            encoded = base64.b64encode(value["BinaryValue"]).decode()
            more.setdefault("binary", {})[name] = encoded
        elif name.startswith(_OWN):
            more.setdefault("strings", {})[name] = value["StringValue"]
        else:
            headers[name] = value["StringValue"]
    for name, value in system.items():
        more.setdefault("system", {})[name] = value["StringValue"]
    if more:
        headers[HEADER] = _compact(more)
    return headers


def with_system(headers: Mapping[str, str] | None, name: str, value: str) -> dict[str, str]:
    """A message's headers, with one more system attribute."""
    more = _parsed(headers[HEADER]) if headers and HEADER in headers else {}
    more["system"] = {**more.get("system", {}), name: value}
    packed = _compact(more)
    return {**(headers or {}), HEADER: packed}


def checksum(attributes: Mapping[str, Value]) -> str:
    """The MD5 of attributes, as SDKs verify it."""
    digest = md5(usedforsecurity=False)

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(4))
        digest.update(part)

    for name in sorted(attributes):
        value = attributes[name]
        kind: str = value["DataType"]
        add(name.encode())
        add(kind.encode())
        is_binary = kind.startswith("Binary")
        digest.update(_BINARY if is_binary else _STRING)
        add(value["BinaryValue"] if is_binary else value["StringValue"].encode())
    return digest.hexdigest()


# --- received ----------------------------------------------------------------------------------


class Received(NamedTuple):
    """What the headers of a message tell SQS clients. system: system attributes that were sent with
    it. death: its death record, if it is a dead letter. dedup_id: the queue's dedup id of it."""

    attributes: dict[str, dict[str, Any]]
    system: dict[str, str]
    death: dict[str, Any]
    dedup_id: str | None


def received(headers: Mapping[str, str], *, is_text: bool) -> Received:
    """What the headers of a message say, whichever client pushed it. is_text: whether its payload
    is text."""
    attributes: dict[str, dict[str, Any]] = {}
    more = _parsed(headers[HEADER]) if HEADER in headers else {}
    types = more.get("types", {})
    for name, text in headers.items():
        if name.startswith(_OWN):
            continue
        if _NOT_XML.search(text):
            attributes[name] = {"DataType": "Binary", "BinaryValue": text.encode()}
        else:
            attributes[name] = {"DataType": types.get(name, "String"), "StringValue": text}
    for name, text in more.get("strings", {}).items():
        attributes[name] = {"DataType": types.get(name, "String"), "StringValue": text}
    for name, encoded in more.get("binary", {}).items():
        kind = types.get(name, "Binary")
        attributes[name] = {"DataType": kind, "BinaryValue": base64.b64decode(encoded)}
    if not is_text:
        attributes[ENCODING] = {"DataType": "String", "StringValue": "base64"}
    death = death_of(headers) if DEATH_HEADER in headers else {}
    return Received(attributes, more.get("system", {}), death, headers.get(DEDUP_HEADER))


def body_of(payload: bytes) -> tuple[str, bool]:
    """A payload as a body of SQS, and whether it is text; what SQS cannot show is in base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        return base64.b64encode(payload).decode(), False
    if text.isprintable() or not _NOT_XML.search(text):  # most texts are printable
        return text, True
    return base64.b64encode(payload).decode(), False


def _parsed(text: str) -> dict[str, Any]:
    """The JSON object in `HEADER`; empty for anything else, such as a user's own header."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def chosen(names: Sequence[str], attributes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The requested attributes: by name, by prefix ("price.*"), or all."""
    if not names or not attributes:
        return {}
    if any(name in ("All", ".*") for name in names):
        return attributes
    exact = set(names)
    prefixes = tuple(name.removesuffix("*") for name in names if name.endswith(".*"))
    return {
        name: value
        for name, value in attributes.items()
        if name in exact or name.startswith(prefixes or ("\0",))
    }
