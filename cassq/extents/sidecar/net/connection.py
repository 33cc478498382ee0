"""One connection to a sidecar, on the client's side: a socket that never blocks.

Its life::

    connecting ──> securing (TLS) ──> greeting (Hello, Welcome) ──> ready ──> closed

Its user waits for the socket as `wants` says, then calls `step`.
"""

from __future__ import annotations

import enum
import errno
import os
import select
import socket
import ssl
from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from cassq.base.arguments import split_address
from cassq.base.clock import Stopwatch
from cassq.errors import BackendUnavailableError
from cassq.extents.protocol.inbox import Inbox
from cassq.extents.protocol.messages import VERSION, Code, Hello, RefusedError, Request, Welcome
from cassq.extents.protocol.wire import ProtocolError, read_reply, reply_of, request_parts

_PARTS_MAX = 64  # passed to the system at once
_TLS_BYTES_MAX = 64 * 1024  # encrypted at once
_BUFFER_BYTES = 1024 * 1024  # the system's send buffer
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# What to do about a refusal; the sidecar does not know how its client was configured.
_HINTS = {
    Code.TOKEN: "set the sidecars' token: sidecar_token= in the URL, or CASSQ_SIDECAR_TOKEN",
    Code.CLUSTER: "is this the right catalog? a sidecar's data directory belongs to only one",
    Code.VERSION: "run the same release of cassq on both sides",
}


class Access(NamedTuple):
    """A client's credentials for sidecars. tls: None for no TLS. client: its name in their logs."""

    token: str = ""
    tls: ssl.SSLContext | None = None
    client: str = ""

    def __repr__(self) -> str:
        """Never shows the token."""
        token, tls = "set" if self.token else "none", "on" if self.tls else "off"
        return f"Access(token {token}, tls {tls}, client={self.client!r})"


class Phase(enum.Enum):
    """The phase of a connection."""

    CONNECTING = "connecting"
    SECURING = "agreeing on TLS"
    GREETING = "waiting for its welcome"
    READY = "waiting for its answer"


# Why a sidecar may have ended a connection, by whether this side uses TLS.
_ENDED = {
    (False, Phase.GREETING): "is it running, and does it expect TLS?",
    (True, Phase.SECURING): "is it running, and does it use TLS?",
    (True, Phase.GREETING): "is it running, and does it ask for a certificate of the client?",
}


