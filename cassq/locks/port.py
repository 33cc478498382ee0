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
        """Whether it is surely still ours. Cost: none that blocks."""

    @abc.abstractmethod
    def renew(self, ttl_ms: int) -> bool:
        """Keep it for `ttl_ms` from now; False, once and for all, when it was lost."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give it up; no error when it is lost already."""


class Locker(abc.ABC):
    """Hands out locks by name."""

    @abc.abstractmethod
    def acquire(
        self, name: str, ttl_ms: int, on_loss: Callable[[Lock], None] | None = None
    ) -> Lock | None:
        """The lock, or None while another has it; never waits for its holder.

        on_loss: called, at most once, by whichever call first learns that the lock was lost.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up every lock of this locker."""
