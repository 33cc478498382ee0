"""Prefetch: the next slice of an extent is requested while the present one is used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakSet

from cassq.errors import BackendTimeoutError
from cassq.extents.protocol.messages import Read
from cassq.extents.sidecar.net.network import CallResult, InFlightCall, Patience
from cassq.extents.sidecar.store_context import StoreContext, call_of
from cassq.model.sidecar_rows import ReplicaAt

# Of all readers of a store together.
AHEAD_BYTES_MAX = 32 * 1024 * 1024
# A reader that needs longer than this for a slice does not prefetch; and sidecars do not keep
# answers for ever.
AHEAD_MS = 2000


class PrefetchBudget:
    """All prefetching readers of one store, to bound their total. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._some: WeakSet[ReadAhead] = WeakSet()

    def admits(self, one: ReadAhead, size: int) -> bool:
        """Whether there is room for `size` more bytes."""
        with self._lock:
            self._some.add(one)
            return size + sum(each.size for each in self._some) <= AHEAD_BYTES_MAX


class _Prefetch(NamedTuple):
    """A requested slice, and the replica that was asked."""

    replica: ReplicaAt
    request: Read
    answer: InFlightCall


class ReadAhead:
    """The prefetch of one reader: at most one slice.

    Memory: the slice, here or on its way, at most `bytes_max` of its request, or one frame if
    that is longer. A slice that is not taken is dropped with its connection. Failures are not
    reported: the reader just asks again.
    """

    def __init__(self, context: StoreContext, others: PrefetchBudget) -> None:
        self._context = context
        self._others = others
        self._under_way: _Prefetch | None = None

    @property
    def size(self) -> int:
        """How many bytes may be under way."""
        under_way = self._under_way
        return 0 if under_way is None else under_way.request.bytes_max

    def begin(self, replica: ReplicaAt, request: Read) -> None:
        """Ask a replica for the next slice, if there is room and an idle connection."""
        self.drop()
        if not self._others.admits(self, request.bytes_max):
            return
        begun = self._context.network.begin(call_of(replica, [request]))
        if begun is not None:
            self._under_way = _Prefetch(replica, request, begun)

    def go_on(self) -> None:
        """Receive what has arrived. Cost: a system call while something is under way."""
        if self._under_way is not None:
            self._under_way.answer.go_on()

    def taken(
        self, replicas: Sequence[ReplicaAt], seq: int, seconds: float
    ) -> list[CallResult] | None:
        """The prefetched slice from `seq` on, if exactly this replica was asked for it; else None.
        In both cases nothing is in flight afterwards."""
        under_way = self._under_way
        if under_way is None:
            return None
        if [under_way.replica] != list(replicas) or under_way.request.seq != seq:
            self.drop()
            return None
        self._under_way = None
        answer = under_way.answer.end(Patience(seconds, 0.0, 1))
        if answer.done or isinstance(answer.error, BackendTimeoutError):
            return [answer]
        return None

    def drop(self) -> None:
        """Give the slice up."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.answer.drop()