class Connection:
    """A connection that was begun. answers: by request number, those not yet taken.

    `step` raises everything that goes wrong, as BackendUnavailableError, or as RefusedError when
    the sidecar refused; the connection is unusable then.
    """

    def __init__(self, address: str, cluster: str, access: Access) -> None:
        """Begin to connect. Cost: a DNS lookup if the host is a name."""
        self.address = address
        self.phase: Phase = Phase.CONNECTING
        self.welcome: Welcome = Welcome(VERSION, "", "", "", 0, 0)
        self.answers: deque[tuple[int, list[Any] | RefusedError]] = deque()
        self.unanswered: dict[int, int] = {}
        self.unanswered_bytes: int = 0
        self.age: Stopwatch = Stopwatch()
        self._hello = Hello(VERSION, cluster, access.token, access.client)
        self._tls = access.tls
        self._inbox = Inbox()
        self._out: deque[memoryview] = deque()
        self._number = 0
        self._tls_reads = self._tls_writes = False  # TLS waits for the other direction
        try:
            # A host may have several addresses, and the sidecar listens at one of them.
            self._places = deque(
                socket.getaddrinfo(*host_and_port(address), type=socket.SOCK_STREAM)
            )
            self._socket = self._begin()
        except OSError as exc:
            raise self._broken(exc) from exc

    def _begin(self) -> socket.socket:
        family, kind, proto, _, place = self._places.popleft()
        opened = socket.socket(family, kind, proto)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
            code = opened.connect_ex(place)
        except BaseException:
            opened.close()
            raise
        if code not in (0, errno.EINPROGRESS):
            opened.close()
            if not self._places:
                raise OSError(code, os.strerror(code))
            return self._begin()
        return opened

    # --- waiting --------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    @property
    def wants(self) -> int:
        """The events to wait for: POLLIN, POLLOUT, or both."""
        if self.phase is Phase.CONNECTING or self._tls_writes:
            return select.POLLIN | select.POLLOUT
        if self._out and not self._tls_reads:
            return select.POLLIN | select.POLLOUT
        return select.POLLIN

    def step(self) -> None:
        """Do everything that needs no waiting."""
        try:
            if self.phase is Phase.CONNECTING:
                self._connected()
            if self.phase is Phase.SECURING:
                self._secured()
            self._exchange()
        except _LATER:
            return
        except OSError as exc:
            raise self._broken(exc) from exc
        except ProtocolError as exc:
            raise self._protocol_error(exc) from exc

    # --- requests -------------------------------------------------------------------------------

    def size(self, parts: list[bytes]) -> int:
        """The length of a message. Raises RefusedError over the sidecar's limit."""
        size = sum(map(len, parts))
        if size > self.welcome.message_bytes_max:
            raise RefusedError(
                Code.TOO_LARGE,
                f"a request has {size} bytes; sidecar {self.welcome.sidecar!r} accepts"
                f" {self.welcome.message_bytes_max}",
            )
        return size

    def next_parts(self, request: Request) -> list[bytes]:
        """A request as bytes, under the next number."""
        return request_parts(request, self._number + 1)

    def may_send(self, size: int) -> bool:
        """Whether the window has room for `size` more bytes."""
        if self.phase is not Phase.READY:
            return False
        return not self.unanswered or self.unanswered_bytes + size <= self.welcome.window_bytes

    def submit(self, parts: list[bytes], size: int) -> int:
        """Have the next steps send what `next_parts` returned; returns its number."""
        self._number += 1
        self.unanswered[self._number] = size
        self.unanswered_bytes += size
        self._out += map(memoryview, parts)
        return self._number

    def tell(self, request: Request) -> bool:
        """Send a request that gets no answer, if that needs no waiting. False: it failed, or only a
        part of it went out, so the connection is unusable."""
        self._out += map(memoryview, request_parts(request, 0))
        whole = len(self._out)
        size = sum(map(len, self._out))
        try:
            self._send()
        except _LATER:
            nothing = len(self._out) == whole and sum(map(len, self._out)) == size
            if nothing and not isinstance(self._socket, ssl.SSLSocket):
                self._out.clear()
                return True
        except OSError:
            return False
        return not self._out

    # --- its end --------------------------------------------------------------------------------

    @property
    def clean(self) -> bool:
        """Whether no request is in flight, so that it can be reused."""
        return self.phase is Phase.READY and not (
            self.unanswered or self._out or self.answers or self._inbox.waiting
        )

    def lives(self) -> bool:
        """Whether an idle connection is still usable, as far as this side knows: nothing arrived
        on it. Cost: a system call."""
        try:
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.recv(1)  # it may read tickets of the session, and then nothing
            else:
                self._socket.recv(1, socket.MSG_PEEK)
        except _LATER:
            return True
        except OSError:
            return False
        return False  # it was closed, or sent something unasked

    def close(self) -> None:
        """Close the socket without sending anything over it, so that a forked child does not
        disturb its parent's connection."""
        self._socket.close()

    # --- what a step does -----------------------------------------------------------------------

    def _connected(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code and self._places:
            self._socket.close()
            self._socket = self._begin()
            raise BlockingIOError
        if code:
            raise OSError(code, os.strerror(code))
        try:
            self._socket.getpeername()
        except OSError as exc:
            if exc.errno == errno.ENOTCONN:
                raise BlockingIOError from exc  # woken too early
            raise
        if self._tls is None:
            self._greet()
            return
        self._socket = self._tls.wrap_socket(
            self._socket,
            server_hostname=host_and_port(self.address)[0],
            do_handshake_on_connect=False,
        )
        self.phase = Phase.SECURING

    def _secured(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)
        self._tls_writes = False
        try:
            self._socket.do_handshake()
        except ssl.SSLWantWriteError:
            self._tls_writes = True
            raise
        self._greet()

    def _greet(self) -> None:
        self.phase = Phase.GREETING
        self._out += map(memoryview, request_parts(self._hello, 1))
        self._number = 1

    def _exchange(self) -> None:
        try:
            self._send()
        except (BrokenPipeError, ConnectionResetError):
            self._receive()  # it may have said why
            raise
        self._receive()

    def _send(self) -> None:
        if isinstance(self._socket, ssl.SSLSocket):
            self._send_encrypted(self._socket)
            return
        while self._out:
            sent = self._socket.sendmsg(list(islice(self._out, _PARTS_MAX)))
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.popleft())
            if sent:
                self._out[0] = self._out[0][sent:]

    def _send_encrypted(self, secure: ssl.SSLSocket) -> None:
        self._tls_reads = False
        while self._out:
            # The same bytes are passed again until they are taken: TLS requires that.
            piece = self._out[0][:_TLS_BYTES_MAX]
            try:
                sent = secure.send(piece)
            except ssl.SSLWantReadError:
                self._tls_reads = True
                return
            except ssl.SSLWantWriteError:
                return
            self._out[0] = self._out[0][sent:]
            if not self._out[0]:
                self._out.popleft()

    def _receive(self) -> None:
        self._tls_writes = False
        while True:
            room = self._inbox.room()
            try:
                count = self._socket.recv_into(room)
            except ssl.SSLWantWriteError:
                self._tls_writes = True
                raise
            if count == 0:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            self._inbox.filled(count)
            while (body := self._inbox.take()) is not None:
                self._arrived(*read_reply(body))
            if count < len(room) and not isinstance(self._socket, ssl.SSLSocket):
                return  # all there was

    def _arrived(self, number: int, answer: list[Any] | RefusedError) -> None:
        if isinstance(answer, RefusedError):
            answer.fields.setdefault("address", self.address)
            answer.hint = answer.hint or _HINTS.get(answer.code, "")
        if self.phase is Phase.GREETING:
            if isinstance(answer, RefusedError):
                raise answer
            self.welcome = reply_of(self._hello, answer)
            self.phase = Phase.READY
            return
        if number == 0 and isinstance(answer, RefusedError):
            raise answer  # this refuses the connection itself, which the sidecar closes
        size = self.unanswered.pop(number, None)
        if size is None:
            raise ProtocolError(f"it answers request {number}, which was not sent")
        self.unanswered_bytes -= size
        self.answers.append((number, answer))

    # --- what went wrong ------------------------------------------------------------------------

    def _broken(self, exc: OSError) -> BackendUnavailableError:
        hint = ""
        why = exc.strerror or str(exc)
        if isinstance(exc, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted: {exc.verify_message}"
            hint = "give its authority with sidecar_ca=, and use the host name in its certificate"
        elif isinstance(exc, ssl.SSLError):
            hint = "does it use TLS, and does it ask for a certificate of the client?"
        elif self.phase in (Phase.SECURING, Phase.GREETING):
            hint = _ENDED[self._tls is not None, self.phase]
        elif isinstance(exc, ConnectionRefusedError):
            hint = "is it running?"
        return BackendUnavailableError(
            f"the sidecar at {self.address}: {why}",
            hint=hint,
            outcome_unknown=bool(self.unanswered),
            address=self.address,
        )

    def _protocol_error(self, exc: ProtocolError) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"the server at {self.address} does not speak the sidecar protocol: {exc.message}",
            hint="does it expect TLS?" if self._tls is None else "",
            outcome_unknown=bool(self.unanswered),
            address=self.address,
        )


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT; a host of IPv6 may stand in brackets. Raises
    BackendUnavailableError for anything else."""
    parts = split_address(address)
    if parts is None:
        raise BackendUnavailableError(
            f"{address!r} is not the address of a sidecar", hint="write host:port", retryable=False
        )
    return parts
