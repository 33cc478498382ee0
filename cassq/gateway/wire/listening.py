"""Listening: accepts connections, sweeps through them, and ends them.

A connection is counted when it is accepted, before TLS. Connections beyond the limit get 503, a few
at a time, so that a client learns why; further ones are closed at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from email.utils import formatdate
from typing import Any

from cassq.base.clock import Clock
from cassq.base.rare_log import RareLog
from cassq.gateway.wire.http import (
    BODIES_BYTES_MAX,
    SLOW_SECONDS,
    HttpConnection,
    HttpRequest,
    Reply,
    Undelivered,
)

logger: logging.Logger = logging.getLogger("cassq")

CONNECTIONS_MAX = 16_384
REFUSALS_MAX = 64
BACKLOG = 1024
SWEEP_SECONDS = 1.0
PAUSE_SECONDS = 0.05
CROWDED = 0.75  # the share of the maximum of connections above which the listener is crowded


class Listener:
    """Accepts connections at listening sockets. answer: answers requests. tls: for new connections;
    None: no TLS. body_bytes_max: see `ConnectionHost`. each_second: called about once per
    second."""

    def __init__(
        self,
        answer: Callable[[HttpRequest], Coroutine[Any, Any, Reply]],
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
        connections_max: int = CONNECTIONS_MAX,
        body_bytes_max: int = BODIES_BYTES_MAX,
        each_second: Callable[[], object] = lambda: None,
    ) -> None:
        self.answer: Callable[[HttpRequest], Coroutine[Any, Any, Reply]] = answer
        self.tls: ssl.SSLContext | None = tls
        self.date: bytes = b""
        self.closing: bool = False
        self.refused: int = 0
        self.body_bytes: int = 0
        self.body_bytes_max: int = body_bytes_max
        self.log: RareLog = RareLog()
        self._clock = clock
        self._most = connections_max
        self._each_second = each_second
        self._count = 0  # accepted, including those in the TLS handshake
        self._open: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: list[asyncio.Task[None]] = []
        self._sockets: Sequence[socket.socket] = ()
        self._sweeper: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return self._count

    @property
    def requests(self) -> int:
        """How many requests are being answered. Cost: checks each connection."""
        return sum(each.is_answering for each in self._open)

    # --- for connections --------------------------------------------------------------------------

    def opened(self, connection: HttpConnection) -> None:
        """See `ConnectionHost`."""
        self._open.add(connection)

    def lost(self, connection: HttpConnection) -> None:
        """See `ConnectionHost`."""
        self._open.discard(connection)
        self._gone()

    def _gone(self) -> None:
        self._count -= 1
        if not self._count:
            self._empty.set()

    def undelivered(self, give_back: Undelivered) -> None:
        """See `ConnectionHost`."""
        self._begin(self._given_back(give_back))

    def body_refused(self) -> None:
        """See `ConnectionHost`."""
        text = "requests with large bodies get 503: those that are in hand have %s MB"
        self.log.say("large bodies", text, self.body_bytes // 1_000_000)

    async def _given_back(self, give_back: Undelivered) -> None:
        try:
            await give_back()
        except Exception as exc:  # the store fails, or a defect: it comes again by itself
            text = "what a client did not get comes again when its visibility timeout ends: %s"
            self.log.say("answers that were not given back", text, exc)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- accepting --------------------------------------------------------------------------------

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to accept. sockets: listening already; `stop` closes them."""
        self._sockets = sockets
        self._sweep()
        for each in sockets:
            each.setblocking(False)
            self._accepting.append(self._begin(self._accept(each)))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, place = await loop.sock_accept(listening)
            except OSError as exc:  # too many open files, or the client has gone already
                self.log.say("accepting", "no connection can be accepted: %s", exc)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            refusing = self._count >= self._most
            if refusing:
                self.refused += 1
                text = "client %s is refused: %s connections are open already"
                self.log.say("refused connections", text, _peer(place), self._most)
            if self._count >= self._most + REFUSALS_MAX:
                opened.close()
            else:
                self._count += 1
                self._begin(self._establish(opened, _peer(place), refusing=refusing))
            await asyncio.sleep(0)  # else a series of waiting connections lets nothing else run

    async def _establish(self, opened: socket.socket, peer: str, *, refusing: bool) -> None:
        made: list[HttpConnection] = []

        def make() -> HttpConnection:
            made.append(HttpConnection(self, refusing=refusing))
            return made[0]

        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                make,
                opened,
                ssl=self.tls,
                ssl_handshake_timeout=SLOW_SECONDS if self.tls is not None else None,
            )
        except OSError as exc:
            what = "the TLS handshake with" if self.tls is not None else "the connection of"
            why = str(exc) or type(exc).__name__
            self.log.say("failed handshakes", f"{what} %s failed: %s", peer, why)
        finally:
            if not (made and made[0].was_made):
                opened.close()
                self._gone()

    # --- time -------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        self.date = b"Date: %b\r\n" % formatdate(self._clock.wall_ms() / 1000, usegmt=True).encode()
        now, crowded = loop.time(), self._count > self._most * CROWDED
        for each in list(self._open):
            each.sweep(now, crowded=crowded)
        self.log.flush()
        self._each_second()

    # --- the end ----------------------------------------------------------------------------------

    async def stop(self, grace: float) -> bool:
        """Accept no more connections, answer the present requests, and close all connections.
        grace: how many seconds that may take. Returns whether all requests were answered."""
        self.closing = True
        for task in self._accepting:
            task.cancel()
        for each in self._sockets:
            each.close()
        for connection in list(self._open):
            connection.drain()
        try:
            async with asyncio.timeout(grace):
                while self._count:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            logger.debug("requests are still being answered")
        well = not self._count
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._sweeper is not None:
            self._sweeper.cancel()
        return well


def _peer(place: Any) -> str:
    """A client's address, for the log."""
    return f"{place[0]}:{place[1]}" if isinstance(place, tuple) else "(unnamed)"


def listening_sockets(host: str, port: int, count: int) -> list[list[socket.socket]]:
    """For each of `count` processes, sockets that listen at all addresses of a host. The system
    spreads connections over them. port: 0 for any free one. Raises OSError."""
    found: list[list[socket.socket]] = []
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    families = dict.fromkeys((each[0], each[4]) for each in places)
    try:
        for _ in range(count):
            found.append([])
            for family, place in families:
                address = (place[0], port, *place[2:])
                each = socket.create_server(
                    address, family=family, backlog=BACKLOG, reuse_port=True
                )
                found[-1].append(each)
                port = each.getsockname()[1]
    except BaseException:
        for sockets in found:
            for each in sockets:
                each.close()
        raise
    return found
