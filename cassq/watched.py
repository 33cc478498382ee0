"""Rows as they were a moment ago: how policies are taken up by running clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cassq.catalog.rows import GroupRow, QueueRow
from cassq.clock import Clock

R = TypeVar("R", QueueRow, GroupRow)


class Watched(Generic[R]):
    """A row as it was at most half a lease ago."""

    def __init__(self, row: R, load: Callable[[], R], clock: Clock, age_ms: int) -> None:
        self.known: R = row  # as it was last loaded
        self._load: Callable[[], R] = load
        self._clock = clock
        self._age_ms = age_ms
        self._loaded_ms = clock.boot_ms()

    def forget(self) -> None:
        """Load the row at the next call."""
        self._loaded_ms = -self._age_ms

    def __call__(self) -> R:
        now_ms, before_ms = self._clock.boot_ms(), self._loaded_ms
        if now_ms - before_ms >= self._age_ms:
            self._loaded_ms = now_ms  # other threads go on with what is known meanwhile
            try:
                self.known = self._load()
            except BaseException:
                self._loaded_ms = before_ms
                raise
        return self.known
