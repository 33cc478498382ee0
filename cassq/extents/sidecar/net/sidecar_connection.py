"""Requests to one sidecar over a separate connection: for tools, and between sidecars."""

from __future__ import annotations

from typing import Any

from cassq.extents.protocol.messages import Request
from cassq.extents.sidecar.net.connection import Access, Connection
from cassq.extents.sidecar.net.exchanges import Exchange, converse
from cassq.extents.sidecar.net.network import Patience, SidecarCall

ASK_SECONDS = 10.0


class SidecarConnection:
    """A connection to one sidecar, for one request at a time; opened by the first. Not thread-safe.
    Use it in a `with`, or close it.

    cluster: the catalog's identity, "" when not known.
    """

    def __init__(
        self,
        address: str,
        access: Access = Access(),  # noqa: B008 - it is immutable
        *,
        cluster: str = "",
        seconds: float = ASK_SECONDS,
    ) -> None:
        self._address = address
        self._access = access
        self._cluster = cluster
        self._patience = Patience(seconds, seconds, 1)
        self._connection: Connection | None = None

    def __call__(self, request: Request) -> Any:
        """The reply. Raises RefusedError, BackendUnavailableError or BackendTimeoutError."""
        connection, self._connection = self._connection, None
        if connection is None:
            connection = Connection(self._address, self._cluster, self._access)
        exchange = Exchange(SidecarCall("", "", [request]), connection)
        converse([exchange], self._patience)
        answer = exchange.answer()
        if exchange.connection is not None and exchange.connection.clean:
            self._connection = exchange.connection
        elif exchange.connection is not None:
            exchange.connection.close()
        if answer.error is not None:
            raise answer.error
        return answer.replies[0]

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> SidecarConnection:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def ask(
    address: str,
    request: Request,
    access: Access = Access(),  # noqa: B008 - it is immutable
    *,
    cluster: str = "",
    seconds: float = ASK_SECONDS,
) -> Any:
    """The reply to one request. Raises as `SidecarConnection`."""
    with SidecarConnection(address, access, cluster=cluster, seconds=seconds) as connection:
        return connection(request)
