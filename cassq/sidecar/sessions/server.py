"""The server: listens, accepts connections, and closes those that are too slow."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from cassq.base.rare_log import RareLog
from cassq.errors import ConfigError
from cassq.extents.sidecar.net.connection import host_and_port
from cassq.sidecar.sessions.acceptor import UNIDENTIFIED_MAX, Acceptor
from cassq.sidecar.sessions.connection import LINGER_SECONDS, SESSIONS_MAX, ServerConnection
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.handshake import Handshake

SWEEP_SECONDS = 5.0
BACKLOG = 512
CONNECTIONS_MAX = SESSIONS_MAX + UNIDENTIFIED_MAX


class Server:
    """Serves connections to one address. connections_max: how many at once, including those that
    are being refused."""

    def __init__(
        self,
        handshake: Handshake,
        dispatcher: Dispatcher,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self.sessions: set[ServerConnection] = set()
        self.log: RareLog = RareLog()
        self._handshake = handshake
        self.acceptor: Acceptor = Acceptor(
            lambda incoming: ServerConnection(
                self._handshake, dispatcher, self.sessions, incoming, self.log
            ),
            self.log,
            connections_max,
        )
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, address: str) -> str:
        """Start to listen; return the actual host:port (a port of 0 means any free one). Raises
        ConfigError if this address cannot be used."""
        host, port = host_and_port(address)
        try:
            sockets = await _listening(host, port)
        except OSError as exc:
            taken = exc.errno == errno.EADDRINUSE
            raise ConfigError(
                f"the sidecar cannot listen at {address}: {exc.strerror or exc}",
                hint="another sidecar may be running there: choose another port with --listen"
                if taken
                else "--listen needs an address of this machine, and a port that you may use",
            ) from exc
        self.acceptor.open(sockets)
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
        bound = sockets[0].getsockname()[1]
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    def renew(self, tokens: tuple[str, ...], tls: ssl.SSLContext | None) -> None:
        """Demand one of these tokens, and use this TLS, for connections from now on."""
        self._handshake = self._handshake._replace(tokens=tokens)
        self.acceptor.tls = tls

    async def close(self) -> None:
        """Stop accepting, and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.acceptor.close()
        for session in list(self.sessions):
            session.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        for session in list(self.sessions):
            session.abort()

    def _sweep(self) -> None:
        for session in list(self.sessions):
            session.sweep()
        self.acceptor.sweep()
        self.log.flush()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)


async def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at those addresses of a host that belong to this machine."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, place in dict.fromkeys((each[0], each[4]) for each in places):
            try:
                each = socket.create_server(place, family=family, backlog=BACKLOG)
            except OSError as exc:
                if exc.errno != errno.EADDRNOTAVAIL or len(places) == 1:
                    raise
                continue
            each.setblocking(False)
            opened.append(each)
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, "the host has no address of this machine")
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened
