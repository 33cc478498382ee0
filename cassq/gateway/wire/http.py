"""A connection of HTTP/1.1: reads requests, and writes their answers in the same order.

    idle  ->  reading  ->  waiting  ->  answering  ->  idle          one request after another
                 |
                 +-> refused                                         400, 408, 413, 431; then closed

Invariants:

1. At most one request of a connection is answered at a time. Reading pauses while others wait, so a
   connection holds the request being answered, one chunk that was read, and one body.
2. If a client goes away, the task of its request is cancelled. An answer that the operating system
   had not taken by then counts as undelivered.
3. No connection has a timer: `sweep` is called for each about once per second.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, cast

import httptools

BODY_BYTES_MAX = 1_153_433  # 1.1 MiB
PLAIN_BODY_BYTES_MAX = 16 * 1024 * 1024  # of plain HTTP, whose batches are larger
PLAIN_PREFIX = b"/v1/"
HEAD_BYTES_MAX = 32 * 1024
HEADERS_MAX = 100
BODIES_BYTES_MAX = 256 * 1024 * 1024  # of all connections, from the first byte to the answer
SMALL_BODY_BYTES = 64 * 1024  # bodies up to this size are read even beyond `BODIES_BYTES_MAX`
CHUNKED_FACTOR_MAX = 4  # a chunked request has at most this times the bytes of the largest body
SLOW_SECONDS = 10.0
BODY_BYTES_PER_SECOND_MIN = 16 * 1024
IDLE_SECONDS = 120.0
CROWDED_SECONDS = 10.0  # how long a connection may be idle when few more can be accepted
REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
_LINES = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, reason.encode()) for status, reason in REASONS.items()
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_COPIED_BYTES_MAX = 16 * 1024  # a body up to this size is written together with its head
Undelivered = Callable[[], Awaitable[None]]
T = TypeVar("T")


class HttpRequest:
    """A request. path, query: as they were sent, still encoded. headers: by name in lower case.
    can_end: whether its task may be cancelled when the gateway ends, because it has an answer for
    that. ending: whether that was done."""

    __slots__ = ("body", "can_end", "ending", "headers", "keep_alive", "method", "path", "query")

    def __init__(self, method: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
        self.method: bytes = method
        self.path: bytes
        self.query: bytes
        self.path, _, self.query = target.partition(b"?")
        self.headers: dict[bytes, bytes] = headers
        self.body: bytes = b""
        self.keep_alive: bool = True
        self.can_end: bool = False
        self.ending: bool = False

    async def unless_ended(self, answer: Awaitable[T], *, waits: bool) -> T | None:
        """The answer, or None if the gateway ended first. waits: whether the gateway's end may cut
        it off."""
        self.can_end = waits
        try:
            return await answer
        except asyncio.CancelledError:
            if not self.ending:
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return None
        finally:
            self.can_end = False


class Reply:
    """An answer. headers: lines, each with its line end. undelivered: what to do if the client does
    not get it."""

    __slots__ = ("body", "headers", "status", "undelivered")

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: bytes = b"Content-Type: text/plain; charset=utf-8\r\n",
        undelivered: Undelivered | None = None,
    ) -> None:
        self.status: int = status
        self.body: bytes = body
        self.headers: bytes = headers
        self.undelivered: Undelivered | None = undelivered


class ConnectionHost(Protocol):
    """What all connections share. date: the line of that header. closing: whether no more requests
    are accepted. body_bytes: the size of all bodies that are being read or answered.
    body_bytes_max: beyond it, large bodies are refused."""

    date: bytes
    closing: bool
    body_bytes: int
    body_bytes_max: int

    async def answer(self, request: HttpRequest) -> Reply:
        """Answer a request. Raises nothing but CancelledError."""
        ...

    def opened(self, connection: HttpConnection) -> None:
        """A connection was opened."""
        ...

    def lost(self, connection: HttpConnection) -> None:
        """A connection is over."""
        ...

    def undelivered(self, give_back: Undelivered) -> None:
        """The client went away before it got an answer: undo what the answer promised."""
        ...

    def body_refused(self) -> None:
        """A body was refused, because other bodies have too many bytes."""
        ...


class HttpConnection(asyncio.Protocol):
    """One connection. refusing: whether to answer 503 and close, because there are too many."""

    def __init__(self, house: ConnectionHost, *, refusing: bool = False) -> None:
        self._house = house
        self._refusing = refusing
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self.was_made: bool = False
        self._transport: asyncio.Transport
        self._waiting: deque[HttpRequest] = deque()
        self._refusal: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._current: HttpRequest | None = None
        self._lost = False
        self._paused = False
        # Of the request that is being read.
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._bytes = 0
        self._head_read = False
        self._chunks: list[bytes] = []
        self._body_bytes, self._body_bytes_max = 0, BODY_BYTES_MAX
        self._held = 0  # bytes of bodies that were read, and not answered yet
        self._reading = False
        self._reading_since = 0.0
        self._continue = False
        # Of the answer that the system has not taken yet.
        self._blocked = False
        self._blocked_since = 0.0
        self._unsent: Undelivered | None = None
        self._idle_since = self._loop.time()

    # --- the transport ----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self.was_made = True
        # With 0, "paused" means that the system has not taken all bytes, "resumed" that it has.
        self._transport.set_write_buffer_limits(high=0)
        self._house.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._lost = True
        self._waiting.clear()
        self._hold(-self._held)
        # Frees a partly read request at once: a parser and its connection refer to each other.
        del self._parser
        self._headers, self._chunks = {}, []
        if self._task is not None:
            self._task.cancel()
        if self._unsent is not None:
            self._house.undelivered(self._unsent)
            self._unsent = None
        self._house.lost(self)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._blocked, self._blocked_since = True, self._loop.time()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._blocked, self._unsent = False, None
        self._advance()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        while self._refusal is None:
            self._bytes += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as exc:
                # The request is read, and answered as if it had not asked for another protocol.
                self._parser = httptools.HttpRequestParser(self)
                data = data[exc.args[0] :]
                if data:
                    continue
            except httptools.HttpParserError as exc:
                self._refuse(400, f"this is not HTTP/1.1: {exc}")
            if self._bytes > CHUNKED_FACTOR_MAX * self._body_bytes_max:
                self._refuse_body()
            elif not self._head_read and self._bytes > HEAD_BYTES_MAX:
                self._refuse(431, f"the head has more than {HEAD_BYTES_MAX} bytes")
            break
        self._advance()

    # --- the parser -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._headers, self._chunks = b"", {}, []
        self._body_bytes = self._bytes = 0
        self._body_bytes_max = BODY_BYTES_MAX
        self._head_read = self._continue = False
        self._reading, self._reading_since = True, self._loop.time()

    def on_url(self, url: bytes) -> None:
        """The request's target, or more of it."""
        self._target += url
        if len(self._target) > HEAD_BYTES_MAX:
            self._refuse(431, f"the target has more than {HEAD_BYTES_MAX} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if self._head_read:
            return  # a trailer: it was not there when the request was understood
        headers, name = self._headers, name.lower()
        if name in headers:
            value = headers[name] + b"," + value
        headers[name] = value.strip()
        if len(headers) > HEADERS_MAX or len(value) > HEAD_BYTES_MAX:
            self._refuse(431, f"there are more than {HEADERS_MAX} headers, or one is too long")

    def on_headers_complete(self) -> None:
        """The head is read."""
        self._head_read = True
        if len(self._target) + sum(map(len, self._headers.values())) > HEAD_BYTES_MAX:
            self._refuse(431, f"the head has more than {HEAD_BYTES_MAX} bytes")
        length = self._headers.get(b"content-length", b"0")
        if self._target.startswith(PLAIN_PREFIX):
            self._body_bytes_max = PLAIN_BODY_BYTES_MAX
        if len(length) > 9 or int(length) > self._body_bytes_max:
            self._refuse_body()
        elif b"expect" in self._headers:
            self._continue = self._headers[b"expect"].lower() == b"100-continue"

    def on_body(self, body: bytes) -> None:
        """More of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._body_bytes_max:
            self._refuse_body()
        elif self._refusal is not None:
            return
        elif self._body_bytes > SMALL_BODY_BYTES and self._is_too_much(len(body)):
            self._house.body_refused()
            self._refuse(503, "SlowDown: too many bytes are being sent at once; try again")
        else:
            self._chunks.append(body)
            self._hold(len(body))

    def _is_too_much(self, more: int) -> bool:
        return self._house.body_bytes + more > self._house.body_bytes_max

    def _hold(self, more: int) -> None:
        self._held += more
        self._house.body_bytes += more

    def on_message_complete(self) -> None:
        """The request is read."""
        self._reading = self._continue = self._head_read = False
        self._bytes = 0
        if self._refusal is not None:
            return
        request = HttpRequest(self._parser.get_method(), self._target, self._headers)
        chunks = self._chunks
        request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._headers, self._chunks = {}, []
        request.keep_alive = self._parser.should_keep_alive() and request.method != b"CONNECT"
        self._waiting.append(request)

    # --- requests ---------------------------------------------------------------------------------

    def _refuse_body(self) -> None:
        self._refuse(413, f"a body has at most {self._body_bytes_max} bytes")

    def _refuse(self, status: int, why: str) -> None:
        """After the answers to earlier requests, answer this error, and close."""
        if self._refusal is None:
            self._refusal = Reply(status, why.encode("utf-8", "replace") + b"\n")
            self._chunks = []

    def _advance(self) -> None:
        """Begin the next request, if none is being answered."""
        if self._task is None and not self._blocked and not self._lost:
            if self._waiting:
                if self._refusing:
                    self._finish(Reply(503, b"there are too many connections\n"))
                    return
                self._current = request = self._waiting.popleft()
                self._task = self._loop.create_task(self._serve(request))
            elif self._refusal is not None:
                self._finish(self._refusal)
                return
            elif self._continue:
                self._continue = False
                self._transport.write(_CONTINUE)
            elif self._house.closing and not self._reading:
                self._transport.close()
        if bool(self._waiting) != self._paused and not self._lost:
            self._paused = not self._paused
            if self._paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def _serve(self, request: HttpRequest) -> None:
        try:
            reply = await self._house.answer(request)
            if self._lost or self._transport.is_closing():
                if reply.undelivered is not None:
                    self._house.undelivered(reply.undelivered)
                return
            self._write(reply, request)
        finally:
            self._task = self._current = None
            if not self._lost:
                self._hold(-len(request.body))
            self._idle_since = self._loop.time()
        self._advance()

    def _write(self, reply: Reply, request: HttpRequest) -> None:
        body = reply.body
        keep = request.keep_alive and not self._house.closing
        head = _head(reply, self._house.date, keep=keep)
        if request.method == b"HEAD":
            body = b""
        # Set before the write, because the system may not take all bytes.
        self._unsent = reply.undelivered
        if len(body) <= _COPIED_BYTES_MAX:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        if not self._blocked:
            self._unsent = None
        if not keep:
            self._waiting.clear()
            self._transport.close()

    def _finish(self, reply: Reply) -> None:
        """Write the last answer, and close. Reads nothing more from the client."""
        head = _head(reply, self._house.date, keep=False)
        self._waiting.clear()
        self._transport.write(head + reply.body)
        self._transport.close()

    @property
    def is_answering(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    # --- what the house asks for ------------------------------------------------------------------

    def sweep(self, now: float, *, crowded: bool) -> None:
        """Close the connection if its client is too slow, or idle for too long. now: by the loop's
        clock. crowded: whether few more connections can be accepted."""
        if self._blocked:
            if now - self._blocked_since > SLOW_SECONDS:
                self._transport.abort()
        elif self._task is not None or self._waiting:
            return
        elif self._reading:
            allowed = SLOW_SECONDS + self._body_bytes / BODY_BYTES_PER_SECOND_MIN
            if now - self._reading_since > allowed:
                self._refuse(408, "the request took too long")
                self._advance()
        elif now - self._idle_since > (CROWDED_SECONDS if crowded else IDLE_SECONDS):
            self._transport.close()

    def drain(self) -> None:
        """Close after the present request. If that waits for messages, it is answered now."""
        request = self._current
        if request is not None and request.can_end and self._task is not None:
            request.ending = True
            self._task.cancel()
        self._advance()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


def _head(reply: Reply, date: bytes, *, keep: bool) -> bytes:
    return b"%b%b%bContent-Length: %d\r\n%b\r\n" % (
        _LINES.get(reply.status) or b"HTTP/1.1 %d Error\r\n" % reply.status,
        date,
        reply.headers,
        len(reply.body),
        b"" if keep else b"Connection: close\r\n",
    )
