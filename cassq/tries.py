"""Tries of a statement that may be sent again, and the pauses between them."""

from __future__ import annotations

from cassq.clock import Clock, Stopwatch
from cassq.cql_errors import OverloadedError
from cassq.errors import BackendError

PAUSE_MIN, PAUSE_MAX = 0.01, 0.5
BUSY_PAUSE = 0.001


class Tries:
    """The pauses between tries of one statement, longer and longer, until patience is over."""

    def __init__(self, clock: Clock, patience: float) -> None:
        self._clock = clock
        self._patience = patience
        self._waited = Stopwatch()
        self._pause = 0.0

    def wait_after(self, exc: BackendError) -> None:
        """Wait until it is time for another try; raises `exc` when there is to be none."""
        first = BUSY_PAUSE if isinstance(exc, OverloadedError) else PAUSE_MIN
        pause = self._pause = min(max(2 * self._pause, first), PAUSE_MAX)
        if not exc.retryable or self._waited.seconds() + pause > self._patience:
            raise exc
        self._clock.sleep(pause)
