"""The published end of an extent as one process knows it, refreshed for all its readers at once."""

from __future__ import annotations

import threading
from weakref import WeakValueDictionary

from cassandra.cluster import ResponseFuture

from cassq.base.clock import Stopwatch
from cassq.cassandra.session import Cql, Row
from cassq.errors import BackendError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.marks import RepeatedRead, marks_of
from cassq.extents.cassandra.places import end_at
from cassq.message.frames import Place

# Up to the first age an end is fresh enough; up to the second it is refreshed in the background;
# beyond that, callers wait for a read.
FRESH_SECONDS, STALE_SECONDS = 0.004, 0.03


class PolledEnd:
    """The last known acknowledged end of one extent. Thread-safe."""

    def __init__(self, cql: Cql, extent: str) -> None:
        self._cql = cql
        self._values = (extent,)
        self._look = RepeatedRead(cql, statements.READ_MARKS, self._values, self._note)
        self._lock = threading.Lock()
        self._asked: tuple[ResponseFuture, Stopwatch] | None = None
        self.end: Place = Place(0, 0)

    def learn(self, end: Place) -> None:
        """Note that the end is here, or further on."""
        with self._lock:
            self.end = max(self.end, end)

    def ask(self) -> bool:
        """Ask for the end, if the last known one is stale, without waiting: `newest` waits. Returns
        whether it was asked for now."""
        with self._lock:
            if self._asked is not None or self._look.age() < STALE_SECONDS:
                return False
            bound = self._cql.bound(statements.READ_MARKS, self._values)
            self._asked = (self._cql.send(bound), Stopwatch())
            return True

    def newest(self) -> Place:
        """The end. Cost: none, a wait for an earlier request, or a read."""
        asked = self._asked
        if asked is not None:
            self._wait(asked)
        elif (age := self._look.age()) >= STALE_SECONDS:
            self._look.now()
        elif age >= FRESH_SECONDS:
            self._look.soon()
        return self.end

    def renewed(self) -> Place:
        """The end as last known; a newer one is asked for in the background."""
        if self._look.age() >= FRESH_SECONDS:
            self._look.soon()
        return self.end

    def _wait(self, asked: tuple[ResponseFuture, Stopwatch]) -> None:
        future, watch = asked
        try:
            self._note(self._cql.result(future))
        except BackendError as exc:
            if not exc.retryable:
                raise
            self._look.now()
        else:
            self._look.looked(watch)
        finally:
            with self._lock:
                if self._asked is asked:
                    self._asked = None

    def _note(self, rows: list[Row]) -> None:
        self.learn(end_at(marks_of(rows).acked))


class PolledEnds:
    """The published ends of the extents that are being read."""

    def __init__(self, cql: Cql) -> None:
        self._cql = cql
        self._lock = threading.Lock()
        self._known: WeakValueDictionary[str, PolledEnd] = WeakValueDictionary()

    def of(self, extent: str) -> PolledEnd:
        with self._lock:
            found = self._known.get(extent)
            if found is None:
                found = self._known[extent] = PolledEnd(self._cql, extent)
            return found
