"""Calls as payloads: `{"task": NAME, "args": [...], "kwargs": {...}}`, as JSON or msgpack.

JSON begins with `{` and a map of msgpack with a byte above 0x7f, so a worker reads both, whatever
its own app writes. Nothing is ever pickled: reading a payload runs no code.
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
# What is written, and how an error names it.
Parts = Sequence[tuple[str, Any]]


class Call(NamedTuple):
    """A call of a task: its name, and what it is called with."""

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
    """Writes calls and results. Raises UsageError for an unknown serializer, and MissingExtraError;
    each method, for what cannot be written, naming its place."""

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
        if self._is_json and kinds <= _PLAIN:  # nothing in it can be refused, but texts
            with suppress(UnicodeEncodeError):
                return _dumps(call.as_dict()).encode()
        of = f"of task {call.task!r}"
        parts = [(f"argument {n} {of}", value) for n, value in enumerate(call.args, 1)]
        parts += [(f"argument {name!r} {of}", value) for name, value in call.kwargs.items()]
        return self._write(parts, call.as_dict())

    def result(self, task: str, value: object) -> bytes:
        return self._write([(f"the result of task {task!r}", value)], {"value": value})

    def record(self, where: str, value: object, fields: Mapping[str, Any]) -> bytes:
        """A value with fields about it, which can all be written. where: names it in errors."""
        return self._write([(where, value)], {"value": value, **fields})

    def error(self, text: str) -> bytes:
        """What stands for a result that there is not."""
        return self._write([], {"error": text})


def decode(payload: bytes) -> Call:
    """The call in a payload, of either kind. Raises NotACallError, and MissingExtraError."""
    found = _read(payload)
    match found:
        case {"task": str(name), **rest}:
            args, kwargs = rest.get("args", []), rest.get("kwargs", {})
            if isinstance(args, list) and isinstance(kwargs, dict):
                return Call(name, args, kwargs)
    raise NotACallError("it has no 'task', or its 'args' or 'kwargs' are of another type")


def decode_result(raw: bytes) -> tuple[Any, str]:
    """A result, and why there is none, or "". Raises NotACallError for anything else."""
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
        # Decoded here, as it need not be found out how it is encoded.
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
                f"{where} is {value}, which JSON cannot write", hint="pass None, or a text"
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
                        f"{where} has the key {key!r}, and JSON has only texts as keys",
                        hint="make keys texts, or use App(serializer='msgpack')",
                    )
                _check_json(each, where)
        case _:
            raise UsageError(
                f"{where} has the type {type(value).__name__}, which JSON cannot write",
                hint="pass texts, numbers, booleans, None, and lists and dicts of them;"
                " App(serializer='msgpack') also takes bytes and times",
            )


def _as_msgpack(parts: Parts, whole: dict[str, Any], packb: Callable[..., bytes]) -> bytes:
    for where, value in parts:
        try:
            packb(value, datetime=True)
        except (TypeError, ValueError, OverflowError) as exc:
            raise UsageError(
                f"{where} cannot be written as msgpack: {exc}",
                hint="pass texts, bytes, numbers, times with a zone, and lists and dicts of them",
            ) from exc
    return packb(whole, datetime=True)


def _from_msgpack(payload: bytes) -> Any:
    if payload[:1] < b"\x80":  # not a map; and then msgpack need not be installed to say so
        raise NotACallError("not a map")
    msgpack = _msgpack()
    try:
        return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)
    except (msgpack.UnpackException, ValueError) as exc:
        raise NotACallError(f"not msgpack: {exc}") from exc


def _msgpack() -> Any:
    with wanted("tasks in msgpack need", "msgpack", "decoding"):
        return importlib.import_module("msgpack")
