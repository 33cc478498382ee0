"""Requests and answers without sockets: what tests of the wire share."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from cassq.base.clock import Clock, ManualClock
from cassq.gateway.request import Answer, Request
from cassq.gateway.wire.answering import Answering
from cassq.gateway.wire.counts import Counts, counts_bytes
from cassq.gateway.wire.credentials import Credentials
from cassq.gateway.wire.http import HttpRequest, Reply
from cassq.gateway.wire.signatures import Verifier

HOST = "127.0.0.1:9324"
URL = f"http://{HOST}"
QUEUE_URL = f"{URL}/000000000000/mail"
FORM = "application/x-www-form-urlencoded; charset=utf-8"


class Recorder:
    """A service that notes requests, and answers with what `reply` makes of them."""

    def __init__(self, reply: Callable[[Request], Mapping[str, Any]] = lambda request: {}) -> None:
        self.requests: list[Request] = []
        self.reply: Callable[[Request], Mapping[str, Any]] = reply

    async def answer(self, request: Request) -> Answer:
        """See `Service`."""
        self.requests.append(request)
        return Answer(dict(self.reply(request)))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Those of the last request."""
        return self.requests[-1].parameters


def counts() -> Counts:
    """Those of one process."""
    with tempfile.TemporaryFile() as file:
        file.truncate(counts_bytes(1))
        return Counts(file.fileno(), 0)


def answering(
    service: Any, credentials: Path | None = None, clock: Clock | None = None
) -> Answering:
    """What answers requests by a service."""
    verifier = None if credentials is None else Verifier(Credentials(credentials))
    return Answering(service, counts(), clock or ManualClock(), verifier=verifier)


def http_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes = b""
) -> HttpRequest:
    """A request as a connection reads it."""
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lowered = {
        name.lower().encode(): str(value).strip().encode() for name, value in headers.items()
    }
    lowered.setdefault(b"host", parts.netloc.encode())
    request = HttpRequest(method.encode(), target.encode(), lowered)
    request.body = body
    return request


def json_request(action: str, body: bytes, **headers: str) -> HttpRequest:
    """A call in the JSON encoding."""
    return http_request("POST", f"{URL}/", {"X-Amz-Target": f"AmazonSQS.{action}", **headers}, body)


def query_request(parameters: Mapping[str, str], url: str = f"{URL}/") -> HttpRequest:
    """A call in the Query encoding."""
    return http_request("POST", url, {"Content-Type": FORM}, urlencode(parameters).encode())


def answer(front: Answering, request: HttpRequest) -> Reply:
    """What a request gets."""
    return asyncio.run(_answered(front, request))


async def _answered(front: Answering, request: HttpRequest) -> Reply:
    return await front(request)
