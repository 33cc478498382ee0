"""A place that is opened late: what a client works with that was started while no server answered.

Every verb of its ports raises BackendUnavailableError until somebody has opened it, but for those
that need no server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from cassq.base.clock import Clock
from cassq.base.counters import Requests
from cassq.base.ids import Ids
from cassq.client.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.errors import BackendUnavailableError
from cassq.lifecycle.ports import Life, Ports


class LatePlace:
    """really: opens it, to count its requests there; raises BackendError while no server
    answers."""

    def __init__(self, really: Callable[[Requests], Embedded], clock: Clock, why: str) -> None:
        self._really = really
        self._opening = threading.Lock()
        self._opened: Embedded | None = None
        self._closed = False
        self._why = why
        self._requests = Requests()
        parts = [cast(Any, _Part(self, name, clock)) for name in ("catalog", "store", "locker")]
        catalog, store, locker = parts
        self.embedded: Embedded = Embedded(
            Ports(catalog, store, locker, clock, Ids(), Life(), requests=self._requests),
            lambda _queue_id: PollingDoorbell(),
            self._abandon,
        )

    def open(self) -> None:
        """Open it, unless it is open. Raises BackendError when no server answers."""
        with self._opening:
            if self._opened is None and not self._closed:
                self._opened = self._really(self._requests)

    def ports(self) -> Ports | None:
        """The ports, if it is open."""
        return None if self._opened is None else self._opened.ports

    def unavailable(self) -> BackendUnavailableError:
        """What whoever uses it too early is told."""
        return BackendUnavailableError(self._why, hint="it is tried again and again")

    def close(self) -> None:
        """It is not to be opened any more."""
        with self._opening:
            self._closed = True

    def _abandon(self) -> object:
        return None if self._opened is None else self._opened.abandon()


class _Part:
    """One of the ports."""

    def __init__(self, place: LatePlace, name: str, clock: Clock) -> None:
        self._place = place
        self._name = name
        self._clock = clock

    def __getattr__(self, verb: str) -> Any:
        ports = self._place.ports()
        if ports is not None:
            return getattr(getattr(ports, self._name), verb)
        if verb == "now_ms":
            return self._clock.wall_ms  # as near as can be known
        if verb == "close":
            return self._place.close
        if verb in ("seals_exactly", "upkeep"):
            raise self._place.unavailable()

        def called(*args: Any, **named: Any) -> Any:
            ports = self._place.ports()
            if ports is None:
                raise self._place.unavailable()
            return getattr(getattr(ports, self._name), verb)(*args, **named)

        return called
