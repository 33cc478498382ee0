"""Decoding of payloads for people: text, JSON, MessagePack and protobuf.

A payload that cannot be decoded raises nothing: it is shown as bytes, with the reason.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cassq import extras
from cassq.errors import ConfigError

SHOWN_BYTES = 64
DESCRIPTOR_BYTES_MAX = 64 * 1024 * 1024
PROTOBUF = "protobuf"
FORMATS = ("text", "json", "msgpack", f"{PROTOBUF}:MESSAGE")


class Decoded(NamedTuple):
    """A decoded payload. text: for people. value: for programs, what JSON can hold; None with an
    error. error: why it could not be decoded; `text` shows bytes then.
    """

    text: str
    value: Any = None
    error: str = ""


Decoder = Callable[[bytes], Decoded]


def decoder(name: str, descriptor_set: Path | None = None) -> Decoder:
    """The decoder of that name: text, json, msgpack, or protobuf:MESSAGE with a descriptor set.

    descriptor_set: a file made by `protoc --include_imports --descriptor_set_out`. The decoder
    never raises. Raises ConfigError for an unknown decoder or an unusable descriptor set,
    MissingExtraError if its package is missing.
    """
    form, _, message = name.partition(":")
    if descriptor_set is not None and form != PROTOBUF:
        raise ConfigError(f"a descriptor set is for protobuf, not for {name!r}")
    match form, message:
        case ("text", ""):
            return _guarded("UTF-8 text", _text)
        case ("json", ""):
            return _guarded("JSON", _json)
        case ("msgpack", ""):
            return _guarded("MessagePack", _msgpack())
        case ("protobuf", str()) if message:
            return _guarded(f"a {message}", _protobuf(message, descriptor_set))
    raise ConfigError(f"{name!r} is not a decoder", hint=f"use {', '.join(FORMATS)}")


def shown_bytes(payload: bytes) -> str:
    """The beginning of a payload in hexadecimal digits, and its length."""
    cut = "…" if len(payload) > SHOWN_BYTES else ""
    return f"{payload[:SHOWN_BYTES].hex()}{cut} ({len(payload):,} bytes)"


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes as a JSON field: as text if they are UTF-8, else as base64, with `_base64` added to the
    name."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _guarded(noun: str, decode: Callable[[bytes], Any]) -> Decoder:
    """`decode`, with failures returned instead of raised: each library has its own errors."""

    def guarded(payload: bytes) -> Decoded:
        try:
            value = decode(payload)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text.encode()  # JSON can hold half a surrogate pair, UTF-8 cannot
        except Exception as exc:
            reason = str(exc).partition("\n")[0][:200] or type(exc).__name__
            return Decoded(shown_bytes(payload), error=f"not {noun}: {reason}")
        return Decoded(text, value)

    return guarded


def _text(payload: bytes) -> str:
    return payload.decode()


def _json(payload: bytes) -> Any:
    return json.loads(payload, parse_constant=_refused)


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


# --- MessagePack ------------------------------------------------------------------------------


def _msgpack() -> Callable[[bytes], Any]:
    unpack = _optional("msgpack", "MessagePack").unpackb

    def decode(payload: bytes) -> Any:
        return plain(unpack(payload, raw=False, strict_map_key=False, timestamp=3))

    return decode


def plain(value: Any) -> Any:
    """A value as JSON can hold it: bytes as base64, keys and anything else as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"base64": base64.b64encode(value).decode()}
        case dict():
            return {k if isinstance(k, str) else _key(k): plain(v) for k, v in value.items()}
        case tuple() if hasattr(value, "_fields"):  # an extension type
            return {name: plain(part) for name, part in zip(value._fields, value, strict=True)}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return str(value)


def _key(key: Any) -> str:
    return str(key) if not isinstance(key, bytes) else base64.b64encode(key).decode()


# --- protobuf ---------------------------------------------------------------------------------


def _protobuf(message: str, descriptor_set: Path | None) -> Callable[[bytes], Any]:
    to_dict = _optional("google.protobuf.json_format", PROTOBUF).MessageToDict
    unknown_fields = _optional("google.protobuf.unknown_fields", PROTOBUF).UnknownFieldSet
    kind = _message_class(message, descriptor_set)

    def decode(payload: bytes) -> Any:
        decoded = kind.FromString(payload)
        if payload and not decoded.ListFields() and len(unknown_fields(decoded)):
            # Almost any bytes can be read as a message with unknown fields.
            raise ValueError("it has none of the message's fields")
        return to_dict(decoded, preserving_proto_field_name=True)

    return decode


def _message_class(message: str, descriptor_set: Path | None) -> Any:
    if descriptor_set is None:
        raise ConfigError(
            f"decoding {message} needs a descriptor set",
            hint="create one: protoc --include_imports --descriptor_set_out=FILE …",
        )
    try:
        with open(descriptor_set, "rb") as file:
            data = file.read(DESCRIPTOR_BYTES_MAX)
    except OSError as exc:
        raise ConfigError(f"{descriptor_set} cannot be read: {exc.strerror}") from exc
    pool = _optional("google.protobuf.descriptor_pool", PROTOBUF).DescriptorPool()
    factory = _optional("google.protobuf.message_factory", PROTOBUF)
    try:
        files = _optional("google.protobuf.descriptor_pb2", PROTOBUF).FileDescriptorSet.FromString(
            data
        )
        for file_proto in files.file:
            pool.Add(file_proto)
        names = sorted(_names(files))
        if message in names:
            return factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except Exception as exc:  # its own errors, and TypeErrors of the C library
        raise ConfigError(
            f"{descriptor_set} is not a usable descriptor set: {exc}",
            hint="create it with `protoc --include_imports --descriptor_set_out=FILE …`",
        ) from exc
    raise ConfigError(
        f"there is no message {message!r} in {descriptor_set}",
        hint=f"there are {', '.join(names[:20])}" if names else "it has no messages",
    )


def _names(files: Any) -> list[str]:
    """The full names of all messages, nested ones included."""
    found: list[str] = []

    def add(prefix: str, messages: Any) -> None:
        for message in messages:
            name = f"{prefix}.{message.name}" if prefix else message.name
            found.append(name)
            add(name, message.nested_type)

    for file in files.file:
        add(file.package, file.message_type)
    return found


def _optional(module: str, noun: str) -> Any:
    package = "protobuf" if module.startswith("google") else module
    with extras.wanted(f"decoding {noun} needs", package, "decoding"):
        return __import__(module, fromlist=["_"])
