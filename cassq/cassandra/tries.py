"""Attempts of a statement; outcomes are counted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cassq.base.clock import Clock, Stopwatch
from cassq.base.counters import Requests
from cassq.cassandra.connecting import LEFT_SECONDS_MIN
from cassq.cassandra.contact import HELD_UP
from cassq.cassandra.errors import OverloadedError
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError

PAUSE_MIN, PAUSE_MAX = 0.01, 0.5
BUSY_PAUSE = 0.001
# Before the third attempt at a conditional write at most this long: some round trips.
CONFLICT_PAUSE = 0.04
UNSURE_MAX = 8  # attempts at a change that only a lost answer makes uncertain
PATIENCE_SECONDS = 10.0
# A server that asks for a pause is alive: requests to it are repeated this many times as long.
OVERLOAD_PATIENCE = 6
# How much of a call's patience a wait before a request may use up.
WAIT_SHARE_MAX = 0.9


class _Lost(threading.local):
    """The time that one thread's current call has lost. until_ms: up to when that is known.
    sent_ms: when the last request was sent. error: the last failure's."""

    def __init__(self) -> None:
        self.call: int = -1
        self.seconds: float = 0.0
        self.until_ms: int = 0
        self.sent_ms: int = 0
        self.error: BackendError | None = None


class FailureBudget:
    """How long servers that fail may hold up a call: `seconds` for each call of each thread.

    A failed request uses up the time since the call began, or since a request last succeeded. This
    includes pauses, and waits for other threads that fail too. The time before the request was sent
    never uses up the last tenth, because it may have been a necessary wait, for example for a rate
    limiter. A long call regains the time while its requests succeed. When nothing is left, no more
    requests are sent, so that the steps of a call cannot each use all of it.

    call: the number of this thread's call, and when it began, in boot milliseconds; zeros outside
    of calls, as in background threads. There each statement has half the patience for itself, since
    a call may have to wait for it. None: all statements are outside of calls, with full patience.
    """

    def __init__(
        self, clock: Clock, seconds: float, call: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self.seconds: float = seconds
        self._clock = clock
        self._call = call
        self._outside = seconds if call is None else seconds / 2
        self._lost = _Lost()

    def begin(self) -> None:
        """Begin a statement."""
        lost = self._of_this_call()
        if not lost.call:
            lost.seconds = 0.0
            lost.until_ms = self._clock.boot_ms()

    def left(self) -> float:
        """How many seconds this thread's call has left; 0 or less if none."""
        lost = self._of_this_call()
        return (self.seconds if lost.call else self._outside) - lost.seconds

    def succeeded(self) -> None:
        """Note that a request succeeded."""
        lost, now_ms = self._of_this_call(), self._clock.boot_ms()
        if lost.seconds:
            lost.seconds = max(0.0, lost.seconds - (now_ms - lost.until_ms) / 1000)
        lost.until_ms = now_ms

    def lose(self, error: BackendError) -> None:
        """Note that a request failed, or that the time since was a pause after it."""
        lost, now_ms = self._of_this_call(), self._clock.boot_ms()
        sent_ms = max(lost.sent_ms, lost.until_ms)
        before = (sent_ms - lost.until_ms) / 1000
        lost.seconds += min(before, self.seconds * WAIT_SHARE_MAX) + (now_ms - sent_ms) / 1000
        lost.until_ms = now_ms
        lost.error = error

    def timeout(self, most: float) -> float:
        """How long the next request may take, at most `most` seconds. Raises the error that the
        call ends with if nothing is left."""
        lost = self._of_this_call()
        lost.sent_ms = self._clock.boot_ms()
        if not lost.call:
            return min(most, self._outside)
        left = self.seconds - lost.seconds
        if left >= LEFT_SECONDS_MIN or lost.error is None:
            return min(most, left)
        raise BackendUnavailableError(lost.error.message, hint=lost.error.hint)

    def _of_this_call(self) -> _Lost:
        lost = self._lost
        call, began_ms = self._call() if self._call is not None else (0, 0)
        if call != lost.call:
            lost.call = call
            lost.seconds = 0.0
            lost.until_ms = lost.sent_ms = began_ms
            lost.error = None
        return lost


class Tries:
    """Growing pauses between the attempts of one statement, until patience is over."""

    def __init__(self, clock: Clock, patience: FailureBudget) -> None:
        self._clock = clock
        self._patience = patience
        self._waited = Stopwatch()
        self._pause = 0.0
        patience.begin()

    def wait_after(self, exc: BackendError) -> None:
        """Wait until it is time for another attempt; raises `exc` if none is left."""
        overloaded = isinstance(exc, OverloadedError)
        first = BUSY_PAUSE if overloaded else PAUSE_MIN
        pause = self._pause = min(max(2 * self._pause, first), PAUSE_MAX)
        if overloaded:
            left = self._patience.seconds * OVERLOAD_PATIENCE - self._waited.seconds()
        else:
            left = self._patience.left() - LEFT_SECONDS_MIN
        if not exc.retryable or pause > left:
            raise exc
        self._clock.sleep(pause)
        if not overloaded:
            self._patience.lose(exc)


def unanswered(what: str) -> BackendTimeoutError:
    """The error after the last attempt, when none was answered."""
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


def note_answer(requests: Requests, future: Any) -> tuple[bool, bool]:
    """Count an answered request, if it is notable: whether it was sent to a second server, and
    whether the server was too busy. future: the driver's."""
    doubled = len(future.attempted_hosts) > 1 and len(set(future.attempted_hosts)) > 1
    held_up = is_held_up(future)
    if doubled:
        requests.count("doubled")
    if held_up:
        requests.count("held_up")
    return doubled, held_up


def is_held_up(future: Any) -> bool:
    """Whether the server was too busy to read on after this request."""
    return any(HELD_UP in text for text in future.warnings or ())
