"""Requests and answers of plain HTTP held against the OpenAPI document that the gateway serves."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

from cassq.gateway.plain.openapi import document
from cassq.gateway.plain.request import JSON, LINES, MSGPACK, PlainAnswer, PlainRequest

_DOCUMENT = document()
# In msgpack what is a text in the document may be bytes.
_Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine(
        "string", lambda _checker, value: isinstance(value, str | bytes)
    ),
)


def operation(method: str, path: tuple[str, ...]) -> Mapping[str, Any] | None:
    """What the document says of a request; None if it has no such path or method."""
    asked = ("v1", *path)
    for template, operations in _DOCUMENT["paths"].items():
        parts = template.strip("/").split("/")
        if len(parts) == len(asked) and all(
            part in (have, "{queue}") for part, have in zip(parts, asked, strict=True)
        ):
            found: Mapping[str, Any] | None = operations.get(method.lower())
            return found
    return None


def is_valid(schema: Mapping[str, Any], value: object) -> bool:
    return not _wrong(schema, value)


def takes(request: PlainRequest) -> bool:
    """Whether the document allows this request's parameters and body."""
    said = operation(request.method, request.path)
    if said is None:
        return False
    parameters = {each["name"]: each["schema"] for each in said.get("parameters", ())}
    for name, text in request.query.items():
        if name not in parameters or not is_valid(parameters[name], _read(parameters[name], text)):
            return False
    if "requestBody" not in said:
        return not request.body
    kind = request.content_type or LINES
    return all(
        is_valid(schema, value)
        for schema, value in _values(said["requestBody"]["content"], kind, request.body)
    )


def check_answer(request: PlainRequest, answer: PlainAnswer) -> None:
    """AssertionError if an answer is not what the document says for its request and status."""
    said = operation(request.method, request.path)
    if said is None:
        assert answer.status in (404, 405), (request, answer)
        content = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
    else:
        responses = said["responses"]
        content = responses.get(str(answer.status), responses["default"])["content"]
    assert answer.content_type in content, (request, answer)
    for schema, value in _values(content, answer.content_type, answer.body):
        assert not _wrong(schema, value), (request, value, _wrong(schema, value))


def _values(
    content: Mapping[str, Any], kind: str, body: bytes
) -> Iterator[tuple[Mapping[str, Any], object]]:
    """What is in a body, each with its schema: a line has one of its own."""
    schema = content[kind]["schema"]
    if kind == MSGPACK:
        yield schema, msgpack.unpackb(body)
    elif kind == LINES:
        for line in body.splitlines():
            yield schema, json.loads(line)
    else:
        yield schema, json.loads(body)


def _read(schema: Mapping[str, Any], text: str) -> object:
    """A parameter's value, as its schema takes it: a text that is no number of JSON stays one."""
    if schema["type"] not in ("integer", "number"):
        return text
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def _wrong(schema: Mapping[str, Any], value: object) -> list[str]:
    whole = {**schema, "components": _DOCUMENT["components"]}
    return [error.message[:300] for error in _Validator(whole).iter_errors(value)]
