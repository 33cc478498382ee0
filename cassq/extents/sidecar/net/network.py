"""The Network port: requests to several sidecars at once, as the replicated store makes them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

from cassq.errors import BackendError
from cassq.extents.protocol.messages import Request


class SidecarCall(NamedTuple):
    """Requests to one sidecar, sent one after another and answered in any order.

    generation: the data directory that must be there; "" for any.
    """

    sidecar: str
    generation: str
    requests: Sequence[Request]


class CallResult(NamedTuple):
    """The outcome of a call: the replies to its requests, in order, up to the first that failed,
    and that one's error. A RefusedError is a refusal; with any other error it is unknown what was
    done."""

    sidecar: str
    replies: Sequence[Any]
    error: BackendError | None

    @property
    def done(self) -> bool:
        """Whether all requests succeeded."""
        return self.error is None


class Patience(NamedTuple):
    """How long to wait, in seconds. all: for any call. lag: for the other calls after `enough`
    calls have succeeded."""

    all: float
    lag: float
    enough: int


class InFlightCall(abc.ABC):
    """A call that is in flight while its caller does something else. Not thread-safe. It ends by
    `end` or `drop`."""

    @abc.abstractmethod
    def go_on(self) -> None:
        """Receive what has arrived, without waiting. Never raises for what a sidecar does."""

    @abc.abstractmethod
    def end(self, patience: Patience) -> CallResult:
        """Wait for its answer, as `Network.exchange` does, from now on. A connection that breaks
        meanwhile is not retried."""

    @abc.abstractmethod
    def drop(self) -> None:
        """Give the call up: its answer is no longer wanted."""


class Network(abc.ABC):
    """The sidecars of a catalog, by name. Thread-safe."""

    @abc.abstractmethod
    def exchange(self, calls: Sequence[SidecarCall], patience: Patience) -> list[CallResult]:
        """Make all calls concurrently; returns a result for each, in order, once all are done or
        patience is over. Never raises for anything that a sidecar does or does not do.

        A call's error is a RefusedError; a BackendUnavailableError if the sidecar is not known,
        does not listen, is not the expected one, or the connection broke; or a BackendTimeoutError
        if it did not answer in time: the request may still be carried out.
        """

    @abc.abstractmethod
    def begin(self, call: SidecarCall) -> InFlightCall | None:
        """Make a call whose answer is needed later; None if that cannot be done at once. Never
        raises for anything that a sidecar does or does not do."""

    @abc.abstractmethod
    def tell(self, sidecar: str, generation: str, requests: Sequence[Request]) -> None:
        """Send requests that have no answer, if that can be done without waiting."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close all connections."""
