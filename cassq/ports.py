"""The ports put together: what everything above them gets as one argument."""

from __future__ import annotations

from typing import Any, NamedTuple

from cassq.catalog.port import Catalog
from cassq.clock import Clock
from cassq.errors import ClosedError, ForkedClientError
from cassq.extents.port import ExtentStore
from cassq.ids import Ids
from cassq.locks.port import Locker
from cassq.requests import Requests
from cassq.sharing import Sharing


class Life:
    """Whether a client can still be used. Looked at before any of its locks is taken: after a
    fork a lock may be held by a thread that does not exist in the child."""

    __slots__ = ("closed", "forked")

    def __init__(self) -> None:
        self.closed = False
        self.forked = False

    def check(self) -> None:
        if self.forked:
            raise ForkedClientError()
        if self.closed:
            raise ClosedError()


class Ports(NamedTuple):
    """One client's backends."""

    catalog: Catalog
    store: ExtentStore
    locker: Locker
    clock: Clock
    ids: Ids
    life: Life
    # How poppers of this client claim together; None where a claim is no round trip.
    sharing: Sharing[Any, Any, Any] | None = None
    # What became of requests to servers; None where there are none.
    requests: Requests | None = None
