"""The Locker port: leases that notify their holder when they are lost.

A lock serves order and efficiency, not safety: a compare-and-set in the catalog decides whatever
must not happen twice, and the catalog's epochs do not depend on the tokens of a locker.
"""

from __future__ import annotations

import abc
from collections.abc import Callable


class Lock(abc.ABC):
    """A lock that is, or was, held.

    name: of the lock. token: grows with each holder of the lock, as long as the locker keeps its
    data.
    """

    name: str
    token: int

    @abc.abstractmethod
    def held(self) -> bool:
        """Whether it is still ours as far as this process knows. Never blocks."""

    @abc.abstractmethod
    def renew(self, ttl_ms: int) -> bool:
        """Extend it to `ttl_ms` from now; False, also on every later call, if it was lost or the
        lock service did not confirm in time."""

    @abc.abstractmethod
    def release(self) -> None:
        """Release it; not an error if it was lost already, or the service cannot be reached."""


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
        """Take the lock; None while another holder has it.

        on_loss: called, at most once, when the loss of the lock is first noticed: in a call, or in
        a thread of the locker, so it must return quickly. wait_ms: how long to wait for its
        release; 0 tries once. Raises BackendError when a lock service cannot be reached;
        nothing is locked then.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release all locks of this locker."""
