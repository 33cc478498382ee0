"""Connecting to a cluster within a call's patience, however many of its servers are silent.

The driver tries the servers of a URL one after another, each for its `connect_timeout`, and then
opens connections to all servers, two at a time; it has no limit for all of this together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cassandra import OperationTimedOut
from cassandra.cluster import Cluster, Session

# With less, a server that answers could not complete the handshake, in which it checks a password.
SHARE_SECONDS_MIN = 0.25
# With less left of its patience, a call sends nothing more.
LEFT_SECONDS_MIN = 0.02


class ConnectBudget:
    """How long servers may hold up the opening of a session: `seconds` for all of them together.

    Each gets a share of what is left, so that those after a silent one are tried too. A server that
    was silent is not tried again until the session is open. Nothing is locked: if two threads count
    at once, a share is a little larger.
    """

    def __init__(self, seconds: float, now_ms: Callable[[], int]) -> None:
        self._seconds = seconds
        self._now_ms = now_ms
        self._until_ms: int | None = None  # None: no session is being opened
        self._untried = 0
        self._silent: set[object] = set()

    def begin(self, servers: int) -> None:
        """Begin to open a session. servers: how many there are to ask."""
        self._until_ms = self._now_ms() + round(self._seconds * 1000)
        self._untried = servers
        self._silent.clear()

    def end(self) -> None:
        """Note that the session is open, or cannot be opened."""
        self._until_ms = None

    def share(self, server: object, *, known: bool) -> float | None:
        """How many seconds there are to connect to a server; None: no session is being opened.

        known: another server has answered, and listed all of them. Raises the driver's
        OperationTimedOut if this one was silent, or no time is left.
        """
        until_ms = self._until_ms  # read once, as another thread may end it
        if until_ms is None:
            return None
        left = (until_ms - self._now_ms()) / 1000
        if server in self._silent or (left < LEFT_SECONDS_MIN and not known):
            raise OperationTimedOut("no time is left to connect to it")
        if known:
            return max(left / 2, SHARE_SECONDS_MIN)  # there may be others after it
        part = left / max(self._untried, 1)
        self._untried -= 1
        return min(left, max(part, SHARE_SECONDS_MIN))

    def was_silent(self, server: object) -> None:
        """Note a server that did not answer in its time."""
        if self._until_ms is not None:
            self._silent.add(server)


class _Trying(threading.local):
    """The connection that a thread opens. seconds: its share; None: it has no share."""

    seconds: float | None = None


class PatientCluster(Cluster):  # type: ignore[misc]  # the driver has no types
    """The driver's cluster, which opens its session within a budget."""

    def __init__(self, *args: Any, budget: ConnectBudget, **kwargs: Any) -> None:
        self._budget = budget
        self._trying = _Trying()
        super().__init__(*args, **kwargs)

    @property
    def connect_timeout(self) -> float:
        """How many seconds a connection may take to open. The driver reads it for each connection,
        and once for all attempts to reconnect to a server that is down."""
        share = self._trying.seconds
        return self._connect_timeout if share is None else min(share, self._connect_timeout)

    @connect_timeout.setter
    def connect_timeout(self, seconds: float) -> None:
        self._connect_timeout = seconds

    def connect(self, *args: Any, **kwargs: Any) -> Session:
        """Open a session. Raises the driver's errors."""
        self._budget.begin(len(self.endpoints_resolved))
        try:
            return super().connect(*args, **kwargs)
        finally:
            self._budget.end()

    def connection_factory(self, endpoint: Any, *args: Any, **kwargs: Any) -> Any:
        """The driver's call for each connection that it opens to a server that may be up."""
        known = not kwargs.get("is_control_connection")
        self._trying.seconds = self._budget.share(endpoint, known=known)
        try:
            return super().connection_factory(endpoint, *args, **kwargs)
        except OperationTimedOut:
            self._budget.was_silent(endpoint)
            raise
        finally:
            self._trying.seconds = None
