"""Attempts of a statement: their outcomes are counted, and retries wait."""

from __future__ import annotations

from typing import Any

from cassq.base.clock import Clock, Stopwatch
from cassq.base.counters import Requests
from cassq.cassandra.contact import HELD_UP
from cassq.cassandra.errors import OverloadedError
from cassq.errors import BackendError, BackendTimeoutError

PAUSE_MIN, PAUSE_MAX = 0.01, 0.5
BUSY_PAUSE = 0.001


class Tries:
    """Growing pauses between the attempts of one statement, until patience is over."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._waited = Stopwatch()
        self._pause = 0.0

    def wait_after(self, exc: BackendError) -> None:
        """Wait until it is time for another attempt; raises `exc` if none is left."""
        first = BUSY_PAUSE if isinstance(exc, OverloadedError) else PAUSE_MIN
        pause = self._pause = min(max(2 * self._pause, first), PAUSE_MAX)
        if not exc.retryable or self._waited.seconds() + pause > self._patience:
            raise exc
        self._clock.sleep(pause)


def note_error(requests: Requests, exc: BackendError) -> None:
    """Count a request that failed."""
    if isinstance(exc, OverloadedError):
        requests.count("overloaded")
    elif isinstance(exc, BackendTimeoutError):
        requests.count("unanswered", *(["unknown"] if exc.outcome_unknown else []))
    elif exc.outcome_unknown:
        requests.count("unanswered", "unknown")


def note_answer(requests: Requests, future: Any) -> None:
    """Count an answered request, if it is notable. future: the driver's."""
    if len(future.attempted_hosts) > 1 and len(set(future.attempted_hosts)) > 1:
        requests.count("doubled")
    if is_held_up(future):
        requests.count("held_up")


def is_held_up(future: Any) -> bool:
    """Whether the server was too busy to read on after this request."""
    return any(HELD_UP in text for text in future.warnings or ())
