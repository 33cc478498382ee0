"""Rows as they were a moment ago: how policies are taken up by running clients.

Nobody waits for a policy: a push or a pop goes by the row as it was last seen, and the client has
it read again beside them, by a thread that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cassq.errors import GroupNotFoundError, QueueNotFoundError
from cassq.model.rows import GroupRow, QueueRow

R = TypeVar("R", QueueRow, GroupRow)


class Watched(Generic[R]):
    """A row as it was last seen."""

    def __init__(self, row: R, load: Callable[[], R]) -> None:
        self.known: R = row
        self._load: Callable[[], R] = load
        self._puts = 0
        self._gone = False

    def __call__(self) -> R:
        """The row. Raises as `load` does once it was deleted. Cost: a memory read."""
        if self._gone:
            self.refresh()
        return self.known

    def put(self, row: R) -> None:
        """This is the row as it is now: it was read, or changed, by this client."""
        self._puts += 1
        self.known = row
        self._gone = False

    def refresh(self) -> None:
        """Read the row again. Raises as `load` does; what was known stays then. Cost: that of
        `load`."""
        while True:
            puts = self._puts
            try:
                row = self._load()
            except (QueueNotFoundError, GroupNotFoundError):
                self._gone = True
                raise
            if puts == self._puts:
                self.known = row
                self._gone = False
            if puts == self._puts:
                return  # else a change of this client's may be newer than what was read
