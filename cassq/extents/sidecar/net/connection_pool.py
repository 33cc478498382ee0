"""The connection pool: the Network over TCP and TLS, with non-blocking sockets and no threads.

Each exchange borrows a connection per sidecar, and returns it when all its requests are answered. A
connection with unanswered requests is closed, so a borrowed connection has none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from cassq.errors import BackendError, BackendUnavailableError
from cassq.extents.protocol.messages import Request
from cassq.extents.sidecar.net.addresses import Addresses
from cassq.extents.sidecar.net.connection import Access, Connection
from cassq.extents.sidecar.net.exchanges import Exchange, converse
from cassq.extents.sidecar.net.network import (
    CallResult,
    InFlightCall,
    Network,
    Patience,
    SidecarCall,
)
from cassq.model.sidecar_rows import SidecarRow

IDLE_MAX = 8  # connections kept to each sidecar
UNSENT_MAX = 1000  # calls of `tell` that wait for a connection


class ConnectionPool(Network):
    """Connections to the sidecars of one catalog. Thread-safe.

    rows: reads its sidecars, see `Sidecars.listed`; called only before a connection is opened.
    cluster: reads the catalog's identity, see `Records.identity`.
    """

    def __init__(
        self,
        rows: Callable[[], list[SidecarRow]],
        cluster: Callable[[], str],
        access: Access = Access(),  # noqa: B008 - it is immutable
    ) -> None:
        self._addresses = Addresses(rows)
        self._cluster = cluster
        self._access = access
        self._idle: dict[str, deque[Connection]] = {}
        self._unsent: dict[str, deque[tuple[str, Sequence[Request]]]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def exchange(self, calls: Sequence[SidecarCall], patience: Patience) -> list[CallResult]:
        begun = [self._begin(call) for call in calls]
        exchanges = [exchange for exchange in begun if isinstance(exchange, Exchange)]
        try:
            converse(exchanges, patience)
        finally:
            for call, exchange in zip(calls, begun, strict=True):
                if isinstance(exchange, Exchange):
                    self._give_back(call.sidecar, exchange.connection)
        return [
            exchange.answer() if isinstance(exchange, Exchange) else exchange for exchange in begun
        ]

    def begin(self, call: SidecarCall) -> InFlightCall | None:
        """Uses only an idle connection: to open one takes several steps, under a deadline."""
        connection = self._idle_connection(call.sidecar)
        if connection is None:
            return None
        exchange = Exchange(call, connection)
        exchange.step()
        return _InFlightCall(exchange, partial(self._give_back, call.sidecar))

    def tell(self, sidecar: str, generation: str, requests: Sequence[Request]) -> None:
        connection = self._idle_connection(sidecar)
        if connection is None:
            # Sent when a connection is returned: readers wait for the end that the last append
            # before a pause publishes.
            with self._lock:
                unsent = self._unsent.setdefault(sidecar, deque(maxlen=UNSENT_MAX))
                unsent.append((generation, requests))
        elif _tell(connection, generation, requests):
            self._give_back(sidecar, connection)
        else:
            connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
        for connection in idle:
            connection.close()

    # --- borrowing ------------------------------------------------------------------------------

    def _begin(self, call: SidecarCall) -> Exchange | CallResult:
        try:
            connection = self._idle_connection(call.sidecar)
            if connection is None:
                connection = self._open(self._addresses.of(call.sidecar))
        except BackendError as exc:
            return CallResult(call.sidecar, [], exc)
        return Exchange(call, connection, partial(self._reconnected, call.sidecar))

    def _open(self, address: str) -> Connection:
        return Connection(address, self._cluster(), self._access)

    def _reconnected(self, sidecar: str, broken: Connection, another: bool) -> Connection:
        """A connection to replace one that broke; all idle ones have broken with it."""
        with self._lock:
            idle = self._idle.pop(sidecar, deque())
        for connection in idle:
            connection.close()
        address = self._addresses.of(sidecar, failed=True)
        if address == broken.address and (another or not broken.welcome.sidecar):
            raise BackendUnavailableError(f"no other address of sidecar {sidecar!r} is known")
        return self._open(address)

    def _idle_connection(self, sidecar: str) -> Connection | None:
        """An idle connection that seems to live, the most recently used first."""
        while True:
            with self._lock:
                idle = self._idle.get(sidecar)
                if not idle:
                    return None
                connection = idle.pop()
            if connection.lives():
                return connection
            connection.close()

    def _give_back(self, sidecar: str, connection: Connection | None) -> None:
        if connection is None:
            return
        while connection.clean:
            with self._lock:
                unsent = self._unsent.pop(sidecar, None)
                idle = self._idle.setdefault(sidecar, deque())
                if not unsent:
                    if self._closed or len(idle) >= IDLE_MAX:
                        break
                    idle.append(connection)
                    return
            if not all(_tell(connection, generation, requests) for generation, requests in unsent):
                break
        connection.close()


class _InFlightCall(InFlightCall):
    """An exchange that advances whenever its caller looks. give_back: returns the connection at the
    end."""

    def __init__(self, exchange: Exchange, give_back: Callable[[Connection | None], None]) -> None:
        self._exchange = exchange
        self._give_back = give_back

    def go_on(self) -> None:
        if not self._exchange.done:
            self._exchange.step()

    def end(self, patience: Patience) -> CallResult:
        try:
            if not self._exchange.done:
                converse([self._exchange], patience)
        finally:
            self._give_back(self._exchange.connection)
        return self._exchange.answer()

    def drop(self) -> None:
        # Answers still to come would be taken for answers to the connection's next user.
        self._give_back(self._exchange.connection)


def _tell(connection: Connection, generation: str, requests: Sequence[Request]) -> bool:
    """Send requests without an answer; False when the connection is no longer usable."""
    if generation and connection.welcome.generation != generation:
        return True  # these are for a data directory that is gone
    return all(connection.tell(request) for request in requests)
