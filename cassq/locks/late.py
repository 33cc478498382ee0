"""A locker that is opened when its first lock is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cassq.locks.port import Lock, Locker


class LateLocker(Locker):
    """Opens a locker on first use: clients that need no lock do not connect to a lock service.

    open_locker: opens the locker. If it raises an error, so does `acquire`, and the next `acquire`
    tries again.
    """

    def __init__(self, open_locker: Callable[[], Locker]) -> None:
        self._open_locker = open_locker
        self._opening = threading.Lock()
        self._locker: Locker | None = None

    def acquire(
        self,
        name: str,
        ttl_ms: int,
        on_loss: Callable[[Lock], None] | None = None,
        *,
        wait_ms: int = 0,
    ) -> Lock | None:
        return self._opened().acquire(name, ttl_ms, on_loss, wait_ms=wait_ms)

    def _opened(self) -> Locker:
        with self._opening:
            if self._locker is None:
                self._locker = self._open_locker()
            return self._locker

    def close(self) -> None:
        """Release all locks; a locker that was never opened stays so."""
        with self._opening:
            if self._locker is not None:
                self._locker.close()
