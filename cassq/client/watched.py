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
# The hint for a missing group; seconds are filled in.
EXPIRED = (
    "its group_expires removes it after {:g} seconds without a popper: create it again with"
    " queue.create_group, which changes nothing while the group exists"
)

R = TypeVar("R", QueueRow, GroupRow)


class Watched(Generic[R]):
    """A row as last seen."""

    def __init__(self, row: R, load: Callable[[], R]) -> None:
        self.known: R = row
        self.puts: int = 0
        self._load: Callable[[], R] = load
        self._gone = False

    def __call__(self) -> R:
        """The row. Once it is deleted, raises as `load` does. Cost: a memory read."""
        if self._gone:
            self.refresh()
        return self.known

    def put(self, row: R) -> None:
        """Set the current row, which this client has just read or changed."""
        self.puts += 1
        self.known = row
        self._gone = False

    def refresh(self) -> None:
        """Read the row again. If `load` raises, raises the same, and keeps the known row. Cost:
        that of `load`."""
        while True:
            puts = self.puts
            try:
                row = self._load()
            except (QueueNotFoundError, GroupNotFoundError):
                self._gone = True
                raise
            if self.found(row, puts):
                return

    def found(self, row: R | None, puts: int) -> bool:
        """Take over a row that was read when `puts` was this; None: it is not there any more.
        False if this client has put a row since, which may be newer."""
        if puts != self.puts:
            return False
        if row is not None:
            self.known = row
        self._gone = row is None
        return puts == self.puts


class WatchedQueue:
    """A queue as the pushers and poppers of one `Queue` know it: its row, and the rows of the
    groups that have poppers.

    load: reads the queue's row. both: reads it, and those of all its groups. latest: calls what
    reads the row, or returns the row last seen while no quorum answers.
    """

    def __init__(
        self,
        row: QueueRow,
        load: Callable[[], QueueRow],
        both: Callable[[], tuple[QueueRow, list[GroupRow]]],
        latest: Callable[[Callable[[], QueueRow]], QueueRow],
    ) -> None:
        self.name: str = row.name
        self.id: str = row.id
        self.load: Callable[[], QueueRow] = load
        self.both: Callable[[], tuple[QueueRow, list[GroupRow]]] = both
        self.row: Watched[QueueRow] = Watched(row, lambda: latest(self._read))
        self.watch_ms: int = min(round(row.policy.lease * 500), 2000)
        self._groups: dict[str, Watched[GroupRow]] = {}

    def group(self, row: GroupRow) -> Watched[GroupRow]:
        """One of its groups. row: its current row."""
        watched = self._groups.setdefault(row.id, Watched(row, lambda: self._same(row)))
        watched.put(row)
        return watched

    def refresh(self) -> float:
        """Pick up what other clients changed. Returns the seconds until the next time.

        Raises BackendError. Cost: one read.
        """
        try:
            self.row.refresh()
        except QueueNotFoundError:
            return GONE_SECONDS  # each pusher and popper raises it to its caller
        return (min(self.watch_ms, GROUP_WATCH_MS) if self._groups else self.watch_ms) / 1000

    def _read(self) -> QueueRow:
        """Read the queue's row; if groups have poppers, read theirs with it. Poppers of a group
        that is gone raise that to their callers."""
        while self._groups:
            watched = [(key, each, each.puts) for key, each in list(self._groups.items())]
            row, groups = self.both()
            rows = {group.id: group for group in groups}
            if all(each.found(rows.get(key), puts) for key, each, puts in watched):
                return row
        return self.load()

    def _same(self, row: GroupRow) -> GroupRow:
        """The current row. Raises GroupNotFoundError if the group was deleted, even if another one
        with its name was created since."""
        for now in self.both()[1]:
            if now.id == row.id:
                return now
        raise deleted_group(row, self.name)

    def use(self, row: QueueRow | GroupRow) -> None:
        """Use a row that this client has just read or changed."""
        if isinstance(row, QueueRow):
            if row.id == self.id:
                self.row.put(row)
        elif row.id in self._groups:
            self._groups[row.id].put(row)


def deleted_group(row: GroupRow, queue: str) -> GroupNotFoundError:
    """The error of a call that needs this group of a queue."""
    expires = row.policy.group_expires
    hint = "" if expires is None else EXPIRED.format(expires)
    return GroupNotFoundError(f"group {row.name!r} of {queue!r} was deleted", hint=hint)
