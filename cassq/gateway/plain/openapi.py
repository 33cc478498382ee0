"""The OpenAPI document of plain HTTP: its requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cassq.base.arguments import DELAY_MAX_SECONDS
from cassq.consumer.receiving import RECEIVE_MAX
from cassq.gateway.actions.messages import VISIBILITY_SECONDS_MAX, WAIT_SECONDS_MAX
from cassq.gateway.plain.formats import PUSHED_MAX
from cassq.gateway.plain.request import JSON, LINES, MSGPACK, RECEIVED, VISIBLE_SECONDS
from cassq.model.queues import DEFAULT_GROUP
from cassq.plurals import counted
from cassq.version import __version__

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NULL: Schema = {"type": "null"}
_RECEIPTS: Schema = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_BASE64: Schema = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
_DELAY: Schema = {
    "type": "number",
    "minimum": 0,
    "maximum": DELAY_MAX_SECONDS,
    "description": "in seconds",
}
_VISIBLE: Schema = {"type": "number", "minimum": 0, "maximum": VISIBILITY_SECONDS_MAX}


def _or_null(schema: Schema) -> Schema:
    """A field that may be null, which means the same as a missing field."""
    return {"oneOf": [schema, _NULL]}


def _either(name: str) -> Schema:
    """A field of bytes, as it is or in base64: one of the two."""
    encoded = f"{name}_base64"
    return {
        "oneOf": [
            {"required": [name], "properties": {name: _TEXT, encoded: _NULL}},
            {"required": [encoded], "properties": {encoded: _BASE64, name: _NULL}},
        ]
    }


def _object(properties: Mapping[str, Schema], *required: str) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": dict(properties),
        "additionalProperties": False,
    }
    if required:
        found["required"] = [*required]
    return found


_SCHEMAS: dict[str, Schema] = {
    "Error": {
        **_object(
            {
                "error": _object(
                    {"code": _TEXT, "message": _TEXT, "hint": _TEXT}, "code", "message"
                ),
                "ids": {"type": "array", "items": {"type": ["string", "null"]}},
                "errors": {
                    "type": "array",
                    "items": _object(
                        {"at": {"type": "integer"}, "code": _TEXT, "message": _TEXT, "hint": _TEXT},
                        *("at", "code", "message"),
                    ),
                },
            },
            "error",
        ),
        "description": "If some messages of a push failed, ids has null for each of these, and"
        " errors says why, by its place in the body, from 0.",
    },
    "MessageToPush": {
        "description": "A payload alone, or an object. In msgpack payload and key may be bytes.",
        "oneOf": [
            _TEXT,
            {
                **_object(
                    {
                        "payload": _or_null(_TEXT),
                        "payload_base64": _or_null(_BASE64),
                        "headers": _or_null({"type": "object", "additionalProperties": _TEXT}),
                        "key": _or_null(_TEXT),
                        "key_base64": _or_null(_BASE64),
                        "priority": _or_null({"type": "integer", "minimum": 0, "maximum": 9}),
                        "delay": _or_null(_DELAY),
                        "dedup_id": _or_null(_TEXT),
                    }
                ),
                "allOf": [
                    _either("payload"),
                    {
                        "not": {
                            "properties": {"key": _TEXT, "key_base64": _TEXT},
                            "required": ["key", "key_base64"],
                        }
                    },
                ],
            },
        ],
    },
    "Pushed": _object({"ids": {"type": "array", "items": _TEXT}}, "ids"),
    "Message": {
        **_object(
            {
                "id": _TEXT,
                "payload": _TEXT,
                "payload_base64": _BASE64,
                "headers": {"type": "object", "additionalProperties": _TEXT},
                "key": _TEXT,
                "key_base64": _BASE64,
                "priority": {"type": "integer"},
                "attempts": {"type": "integer", "minimum": 1},
                "pushed_ms": {"type": "integer", "description": "Unix time in milliseconds"},
                "receipt": _TEXT,
            },
            *("id", "attempts", "pushed_ms", "receipt"),
        ),
        "description": "What is not UTF-8 is in payload_base64 and key_base64.",
    },
    "Act": {
        "description": "One verb, and the receipts that it is for.",
        "oneOf": [
            _object({"ack": _RECEIPTS}, "ack"),
            _object({"nack": _RECEIPTS, "delay": _DELAY, "error": _TEXT}, "nack"),
            _object({"release": _RECEIPTS}, "release"),
            _object({"dead": _RECEIPTS, "error": _TEXT}, "dead"),
            _object({"extend": _RECEIPTS, "seconds": _VISIBLE}, "extend", "seconds"),
        ],
    },
    "Settled": {
        **_object({"invalid": {"type": "array", "items": _TEXT}}, "invalid"),
        "description": "invalid: receipts of messages that are settled, or were delivered again."
        " They changed nothing.",
    },
    "Queue": _object({"queue": _TEXT}, "queue"),
    "Queues": _object({"queues": {"type": "array", "items": _TEXT}}, "queues"),
    "Statistics": {"type": "object", "description": "As of `cassq stats QUEUE --json`."},
}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _lines(name: str) -> Schema:
    """Lines of JSON, whose schema is that of a line; or a msgpack array of the same."""
    return {
        LINES: {"schema": _ref(name)},
        MSGPACK: {"schema": {"type": "array", "items": _ref(name)}},
    }


def _query(name: str, what: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": what, "schema": schema}


def _seconds(most: float, otherwise: float) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": most, "default": otherwise}


def _operation(what: str, answer: Schema, **more: Any) -> Schema:
    error = {"description": "An error.", "content": {JSON: {"schema": _ref("Error")}}}
    return {
        "summary": what,
        **more,
        "responses": {"200": {"description": "Done.", "content": answer}, "default": error},
    }


def _json(name: str) -> Schema:
    return {JSON: {"schema": _ref(name)}}


def _body(name: str) -> Schema:
    return {"required": True, "content": _lines(name)}


_QUEUE: Schema = {"name": "queue", "in": "path", "required": True, "schema": _TEXT}
_PATHS: dict[str, Schema] = {
    "/v1/queues": {
        "get": _operation(
            "The names of queues.",
            _json("Queues"),
            parameters=[_query("prefix", "Only names that begin with this.", _TEXT)],
        )
    },
    "/v1/queues/{queue}": {
        "parameters": [_QUEUE],
        "get": _operation("A queue's statistics.", _json("Statistics")),
        "put": _operation("Create a queue. One that is there stays as it is.", _json("Queue")),
    },
    "/v1/queues/{queue}/messages": {
        "parameters": [_QUEUE],
        "get": _operation(
            "Receive messages. Settle each by its receipt; otherwise it is delivered again.",
            _lines("Message"),
            parameters=[
                _query(
                    "group",
                    "The group that they are for, which must be there.",
                    {**_TEXT, "default": DEFAULT_GROUP},
                ),
                _query(
                    "max",
                    "How many at most.",
                    {"type": "integer", "minimum": 1, "maximum": RECEIVE_MAX, "default": RECEIVED},
                ),
                _query(
                    "wait",
                    "For how many seconds to wait if there are none.",
                    _seconds(WAIT_SECONDS_MAX, 0),
                ),
                _query(
                    "visible",
                    "After how many seconds they are delivered again.",
                    _seconds(VISIBILITY_SECONDS_MAX, VISIBLE_SECONDS),
                ),
            ],
        ),
        "post": _operation(
            f"Push up to {counted(PUSHED_MAX, 'message')}, in order. They are durable when it is"
            " answered.",
            _json("Pushed"),
            requestBody=_body("MessageToPush"),
        ),
    },
    "/v1/queues/{queue}/settle": {
        "parameters": [_QUEUE],
        "post": _operation(
            "Settle deliveries, durably.", _json("Settled"), requestBody=_body("Act")
        ),
    },
    "/v1/openapi.json": {
        "get": _operation("This document.", {JSON: {"schema": {"type": "object"}}})
    },
}


def document() -> Schema:
    """The document, for the paths below the gateway's address."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "cassq gateway", "version": __version__},
        "paths": _PATHS,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
        },
        "security": [{"basic": []}, {}],
    }
