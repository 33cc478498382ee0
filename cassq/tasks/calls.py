"""Calls as payloads: `{"task": NAME, "args": [...], "kwargs": {...}}`, as JSON or msgpack.

An object in JSON begins with `{`, a map in msgpack with a byte above 0x7f. So a worker reads both,
whatever its own app writes. Nothing is ever pickled: reading a payload runs no code.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from cassq.errors import UsageError
from cassq.extras import wanted

Serializer = Literal["json", "msgpack"]
# Types of values that JSON writes as they are.
_PLAIN = frozenset({type(None), bool, int, str})
_dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
# The values to write, each with its name in errors.
Parts = Sequence[tuple[str, Any]]


class Call(NamedTuple):
    """A call of a task: the task's name, and the arguments."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        return {"task": self.task, "args": list(self.args), "kwargs": dict(self.kwargs)}


def result_key(message_id: str) -> str:
    """The key of a task's result in the catalog."""
    return f"task:{message_id}"


class NotACallError(ValueError):
    """A payload is not a call of a task."""


class Codec:
    """Encodes calls, results and records. Raises UsageError for an unknown serializer, and
    MissingExtraError. Its methods raise UsageError for a value that cannot be written, and say
    where it is."""

    def __init__(self, serializer: str) -> None:
        self._is_json = serializer == "json"
        match serializer:
            case "json":
                self._write = _as_json
            case "msgpack":
                packb = _msgpack().packb
                self._write = lambda parts, whole: _as_msgpack(parts, whole, packb)
            case _:
                raise UsageError(f"serializer must be 'json' or 'msgpack', not {serializer!r}")

    def call(self, call: Call) -> bytes:
        kinds = {*map(type, call.args), *map(type, call.kwargs.values())}
        if self._is_json and kinds <= _PLAIN:  # only a string can be invalid
            with suppress(UnicodeEncodeError):
                return _dumps(call.as_dict()).encode()
        of = f"of task {call.task!r}"
        parts = [(f"argument {n} {of}", value) for n, value in enumerate(call.args, 1)]
        parts += [(f"argument {name!r} {of}", value) for name, value in call.kwargs.items()]
        return self._write(parts, call.as_dict())

    def result(self, task: str, value: object) -> bytes:
        return self._write([(f"the result of task {task!r}", value)], {"value": value})

    def record(self, where: str, value: object, fields: Mapping[str, Any]) -> bytes:
        """A value, and fields about it that are known to be valid. where: its name in errors."""
        return self._write([(where, value)], {"value": value, **fields})

    def error(self, text: str) -> bytes:
        """The record kept instead of a result that could not be written."""
        return self._write([], {"error": text})


def decode(payload: bytes) -> Call:
    """The call in a payload, JSON or msgpack. Raises NotACallError, and MissingExtraError."""
    found = _read(payload)
    match found:
        case {"task": str(name), **rest}:
            args, kwargs = rest.get("args", []), rest.get("kwargs", {})
            if isinstance(args, list) and isinstance(kwargs, dict):
                return Call(name, args, kwargs)
    raise NotACallError("it has no 'task', or its 'args' or 'kwargs' have the wrong type")


def decode_result(raw: bytes) -> tuple[Any, str]:
    """The result and ""; or None and why there is no result. Raises NotACallError for anything
    else."""
    match _read(raw):
        case {"value": value}:
            return value, ""
        case {"error": str(text)}:
            return None, text
    raise NotACallError("it is not the result of a task")


def decode_record(raw: bytes) -> dict[str, Any]:
    """A value with its fields. Raises NotACallError for anything else."""
    match _read(raw):
        case {"value": _, **_rest} as found:
            return dict(found)
    raise NotACallError("it is not the record of a step")


def _read(payload: bytes) -> Any:
    try:
        # Decoded here: `loads` would first guess the encoding of bytes.
        return json.loads(payload.decode()) if payload[:1] == b"{" else _from_msgpack(payload)
    except ValueError as exc:
        raise NotACallError(f"neither JSON nor msgpack: {exc}") from exc


def _as_json(parts: Parts, whole: dict[str, Any]) -> bytes:
    for where, value in parts:
        _check_json(value, where)
    text = _dumps(whole)
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        where = ", ".join(where for where, _ in parts)
        raise UsageError(f"not valid text in {where}: {exc}") from exc


def _check_json(value: object, where: str) -> None:
    """Raise UsageError for what JSON cannot write, or would change silently."""
    match value:
        case float() if not math.isfinite(value):
            raise UsageError(
                f"{where} is {value}, which JSON cannot write", hint="pass None, or a string"
            )
        case None | str() | int() | float():
            return
        case list() | tuple():
            for each in value:
                _check_json(each, where)
        case dict():
            for key, each in value.items():
                if not isinstance(key, str):
                    raise UsageError(
                        f"{where} has the key {key!r}, but keys in JSON are strings",
                        hint="make the keys strings, or use App(serializer='msgpack')",
                    )
                _check_json(each, where)
        case _:
            raise UsageError(
                f"{where} has the type {type(value).__name__}, which JSON cannot write",
                hint="pass strings, numbers, booleans, None, and lists and dicts of them;"
                " App(serializer='msgpack') also takes bytes and times",
            )


def _as_msgpack(parts: Parts, whole: dict[str, Any], packb: Callable[..., bytes]) -> bytes:
    for where, value in parts:
        try:
            packb(value, datetime=True)
        except (TypeError, ValueError, OverflowError) as exc:
            raise UsageError(
                f"{where} cannot be written as msgpack: {exc}",
                hint="pass strings, bytes, numbers, times with a zone, and lists and dicts of them",
            ) from exc
    return packb(whole, datetime=True)


def _from_msgpack(payload: bytes) -> Any:
    if payload[:1] < b"\x80":  # not a map, and msgpack is not needed to see that
        raise NotACallError("not a map")
    msgpack = _msgpack()
    try:
        return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)
    except (msgpack.UnpackException, ValueError) as exc:
        raise NotACallError(f"not msgpack: {exc}") from exc


def _msgpack() -> Any:
    with wanted("tasks in msgpack need", "msgpack", "decoding"):
        return importlib.import_module("msgpack")
