"""The accepted connections, and those of them whose clients have not identified themselves."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from cassq.base.clock import Stopwatch


class Connections:
    """The open connections. unidentified: those whose client was not admitted yet, the oldest
    first. ended: how many have ended since memory was last returned."""

    def __init__(self) -> None:
        self.open: set[Incoming] = set()
        self.unidentified: dict[Incoming, None] = {}
        self.ended: int = 0


class Incoming:
    """A connection, from its accept to its end. transport: set once it is established.
    established: from then on the event loop owns its socket."""

    def __init__(self, connections: Connections, opened: socket.socket, peer: str) -> None:
        self.opened = opened
        self.peer: str = peer
        self.since: Stopwatch = Stopwatch()
        self.transport: asyncio.WriteTransport | None = None
        self.established: bool = False
        self.task: asyncio.Task[None] | None = None  # establishes it
        self._connections = connections
        connections.open.add(self)
        connections.unidentified[self] = None

    def identified(self) -> None:
        """Note that its client was admitted."""
        self._connections.unidentified.pop(self, None)

    def gone(self) -> None:
        """Note that it has ended."""
        self.identified()
        if self in self._connections.open:
            self._connections.open.remove(self)
            self._connections.ended += 1

    def end(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
        if self.task is not None:
            self.task.cancel()
        with contextlib.suppress(OSError):
            self.opened.shutdown(socket.SHUT_RDWR)
        self.gone()
