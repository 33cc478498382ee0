"""Exchanges: calls to several sidecars side by side, all in the calling thread."""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence
from typing import Any

from cassq.base.clock import Stopwatch
from cassq.base.os_errors import untraced
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.messages import RefusedError
from cassq.extents.protocol.wire import ProtocolError, reply_of
from cassq.extents.sidecar.net.connection import Connection, Phase
from cassq.extents.sidecar.net.network import CallResult, Patience, SidecarCall

# A live sidecar welcomes a client within this time.
WELCOME_SECONDS = 5.0
_MISSING: Any = object()

# Replaces a connection that broke. Takes that, and whether it led to another sidecar than the one
# called.
Reconnect = Callable[[Connection, bool], Connection]


class _AnotherSidecarError(BackendUnavailableError):
    """Another sidecar listens there."""


class Exchange:
    """One call: its requests on a connection, and the answers that came.

    reconnect: replaces a broken connection, once; raises BackendError if that would not help.
    """

    def __init__(
        self, call: SidecarCall, connection: Connection, reconnect: Reconnect | None = None
    ) -> None:
        self.connection: Connection | None = None
        self.error: BackendError | None = None
        self._call = call
        self._replies: list[Any] = [_MISSING] * len(call.requests)
        self._reconnect = reconnect
        self._numbers: dict[int, int] = {}
        self._unsent = list(range(len(call.requests)))[::-1]
        self._sent_ever = self._refused = False
        self._use(connection)

    @property
    def done(self) -> bool:
        """Whether no more answers will come."""
        return self.connection is None or not (self._numbers or self._unsent)

    @property
    def well(self) -> bool:
        """Whether all requests succeeded."""
        return self.done and self.error is None and not self._refused

    @property
    def grace(self) -> float:
        """The seconds left for the sidecar to welcome this client."""
        if self.connection is None or self.connection.phase is Phase.READY:
            return math.inf
        return WELCOME_SECONDS - self.connection.age.seconds()

    def step(self) -> None:
        """Advance as far as possible without waiting."""
        connection = self.connection
        if connection is None:
            return
        try:
            self._check(connection)
            self._feed(connection)
            connection.step()
            self._check(connection)
            self._take(connection)
            while self._feed(connection):
                connection.step()
                self._take(connection)
        except RefusedError as exc:  # the connection, or this side of it
            self._end(exc)
        except BackendError as exc:
            self._broke(connection, exc)

    def give_up(self, seconds: float) -> None:
        """Fail, because patience is over after `seconds`."""
        if self.done:
            return
        connection = self.connection
        if connection is None:
            return
        phase = connection.phase
        what = f"sidecar {self._call.sidecar!r} at {connection.address}"
        why = f"{what} did not answer within {seconds:.2g} s: {phase.value}"
        hint = "is it overloaded, stopped, or cut off from here?"
        if phase is Phase.READY:
            error: BackendError = BackendTimeoutError(
                why, hint=hint, outcome_unknown=self._sent_ever
            )
        else:
            error = BackendUnavailableError(why, hint=hint, outcome_unknown=self._sent_ever)
        self._end(error)

    def answer(self) -> CallResult:
        """The result of the call."""
        whole = len(self._replies)
        for place, reply in enumerate(self._replies):
            if reply is _MISSING or isinstance(reply, BackendError):
                whole = place
                break
        error = self.error
        if whole < len(self._replies) and self._replies[whole] is not _MISSING:
            error = self._replies[whole]
        return CallResult(self._call.sidecar, self._replies[:whole], error)

    # --- its steps ------------------------------------------------------------------------------

    def _use(self, connection: Connection) -> None:
        self.connection = connection
        self._unsent = sorted([*self._unsent, *self._numbers.values()], reverse=True)
        self._numbers.clear()

    def _feed(self, connection: Connection) -> bool:
        """Submit what the window has room for; returns whether anything was submitted."""
        if connection.phase is not Phase.READY or not self._unsent:
            return False
        fed = False
        while self._unsent:
            request = self._call.requests[self._unsent[-1]]
            parts = connection.next_parts(request)
            size = connection.size(parts)
            if not connection.may_send(size):
                break
            number = connection.submit(parts, size)
            self._numbers[number] = self._unsent.pop()
            self._sent_ever = fed = True
        return fed

    def _take(self, connection: Connection) -> None:
        while connection.answers:
            number, answer = connection.answers.popleft()
            place = self._numbers.pop(number)
            if isinstance(answer, RefusedError):
                self._replies[place] = answer
                self._refused = True
                self._unsent.clear()  # the requests after it are pointless now
                continue
            try:
                self._replies[place] = reply_of(self._call.requests[place], answer)
            except ProtocolError as exc:
                raise BackendUnavailableError(
                    f"sidecar {self._call.sidecar!r}: {exc.message}", outcome_unknown=True
                ) from exc

    def _check(self, connection: Connection) -> None:
        """Raise _AnotherSidecarError unless the connection leads to the called sidecar."""
        name, generation = self._call.sidecar, self._call.generation
        if connection.phase is not Phase.READY:
            return
        if name and connection.welcome.sidecar != name:
            there = connection.welcome.sidecar
            raise _AnotherSidecarError(
                f"{connection.address} belongs to sidecar {there!r}, not {name!r}",
                hint="addresses come from the catalog: were two sidecars swapped?",
            )
        if generation and connection.welcome.generation != generation:
            raise _AnotherSidecarError(
                f"sidecar {name!r} at {connection.address} has another data directory than before",
                hint="its data there is lost; the other replicas have it",
                retryable=False,
            )

    def _broke(self, connection: Connection, exc: BackendError) -> None:
        reconnect, self._reconnect = self._reconnect, None
        if reconnect is None:
            self._end(exc)
            return
        try:
            following = reconnect(connection, isinstance(exc, _AnotherSidecarError))
        except BackendError:
            self._end(exc)
            return
        connection.close()
        self._use(following)

    def _end(self, error: BackendError) -> None:
        self.error = untraced(error)
        if self.connection is not None:
            self.connection.close()
            self.connection = None


def converse(exchanges: Sequence[Exchange], patience: Patience) -> None:
    """Advance these exchanges until all are done or patience is over."""
    watch = Stopwatch()
    for exchange in exchanges:
        exchange.step()
    until = patience.all
    lagging = False
    while waiting := [exchange for exchange in exchanges if not exchange.done]:
        passed = watch.seconds()
        if not lagging and 0 < patience.enough <= sum(exchange.well for exchange in exchanges):
            until, lagging = min(patience.all, passed + patience.lag), True
        if passed >= until:
            break
        graces = [exchange.grace for exchange in waiting]
        for exchange, grace in zip(waiting, graces, strict=True):
            if grace <= 0:
                exchange.give_up(WELCOME_SECONDS)
        if min(graces) > 0:
            _step(waiting, min(until - passed, *graces))
    for exchange in exchanges:
        exchange.give_up(watch.seconds())


def _step(waiting: Sequence[Exchange], seconds: float) -> None:
    """Wait for up to `seconds` until something arrives, and process it."""
    poll = select.poll()
    by_fd = {}
    for exchange in waiting:
        if exchange.connection is not None:
            by_fd[exchange.connection.fileno()] = exchange
            poll.register(exchange.connection, exchange.connection.wants)
    for fd, _ in poll.poll(max(1, round(seconds * 1000))):
        by_fd[fd].step()
