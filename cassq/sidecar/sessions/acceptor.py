"""Accepting connections: each is counted before anything is spent on it.

Invariants:

1. Each connection is counted when it is accepted, before TLS; there are at most `connections_max`.
2. At most UNIDENTIFIED_MAX, or half of `connections_max`, have not identified themselves. Another
   is admitted only after the oldest of these was closed, so silent clients do not keep others out
   for long.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from cassq.base.clock import Stopwatch
from cassq.base.rare_log import RareLog
from cassq.sidecar.memory import return_memory
from cassq.sidecar.sessions.connection import HELLO_SECONDS, ServerConnection, shown_peer
from cassq.sidecar.sessions.incoming import Connections, Incoming

UNIDENTIFIED_MAX = 256
UNIDENTIFIED_SECONDS = 1.0  # that each of them gets at least, even if others wait
MANY = 64  # ended connections after which memory is returned at once
CALM_SECONDS = 60.0  # after this time it is returned after fewer, too
PAUSE_SECONDS = 0.05


class Acceptor:
    """Accepts connections at some sockets. make: makes a session of an accepted connection. tls:
    for connections from now on; None: without TLS. connections_max: how many at once."""

    def __init__(
        self, make: Callable[[Incoming], ServerConnection], log: RareLog, connections_max: int
    ) -> None:
        self.tls: ssl.SSLContext | None = None
        self.connections_max: int = connections_max
        self.connections: Connections = Connections()
        self._make = make
        self._log = log
        self._returned = Stopwatch()
        self._tasks: list[asyncio.Task[None]] = []
        self._sockets: Sequence[socket.socket] = ()

    def open(self, sockets: Sequence[socket.socket]) -> None:
        """Begin to accept."""
        self._sockets = sockets
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._accept(each)) for each in sockets]

    def close(self) -> None:
        """Accept nothing more, and end what has not become a session."""
        for task in self._tasks:
            task.cancel()
        for each in self._sockets:
            each.close()
        for incoming in list(self.connections.open):
            if incoming.transport is None:
                incoming.end()

    def sweep(self) -> None:
        """Return memory that ended connections needed; called every few seconds."""
        if self.connections.ended >= (1 if self._returned.seconds() >= CALM_SECONDS else MANY):
            self.connections.ended, self._returned = 0, Stopwatch()
            return_memory()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                opened, place = await loop.sock_accept(listening)
            except OSError as exc:
                self._log.say("accepting", "no connection can be accepted: %s", exc)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            peer = shown_peer(place)
            if len(self.connections.open) >= self.connections_max:
                opened.close()
                text = "client %s is refused: %s connections are open already"
                self._log.say("refused connections", text, peer, self.connections_max)
                await asyncio.sleep(0)
                continue
            await self._room()
            self._admit(opened, peer)
            await asyncio.sleep(0)  # accepting may not block: without this, nothing else would run

    async def _room(self) -> None:
        """Wait until there is room for another."""
        unidentified = self.connections.unidentified
        while len(unidentified) >= min(UNIDENTIFIED_MAX, self.connections_max // 2 or 1):
            oldest = next(iter(unidentified))
            if oldest.since.seconds() < UNIDENTIFIED_SECONDS:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            oldest.end()
            text = "client %s said nothing while others waited: its connection is closed"
            self._log.say("connections closed to make room", text, oldest.peer)

    def _admit(self, opened: socket.socket, peer: str) -> None:
        incoming = Incoming(self.connections, opened, peer)
        incoming.task = asyncio.get_running_loop().create_task(self._establish(incoming))

        def over(_task: Any) -> None:
            if not incoming.established:
                opened.close()
                incoming.gone()

        incoming.task.add_done_callback(over)

    async def _establish(self, incoming: Incoming) -> None:
        incoming.established = True
        tls = self.tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._make(incoming),
                incoming.opened,
                ssl=tls,
                ssl_handshake_timeout=HELLO_SECONDS if tls is not None else None,
            )
        except OSError as exc:
            incoming.gone()
            what = "the TLS handshake with" if tls is not None else "the connection of"
            why = str(exc) or type(exc).__name__
            self._log.say("failed handshakes", f"{what} %s failed: %s", incoming.peer, why)
        except asyncio.CancelledError:
            incoming.gone()
            raise
