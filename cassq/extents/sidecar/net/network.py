"""The Network port: requests to several sidecars at once, as the replicated store makes them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

from cassq.errors import BackendError
from cassq.extents.protocol.words import Request


class Call(NamedTuple):
    """Requests to one sidecar, sent one behind the other and answered in any order.

    generation: which data directory must be there; "" for any.
    """

    sidecar: str
    generation: str
    requests: Sequence[Request]


class CallResult(NamedTuple):
    """What became of a call: the replies to its requests, in their order, up to the first that
    failed; and why that one did. A refusal is a RefusedError; anything else means that nobody
    knows what was done."""

    sidecar: str
    replies: Sequence[Any]
    error: BackendError | None

    @property
    def done(self) -> bool:
        """Whether all was done."""
        return self.error is None


class Patience(NamedTuple):
    """How long to wait, in seconds. all: for the slowest when nobody is quicker. lag: for those
    that still owe an answer after `enough` calls were done."""

    all: float
    lag: float
    enough: int


class Begun(abc.ABC):
    """A call made without waiting for it. Not thread-safe. It ends by `end` or `drop`."""

    @abc.abstractmethod
    def go_on(self) -> None:
        """Take in what has come, without waiting. Never raises for what a sidecar does."""

    @abc.abstractmethod
    def end(self, patience: Patience) -> CallResult:
        """Wait for its answer, as `Network.exchange` does from now on. What breaks meanwhile is
        not tried once more."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Nobody wants its answer any more."""


class Network(abc.ABC):
    """The sidecars of a catalog, by name. Thread-safe."""

    @abc.abstractmethod
    def exchange(self, calls: Sequence[Call], patience: Patience) -> list[CallResult]:
        """Make all calls side by side; an answer for each, in their order, as soon as all are
        done or patience is over. Never raises for what a sidecar does or does not do.

        An error of a call: RefusedError; BackendUnavailableError when the sidecar is not known,
        does not listen, is another than expected, or the connection broke; BackendTimeoutError
        when it did not answer in time: what was asked of it may be done yet.
        """

    @abc.abstractmethod
    def begin(self, call: Call) -> Begun | None:
        """Make a call of which the answer will be wanted later; None when that cannot be done at
        once. Never raises for what a sidecar does or does not do."""

    @abc.abstractmethod
    def tell(self, sidecar: str, generation: str, requests: Sequence[Request]) -> None:
        """Send what is not answered, without waiting, if that can be done at once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back all connections."""
