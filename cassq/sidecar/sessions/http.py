"""HTTP for monitoring: /health as JSON, /metrics for Prometheus."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cassq.errors import CassqError, ConfigError, MissingExtraError
from cassq.extents.sidecar.net.connection import host_and_port

logger: logging.Logger = logging.getLogger("cassq")

REQUEST_SECONDS = 5.0
REQUEST_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 32
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    501: "Not Implemented",
    503: "Service Unavailable",
}


class Page(NamedTuple):
    """An HTTP response."""

    status: int
    kind: str
    body: bytes


class HttpServer:
    """Answers GET and HEAD, one request per connection. facts: the sidecar's status. healthy:
    decides by these facts. metrics: in Prometheus' text format; raises MissingExtraError if its
    package is missing."""

    def __init__(
        self,
        facts: Callable[[], Mapping[str, Any]],
        healthy: Callable[[Mapping[str, Any]], bool],
        metrics: Callable[[], bytes],
    ) -> None:
        self._facts = facts
        self._healthy = healthy
        self._metrics = metrics
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    async def listen(self, address: str) -> str:
        """Start to listen; return the actual host:port. Raises ConfigError."""
        try:
            host, port = host_and_port(address)
            self._server = await asyncio.start_server(
                self._serve, host, port, limit=REQUEST_BYTES_MAX
            )
        except (OSError, CassqError) as exc:
            why = exc.strerror if isinstance(exc, OSError) else str(exc)
            raise ConfigError(
                f"health and metrics cannot be served at {address}: {why}",
                hint="choose another port with --http, or 0 for any free port",
            ) from exc
        return f"{address.rpartition(':')[0]}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening, and close open connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            # An idle one would keep the others out.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            logger.debug("an HTTP request was incomplete, or its client did not read the answer")
        finally:
            self._open.pop(writer, None)
            writer.close()

    def _answer(self, head: bytes) -> bytes:
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        page = self._page(words)
        lines = [
            f"HTTP/1.1 {page.status} {_REASONS[page.status]}",
            f"Content-Type: {page.kind}",
            f"Content-Length: {len(page.body)}",
            "Connection: close",
        ]
        body = b"" if words[0] == "HEAD" else page.body
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _page(self, words: list[str]) -> Page:
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _text(400, "use HTTP/1.1: GET /health or GET /metrics")
        if words[0] not in ("GET", "HEAD"):
            return _text(405, "only GET and HEAD are supported")
        match words[1].partition("?")[0]:
            case "/health":
                facts = self._facts()
                well = self._healthy(facts)
                text = json.dumps({"healthy": well, **facts}, indent=2) + "\n"
                return Page(200 if well else 503, "application/json", text.encode())
            case "/metrics":
                try:
                    body = self._metrics()
                except MissingExtraError as exc:
                    return _text(501, str(exc))
                return Page(200, "text/plain; version=0.0.4; charset=utf-8", body)
        return _text(404, "not found: use /health or /metrics")


def _text(status: int, text: str) -> Page:
    return Page(status, "text/plain; charset=utf-8", text.encode() + b"\n")
