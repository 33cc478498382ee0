"""Rows as last seen: how running clients pick up policy changes.

No call waits for a policy: a push or a pop uses the row as last seen, and a dedicated thread of
the client reads it again in the background.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from cassq.errors import GroupNotFoundError, QueueNotFoundError
from cassq.model.rows import GroupRow, QueueRow

GROUP_WATCH_MS = 1000  # how often a group's policy is read again
GONE_SECONDS = 3600.0

R = TypeVar("R", QueueRow, GroupRow)


class Watched(Generic[R]):
    """A row as last seen."""

    def __init__(self, row: R, load: Callable[[], R]) -> None:
        self.known: R = row
        self._load: Callable[[], R] = load
        self._puts = 0
        self._gone = False

    def __call__(self) -> R:
        """The row. Once it is deleted, raises as `load` does. Cost: a memory read."""
        if self._gone:
            self.refresh()
        return self.known

    def put(self, row: R) -> None:
        """Set the current row, which this client has just read or changed."""
        self._puts += 1
        self.known = row
        self._gone = False

    def refresh(self) -> None:
        """Read the row again. If `load` raises, raises the same, and keeps the known row. Cost:
        that of `load`."""
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
                return  # otherwise this client may have put a newer row than the one read


class WatchedQueue:
    """A queue as the pushers and poppers of one `Queue` know it: its row, and the rows of the
    groups that have poppers.

    load: reads the queue's row. latest: reads it, or returns the row last seen while no quorum
    answers. load_group: reads a group's row.
    """

    def __init__(
        self,
        row: QueueRow,
        load: Callable[[], QueueRow],
        latest: Callable[[], QueueRow],
        load_group: Callable[[GroupRow], GroupRow],
    ) -> None:
        self.name: str = row.name
        self.id: str = row.id
        self.load: Callable[[], QueueRow] = load
        self.row: Watched[QueueRow] = Watched(row, latest)
        self.watch_ms: int = min(round(row.policy.lease * 500), 2000)
        self._load_group = load_group
        self._groups: dict[str, Watched[GroupRow]] = {}

    def group(self, row: GroupRow) -> Watched[GroupRow]:
        """One of its groups. row: its current row."""
        watched = self._groups.setdefault(row.id, Watched(row, lambda: self._load_group(row)))
        watched.put(row)
        return watched

    def refresh(self) -> float:
        """Pick up what other clients changed. Returns the seconds until the next time.

        Raises BackendError. Cost: one read, and one for each group that has poppers.
        """
        watch_ms = self.watch_ms
        try:
            self.row.refresh()
            for watched in list(self._groups.values()):
                watch_ms = min(watch_ms, GROUP_WATCH_MS)
                self._refresh_group(watched)
        except QueueNotFoundError:
            return GONE_SECONDS  # each pusher and popper raises it to its caller
        return watch_ms / 1000

    def _refresh_group(self, watched: Watched[GroupRow]) -> None:
        try:
            watched.refresh()
        except GroupNotFoundError:
            return  # its poppers raise it to their callers

    def use(self, row: QueueRow | GroupRow) -> None:
        """Use a row that this client has just read or changed."""
        if isinstance(row, QueueRow):
            if row.id == self.id:
                self.row.put(row)
        elif row.id in self._groups:
            self._groups[row.id].put(row)
