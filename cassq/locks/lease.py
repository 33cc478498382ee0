"""The `lease` locker: a lock is a row in the catalog with an owner, an epoch and a deadline. It is
held until its deadline unless it is renewed, and lost only once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

from cassq.base.clock import Stopwatch, wait_event
from cassq.catalog.port import Catalog
from cassq.locks.port import Lock, Locker

# Waiters poll, with pauses that double up to this, since a release notifies no other process.
_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.001, 0.05


class LeaseLock(Lock):
    """A lock that is ours until a deadline on the catalog's clock."""

    def __init__(
        self,
        locker: LeaseLocker,
        name: str,
        owner: str,
        token: int,
        due_ms: int,
        on_loss: Callable[[Lock], None] | None,
    ) -> None:
        self._locker = locker
        self.name = name
        self.owner = owner
        self.token = token
        self._due_ms = due_ms
        self._on_loss = on_loss
        self._over = False

    def held(self) -> bool:
        if not self._over and self._locker.now_ms() >= self._due_ms:
            self._lose()
        return not self._over

    def renew(self, ttl_ms: int) -> bool:
        if not self.held():
            return False
        now_ms = self._locker.now_ms()
        # Without an answer it may have either deadline.
        self._due_ms = min(self._due_ms, now_ms + ttl_ms)
        if self._locker.take(self.name, self.owner, ttl_ms) != self.token:
            # It had lapsed, and this call may have taken it again: release it for the others.
            self._lose()
            return False
        self._due_ms = now_ms + ttl_ms
        return True

    def release(self) -> None:
        if not self._over:
            self._over = True
            self._locker.give_up(self)

    def _lose(self) -> None:
        self._over = True
        self._locker.give_up(self)
        if self._on_loss is not None:
            self._on_loss(self)


class LeaseLocker(Locker):
    """Locks as leases in the catalog, for all processes that share it; needs no other server.

    owner: a unique name. Cost: one unsynced transaction per call.
    """

    def __init__(self, catalog: Catalog, owner: str) -> None:
        self._owner = owner
        self.take = catalog.leases.take
        self._drop = catalog.leases.drop
        self.now_ms = catalog.now_ms
        self._numbers = count(1)
        self._locks: dict[str, LeaseLock] = {}  # by owner
        self._given_up = threading.Event()

    def acquire(
        self,
        name: str,
        ttl_ms: int,
        on_loss: Callable[[Lock], None] | None = None,
        *,
        wait_ms: int = 0,
    ) -> Lock | None:
        watch, pause = Stopwatch(), _PAUSE_SECONDS_MIN
        while True:
            self._given_up.clear()
            lock = self._try(name, ttl_ms, on_loss)
            left = wait_ms / 1000 - watch.seconds()
            if lock is not None or left <= 0:
                return lock
            wait_event(self._given_up, min(pause, left))
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)

    def _try(self, name: str, ttl_ms: int, on_loss: Callable[[Lock], None] | None) -> Lock | None:
        # Each lock has its own owner, so that threads of one client exclude each other too.
        owner = f"{self._owner}.{next(self._numbers)}"
        now_ms = self.now_ms()
        token = self.take(name, owner, ttl_ms)
        if token is None:
            return None
        lock = LeaseLock(self, name, owner, token, now_ms + ttl_ms, on_loss)
        self._locks[owner] = lock
        return lock

    def give_up(self, lock: LeaseLock) -> None:
        """Forget a lock, and release it unless another owner holds it already."""
        self._locks.pop(lock.owner, None)
        self._drop(lock.name, lock.owner)
        self._given_up.set()

    def close(self) -> None:
        for lock in list(self._locks.values()):
            lock.release()
