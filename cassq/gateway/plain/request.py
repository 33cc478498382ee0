"""Requests and answers of plain HTTP, and its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from cassq.gateway.request import Caller

JSON = "application/json"
LINES = "application/x-ndjson"
MSGPACK = "application/msgpack"
VISIBLE_SECONDS = 30  # unless the request says otherwise
RECEIVED = 100


class PlainError(Exception):
    """A request that is refused, or cannot be carried out now. code: for programs, such as
    "queue_not_found". hint: what to do."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint

    def as_dict(self) -> dict[str, str]:
        found = {"code": self.code, "message": self.message, "hint": self.hint}
        return {name: text for name, text in found.items() if text}


@dataclass(slots=True)
class PlainRequest:
    """A request. path: decoded, each part by itself. query: decoded. content_type, accept: the
    media types of the body, and of the answer wanted; empty if not given."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes
    caller: Caller
    content_type: str = ""
    accept: str = ""


@dataclass(slots=True)
class PlainAnswer:
    """An answer. undelivered: see `cassq.gateway.request.Answer`. error: the error in the body, if
    it is one."""

    status: int
    body: bytes
    content_type: str = JSON
    undelivered: Callable[[], Awaitable[None]] | None = None
    error: Mapping[str, str] = field(default_factory=dict)
