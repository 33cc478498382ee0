"""Talks: calls to several sidecars side by side, all in the calling thread."""

from __future__ import annotations

import math
import select
from collections.abc import Callable, Sequence
from typing import Any

from cassq.base.clock import Stopwatch
from cassq.errors import BackendError, BackendTimeoutError, BackendUnavailableError
from cassq.extents.protocol.wire import ProtocolError, reply_of
from cassq.extents.protocol.words import RefusedError
from cassq.extents.sidecar.net.connection import Connection, Phase
from cassq.extents.sidecar.net.network import Call, CallResult, Patience

# A live sidecar welcomes a client within this time.
WELCOME_SECONDS = 5.0
_MISSING: Any = object()

# Takes the connection that broke, and whether it led to another sidecar than the one called.
Anew = Callable[[Connection, bool], Connection]


class _AnotherSidecarError(BackendUnavailableError):
    """Another sidecar listens there."""


class Talk:
    """One call: its requests on a connection, and the answers that came.

    link: the first connection. anew: replaces a broken connection, once; raises BackendError where
    that would not help.
    """

    def __init__(self, call: Call, link: Connection, anew: Anew | None = None) -> None:
        self.link: Connection | None = None
        self.error: BackendError | None = None
        self._call = call
        self._replies: list[Any] = [_MISSING] * len(call.requests)
        self._anew = anew
        self._numbers: dict[int, int] = {}
        self._unsent = list(range(len(call.requests)))[::-1]
        self._sent_ever = self._refused = False
        self._use(link)

    @property
    def done(self) -> bool:
        """Whether no more answers will come."""
        return self.link is None or not (self._numbers or self._unsent)

    @property
    def well(self) -> bool:
        """Whether all requests succeeded."""
        return self.done and self.error is None and not self._refused

    @property
    def grace(self) -> float:
        """How many more seconds the sidecar may take to welcome this client."""
        if self.link is None or self.link.phase is Phase.READY:
            return math.inf
        return WELCOME_SECONDS - self.link.age.seconds()

    def step(self) -> None:
        """Advance as far as possible without waiting."""
        link = self.link
        if link is None:
            return
        try:
            self._check(link)
            self._feed(link)
            link.step()
            self._check(link)
            self._take(link)
            while self._feed(link):
                link.step()
                self._take(link)
        except RefusedError as exc:  # the connection, or this side of it
            self._end(exc)
        except BackendError as exc:
            self._broke(link, exc)

    def give_up(self, seconds: float) -> None:
        """Fail, because patience is over after `seconds`."""
        if self.done:
            return
        link = self.link
        if link is None:
            return
        phase = link.phase
        what = f"sidecar {self._call.sidecar!r} at {link.address}"
        told = f"{what} did not answer within {seconds:.2g} s: {phase.value}"
        hint = "is it overloaded, stopped, or cut off from here?"
        if phase is Phase.READY:
            error: BackendError = BackendTimeoutError(
                told, hint=hint, outcome_unknown=self._sent_ever
            )
        else:
            error = BackendUnavailableError(told, hint=hint, outcome_unknown=self._sent_ever)
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

    def _use(self, link: Connection) -> None:
        self.link = link
        self._unsent = sorted([*self._unsent, *self._numbers.values()], reverse=True)
        self._numbers.clear()

    def _feed(self, link: Connection) -> bool:
        """Submit what the window has room for; returns whether anything was submitted."""
        if link.phase is not Phase.READY or not self._unsent:
            return False
        fed = False
        while self._unsent:
            request = self._call.requests[self._unsent[-1]]
            parts = link.next_parts(request)
            size = link.size(parts)
            if not link.may_send(size):
                break
            number = link.submit(parts, size)
            self._numbers[number] = self._unsent.pop()
            self._sent_ever = fed = True
        return fed

    def _take(self, link: Connection) -> None:
        while link.answers:
            number, answer = link.answers.popleft()
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

    def _check(self, link: Connection) -> None:
        """Raise _AnotherSidecarError unless the connection leads to the called sidecar."""
        name, generation = self._call.sidecar, self._call.generation
        if link.phase is not Phase.READY:
            return
        if name and link.welcome.sidecar != name:
            raise _AnotherSidecarError(
                f"at {link.address} listens sidecar {link.welcome.sidecar!r}, not {name!r}",
                hint="addresses are learned from the catalog: did two sidecars change places?",
            )
        if generation and link.welcome.generation != generation:
            raise _AnotherSidecarError(
                f"sidecar {name!r} at {link.address} has another data directory than before",
                hint="what it held is lost there; the other replicas have it",
                retryable=False,
            )

    def _broke(self, link: Connection, exc: BackendError) -> None:
        anew, self._anew = self._anew, None
        if anew is None:
            self._end(exc)
            return
        try:
            following = anew(link, isinstance(exc, _AnotherSidecarError))
        except BackendError:
            self._end(exc)
            return
        link.close()
        self._use(following)

    def _end(self, error: BackendError) -> None:
        self.error = error
        if self.link is not None:
            self.link.close()
            self.link = None


def converse(talks: Sequence[Talk], patience: Patience) -> None:
    """Advance these talks until all are done or patience is over."""
    watch = Stopwatch()
    for talk in talks:
        talk.step()
    until = patience.all
    lagging = False
    while waiting := [talk for talk in talks if not talk.done]:
        passed = watch.seconds()
        if not lagging and 0 < patience.enough <= sum(talk.well for talk in talks):
            until, lagging = min(patience.all, passed + patience.lag), True
        if passed >= until:
            break
        graces = [talk.grace for talk in waiting]
        for talk, grace in zip(waiting, graces, strict=True):
            if grace <= 0:
                talk.give_up(WELCOME_SECONDS)
        if min(graces) > 0:
            _step(waiting, min(until - passed, *graces))
    for talk in talks:
        talk.give_up(watch.seconds())


def _step(waiting: Sequence[Talk], seconds: float) -> None:
    """Wait for up to `seconds` until something arrives, and process it."""
    poll = select.poll()
    by_fd = {}
    for talk in waiting:
        if talk.link is not None:
            by_fd[talk.link.fileno()] = talk
            poll.register(talk.link, talk.link.wants)
    for fd, _ in poll.poll(max(1, round(seconds * 1000))):
        by_fd[fd].step()
