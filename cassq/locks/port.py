"""The Locker port: leases that notify their holder when they are lost.

A lock serves order and efficiency, never safety: a compare-and-set in the catalog decides what must
not happen twice, and its epochs do not depend on a locker's.
"""

from __future__ import annotations

import abc
from collections.abc import Callable


class Lock(abc.ABC):
    """A lock that is, or was, held.

    name: what is locked. token: the locker's own number of this holding; it grows from holding to
    holding as long as the locker keeps its data.
    """

    name: str
    token: int

    @abc.abstractmethod
    def held(self) -> bool:
        """Whether it is certainly still ours, as far as known here. Cost: never blocks."""

    @abc.abstractmethod
    def renew(self, ttl_ms: int) -> bool:
        """Extend it to `ttl_ms` from now; False, from then on always, when it was lost or the lock
        service did not confirm in time."""

    @abc.abstractmethod
    def release(self) -> None:
        """Give it up; not an error when it was lost already, or the service cannot be reached."""


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
        """The lock, or None while another holder has it.

        on_loss: called, at most once, when the loss of the lock is first noticed: in a call, or in
        a thread of the locker, so it must return quickly. wait_ms: how long to wait for the holder
        to give it up; 0 asks once. Raises BackendError when a lock service cannot be reached;
        nothing is locked then.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give up every lock of this locker."""
