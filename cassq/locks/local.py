"""The `local` locker: locks between the threads of one process, for tests and single programs."""

from __future__ import annotations

import threading

from cassq.base.clock import Clock
from cassq.locks.held import TimedLocker


class LockTable:
    """Locks with owner and deadline; shared by the lockers of one process."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._rows: dict[str, tuple[str, int, int]] = {}  # name → owner, token, due_ms

    def take(self, name: str, owner: str, ttl_ms: int, now_ms: int) -> int | None:
        """As `Leases.take`."""
        with self._mutex:
            holder, token, due_ms = self._rows.get(name, ("", 0, 0))
            if due_ms > now_ms and holder != owner:
                return None
            if due_ms <= now_ms or holder != owner:
                token += 1
            self._rows[name] = (owner, token, now_ms + ttl_ms)
            return token

    def drop(self, name: str, owner: str) -> None:
        """As `Leases.drop`."""
        with self._mutex:
            holder, token, _ = self._rows.get(name, ("", 0, 0))
            if holder == owner:
                self._rows[name] = ("", token, 0)


class LocalLocker(TimedLocker):
    """Locks in a table of this process."""

    def __init__(self, table: LockTable, clock: Clock, owner: str) -> None:
        def take(name: str, owner: str, ttl_ms: int) -> int | None:
            return table.take(name, owner, ttl_ms, clock.boot_ms())

        super().__init__(owner, take, table.drop, clock.boot_ms)
