"""A session: one connection of a client, from its Hello to its end.

Invariants:

1. Nothing but a short Hello is read before the client is known.
2. Requests are begun in their order. The bytes of unanswered requests are bounded by the window,
   and the bytes of kept answers by HIGH_BYTES and one more answer.
3. Whatever a client does, it ends at most its own connection.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from cassq.base.clock import Stopwatch
from cassq.base.rare_log import RareLog, short
from cassq.extents.protocol.inbox import Inbox
from cassq.extents.protocol.messages import Code, Hello, RefusedError, Reply
from cassq.extents.protocol.wire import (
    HELLO_BYTES_MAX,
    ProtocolError,
    read_request,
    refusal_parts,
    reply_parts,
)
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.handshake import Handshake
from cassq.sidecar.sessions.incoming import Incoming
from cassq.sidecar.sessions.waiting import Requester

HELLO_SECONDS = 10.0
PIECE_BYTES = 1024 * 1024  # reserved for a message that was only announced
STALLED_SECONDS = 30.0  # without another byte of what was begun
LINGER_SECONDS = 2.0  # for a client to read why it was refused
HIGH_BYTES, LOW_BYTES = 4 * 1024 * 1024, 1024 * 1024
WAITING_MAX = 1000  # long polls of one connection
SESSIONS_MAX = 4096
_SMALL_BYTES = 16 * 1024  # parts that are joined before they are written


class ServerConnection(asyncio.BufferedProtocol):
    """The protocol of one connection. sessions: those of all connections; it adds and removes
    itself."""

    def __init__(
        self,
        handshake: Handshake,
        dispatcher: Dispatcher,
        sessions: set[ServerConnection],
        incoming: Incoming,
        log: RareLog,
    ) -> None:
        self.requester: Requester = Requester(self.blocked)
        self.received_bytes: int = 0
        self.sent_bytes: int = 0
        self.peer: str = incoming.peer
        self._handshake = handshake
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._incoming = incoming
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._inbox = Inbox(HELLO_BYTES_MAX, PIECE_BYTES)
        self._welcome = False
        self._unanswered = 0
        self._out: list[bytes] = []
        self._paused = False
        self._closing = False
        self._since = Stopwatch()
        self._progress = (0, 0)

    # --- the connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._incoming.transport = self._transport
        self._transport.set_write_buffer_limits(HIGH_BYTES, LOW_BYTES)
        opened = transport.get_extra_info("socket")
        if opened is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._dispatcher.closed:  # it was accepted just before, and would wait for ever
            self._closing = True
            self._transport.abort()
            return
        self._sessions.add(self)
        if len(self._sessions) > SESSIONS_MAX:
            self.refuse(RefusedError(Code.BUSY, f"{SESSIONS_MAX} connections are open already"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._sessions.discard(self)
        self._incoming.gone()
        for waiter in list(self.requester.waiters):
            waiter.cancel()
        self.requester.waiters.clear()

    def eof_received(self) -> bool:
        # A client that sends no more expects no answer either.
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self._closing:
            return  # the room is used again, nothing is kept
        self._inbox.filled(nbytes)
        self._go_on()

    def pause_writing(self) -> None:
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        for waiter in list(self.requester.waiters):
            waiter.look()
        self._go_on()
        if not self._paused and not self._closing:
            self._transport.resume_reading()

    def blocked(self) -> bool:
        """Whether the client does not read its answers."""
        return self._paused

    def sweep(self) -> None:
        """Close it if something was begun and makes no progress; called every few seconds."""
        flushed = self.sent_bytes - self._transport.get_write_buffer_size()
        progress = (self.received_bytes, flushed)
        if not self._welcome and not self._closing:
            if self._since.seconds() >= HELLO_SECONDS:
                self.refuse(RefusedError(Code.MALFORMED, "no Hello arrived in time"))
            return
        idle = self.sent_bytes == flushed and not self._inbox.waiting
        if progress != self._progress or idle:
            self._progress, self._since = progress, Stopwatch()
        elif self._since.seconds() >= STALLED_SECONDS:
            what = "reads no answers" if self.sent_bytes != flushed else "stopped in a message"
            text = "client %s %s: its connection is closed"
            self._log.say("stalled connections", text, self.peer, what)
            self._transport.abort()

    # --- messages -------------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            while not (self._paused or self._closing):
                body = self._inbox.take()
                if body is None:
                    return
                self._message(body)
        except ProtocolError as exc:
            self.refuse(RefusedError(Code.MALFORMED, exc.message), exc.fields.get("number", 0))
        except RefusedError as exc:
            self.refuse(exc)

    def _message(self, body: memoryview) -> None:
        size = len(body) + 4
        number, request = read_request(body)
        if number < 0:
            raise ProtocolError(f"{number} is not a valid request id")
        if not self._welcome:
            self._greet(number, request)
            return
        if isinstance(request, Hello):
            raise ProtocolError("a second Hello", number=number)
        if number == 0:
            self._dispatcher.take(self.requester, request, _nowhere)
            return
        if self._unanswered and self._unanswered + size > self._handshake.window_bytes:
            raise RefusedError(
                Code.TOO_LARGE,
                f"requests of {self._unanswered + size} bytes are unanswered; the window is"
                f" {self._handshake.window_bytes}",
            )
        if len(self.requester.waiters) >= WAITING_MAX:
            self._write(refusal_parts(RefusedError(Code.BUSY, "too many long polls"), number))
            return
        self._unanswered += size

        def answer(reply: Reply | RefusedError) -> None:
            self._unanswered -= size
            if isinstance(reply, RefusedError):
                self._write(refusal_parts(reply, number))
            else:
                self._write(reply_parts(reply, number))

        self._dispatcher.take(self.requester, request, answer)

    def _greet(self, number: int, request: Any) -> None:
        if not isinstance(request, Hello):
            raise ProtocolError("the first request is not a Hello")
        welcome = self._handshake.admit(request)
        self.peer += f" ({short(request.client)})" if request.client else ""
        self._welcome = True
        self._incoming.identified()
        self._inbox.limit = self._handshake.message_bytes_max
        self._since = Stopwatch()
        self._write(reply_parts(welcome, number))

    # --- answers --------------------------------------------------------------------------------

    def _write(self, parts: list[bytes]) -> None:
        if self._closing:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts
        if len(parts) > 1:
            self._flush()  # it is large: a slow client must be noticed at once

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self._transport.is_closing():
            return
        self.sent_bytes += sum(map(len, out))
        small: list[bytes] = []
        for part in out:
            if len(part) < _SMALL_BYTES:
                small.append(part)
                continue
            if small:
                self._transport.write(b"".join(small))
                small = []
            self._transport.write(part)
        if small:
            self._transport.write(b"".join(small))

    def refuse(self, refusal: RefusedError, number: int = 0) -> None:
        """Send the reason, and end the connection: later messages of the client are ignored."""
        if self._closing:
            return
        text = "client %s is refused: %s"
        self._log.say("refused connections", text, self.peer, refusal.message)
        self._dispatcher.refusals[refusal.code.name] += 1
        self._write(refusal_parts(refusal, number))
        self._flush()
        self._closing = True
        for waiter in list(self.requester.waiters):
            waiter.cancel()
        self.requester.waiters.clear()
        if self._paused:
            self._transport.abort()
        elif self._transport.can_write_eof():
            # If the socket were closed with unread bytes, the client would not get the refusal.
            self._transport.write_eof()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)
        else:
            self._transport.close()

    def close(self) -> None:
        """End the connection after all given answers were sent."""
        self._flush()
        self._closing = True
        self._transport.close()

    def abort(self) -> None:
        """End the connection now, even if answers were not sent yet."""
        self._closing = True
        self._transport.abort()


def _nowhere(_reply: Reply | RefusedError) -> None:
    """Takes the replies to requests that get no answer."""


def shown_peer(peer: Any) -> str:
    """An address of a socket, for people."""
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else str(peer)
