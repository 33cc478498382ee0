"""A place of queues that was offline when its client started: no server has answered yet.

Until it is open a client can push to the queues that its spool knows, by the clock of its machine.
Everything else needs the ports of the place, and raises the error of `Offline.opened`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NoReturn

from cassq.base.counters import Requests
from cassq.client.embedded import Embedded
from cassq.doorbell import Doorbell, PollingDoorbell
from cassq.errors import BackendUnavailableError
from cassq.lifecycle.ports import Life


class Offline:
    """really: opens the place, counting its requests there; raises BackendError while no server
    answers. why: what it said first. life: that of the client, also when the place is open."""

    def __init__(self, really: Callable[[Requests], Embedded], why: str) -> None:
        self.life: Life = Life()
        self.requests: Requests = Requests()
        self._really = really
        self._why = why
        self._mutex = threading.Lock()
        self._place: Embedded | None = None
        self._closed = False

    def open(self) -> Embedded:
        """Open the place, unless it is open. Raises BackendError while no server answers."""
        with self._mutex:
            if self._place is None:
                if self._closed:
                    self.opened()
                place = self._really(self.requests)
                self._place = place._replace(ports=place.ports._replace(life=self.life))
            return self._place

    def opened(self) -> NoReturn:
        """Refuse what cannot be done offline."""
        raise BackendUnavailableError(self._why, hint="it is tried again and again")

    def doorbell(self, _queue_id: str) -> Doorbell:
        """A bell that needs no server."""
        return PollingDoorbell()

    def abandon(self) -> object:
        """What a forked child keeps, untouched."""
        return None if self._place is None else self._place.abandon()

    def close(self) -> None:
        """Close the place, if it is open; it cannot be opened any more."""
        with self._mutex:
            self._closed = True
            if self._place is not None:
                self._place.close()
        self.life.closed = True
