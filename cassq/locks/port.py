"""The Locker port: leases that tell their holder when they are lost.

A lock serves order and thrift, never safety: what must not happen twice is decided by a
compare-and-set in the catalog, whose epochs do not depend on a locker's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable


class Lock(abc.ABC):
    """A lock that is, or was, held.

    name: what is locked. token: the locker's own number for this holding, growing while the
    locker keeps its data.
    """

    name: str
    token: int

    @abc.abstractmethod
    def held(self) -> bool:
        """Whether it is surely still ours, by what is known here. Cost: none that blocks."""

    @abc.abstractmethod
    def renew(self, ttl_ms: int) -> bool:
        """Keep it for `ttl_ms` from now; False, once and for all, when it was lost, or when a
        lock service did not say in time that it is kept."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give it up; no error when it is lost already, or cannot be told to the others."""


class Locker(abc.ABC):
    """Hands out locks by name."""

    @abc.abstractmethod
    def acquire(
        self,
        name: str,
        ttl_ms: int,
        on_loss: Callable[[Lock], None] | None = None,
        *,
        wait_ms: int = 0,
    ) -> Lock | None:
        """The lock, or None while another has it.

        on_loss: called, at most once, by whoever first learns that the lock was lost: a call, or
        a thread of the locker, which must not be kept for long. wait_ms: how long to wait for its
        holder to give it up; 0 asks once. Raises BackendError when a lock service cannot be
        reached; nothing is locked then.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up every lock of this locker."""
