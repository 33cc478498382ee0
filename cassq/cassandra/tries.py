"""Attempts: of a statement, and of a change that other clients may make first. Outcomes are
counted."""

from __future__ import annotations

from collections.abc import Iterator
from random import random
from typing import Any

from cassq.base.clock import Clock, Stopwatch
from cassq.base.counters import Requests
from cassq.cassandra.contact import HELD_UP
from cassq.cassandra.errors import OverloadedError
from cassq.errors import BackendError, BackendTimeoutError

PAUSE_MIN, PAUSE_MAX = 0.01, 0.5
BUSY_PAUSE = 0.001
ATTEMPTS_MAX = 50
UNSURE_MAX = 8  # attempts at what only a lost answer makes uncertain
ATTEMPTS_SECONDS_MAX = 60.0


class Tries:
    """Growing pauses between the attempts of one statement, until patience is over.
    overload_patience: the same while the node is overloaded."""

    def __init__(
        self, clock: Clock, patience: float, overload_patience: float | None = None
    ) -> None:
        self._clock = clock
        self._patience = patience
        self._overload_patience = patience if overload_patience is None else overload_patience
        self._waited = Stopwatch()
        self._pause = 0.0

    def wait_after(self, exc: BackendError) -> None:
        """Wait until it is time for another attempt; raises `exc` if none is left."""
        overloaded = isinstance(exc, OverloadedError)
        first = BUSY_PAUSE if overloaded else PAUSE_MIN
        patience = self._overload_patience if overloaded else self._patience
        pause = self._pause = min(max(2 * self._pause, first), PAUSE_MAX)
        if not exc.retryable or self._waited.seconds() + pause > patience:
            raise exc
        self._clock.sleep(pause)


def attempts(clock: Clock, most: int) -> Iterator[None]:
    """Attempts at a compare-and-set: in each the caller reads, decides, writes if nothing has
    changed since, and leaves the loop if that was applied.

    The second follows at once, as what was known may be old; each further one after a pause, random
    and ever longer, so that those that collided do not collide again. They end after `most`, or a
    minute: then the caller raises `contended`, or `unanswered`.
    """
    waited = Stopwatch()
    for number in range(most):
        if number > 1:
            clock.sleep(random() * min(PAUSE_MIN * 2**number, PAUSE_MAX))
        if waited.seconds() > ATTEMPTS_SECONDS_MAX:
            return
        yield


def contended(what: str) -> BackendTimeoutError:
    """The error after the last attempt, when others were faster each time."""
    return BackendTimeoutError(f"other clients keep changing {what}", hint="try again")


def unanswered(what: str) -> BackendTimeoutError:
    """The error after the last attempt, when none had an answer."""
    hint = "a node is slow or gone; try again"
    return BackendTimeoutError(f"it is not known whether {what}", hint=hint, outcome_unknown=True)


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
