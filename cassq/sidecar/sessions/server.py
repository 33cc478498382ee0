"""The server: listens, accepts connections, and closes those that are too slow."""

from __future__ import annotations

import asyncio
import errno
import ssl

from cassq.errors import ConfigError
from cassq.extents.sidecar.net.connection import host_and_port
from cassq.sidecar.sessions.connection import HELLO_SECONDS, LINGER_SECONDS, ServerConnection
from cassq.sidecar.sessions.dispatcher import Dispatcher
from cassq.sidecar.sessions.handshake import Handshake

SWEEP_SECONDS = 5.0
BACKLOG = 512


class Server:
    """Connections to one address."""

    def __init__(self, handshake: Handshake, dispatcher: Dispatcher) -> None:
        self.sessions: set[ServerConnection] = set()
        self._handshake = handshake
        self._dispatcher = dispatcher
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def listen(self, address: str, tls: ssl.SSLContext | None) -> str:
        """Start to listen; return the actual host:port (a port of 0 means any free one). Raises
        ConfigError if this address cannot be used."""
        host, port = host_and_port(address)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: ServerConnection(self._handshake, self._dispatcher, self.sessions),
                host,
                port,
                ssl=tls,
                backlog=BACKLOG,
                reuse_address=True,
                ssl_handshake_timeout=HELLO_SECONDS if tls is not None else None,
            )
        except OSError as exc:
            taken = exc.errno == errno.EADDRINUSE
            raise ConfigError(
                f"the sidecar cannot listen at {address}: {exc.strerror or exc}",
                hint="is another sidecar running there? choose another port with --listen"
                if taken
                else "--listen needs an address of this machine, and a port that you may use",
            ) from exc
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        bound = self._server.sockets[0].getsockname()[1]
        return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"

    async def close(self) -> None:
        """Stop accepting, and close all connections."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions):
            session.close()
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._abort)

    def _abort(self) -> None:
        for session in list(self.sessions):
            session.abort()

    def _sweep(self) -> None:
        for session in list(self.sessions):
            session.sweep()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)
