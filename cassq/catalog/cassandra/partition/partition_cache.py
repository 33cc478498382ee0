"""A process's cache of the partitions of claims it works on.

The cache only serves planning: each write is conditional on everything that its plan relied on, so
a stale cache costs no more than a refused write and a read. It holds the rows that this process
last wrote or read; rows of other processes may be missing.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from cassq.catalog.cassandra.partition.claim_rows import Key, touches
from cassq.errors import CassqError
from cassq.model.rows import Claim, ClaimState, Cursor

KEPT_MOST = 4096  # partitions


class PendingChanges:
    """A thread's changes; the next holder of the lock makes those of all waiting threads."""

    def __init__(self, changes: Sequence[tuple[Claim, Sequence[Claim]]]) -> None:
        self.changes = changes
        self.results: list[bool] | None = None
        self.error: CassqError | None = None

    @property
    def over(self) -> bool:
        return self.results is not None or self.error is not None

    def answer(self) -> list[bool]:
        """The results; raises the error if it failed."""
        if self.error is not None:
            raise self.error
        assert self.results is not None
        return self.results


class PartitionCache:
    """One partition as last seen. `lock` is held while planning, and for each change of what is
    cached; `due_ms` is read without it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.lock: threading.Lock = threading.Lock()
        self.cursor: Cursor | None = None
        self.rows: dict[int, Claim] = {}
        self.starts: list[int] = []  # of the rows, sorted
        self.requests: list[PendingChanges] = []  # of threads waiting for `lock`
        self.write_ms: float = 0.0  # moving average of a conditional batch
        self.refused = 0  # consecutive claims that were refused
        self.places: dict[int, int] = {}  # positions of seqs where claims begin or will begin
        self.doubtful = False  # the outcome of a write is unknown, and not yet read back
        self.read_ms: int | None = None  # boot time of the last complete read
        self.asked_ms = 0  # boot time when the last read for due claims began
        self.changed_ms: int = 0  # boot time when a change was last seen
        self.writes: int = 0
        self.writes_when_read: int = 0
        self.touching: int = 0  # adjacent done rows in the last complete read
        self._changes = 0
        self._due: tuple[int, int | None] | None = None  # a count of changes, and `due_ms` then

    def load(self, cursor: Cursor | None, rows: Sequence[Claim], now_ms: int) -> None:
        """Take in a complete read."""
        found = {row.start: row for row in rows}
        if cursor != self.cursor or found != self.rows:
            self.changed_ms = now_ms
        self.cursor = cursor
        self.rows = found
        self.starts = sorted(found)
        self.touching = sum(map(touches, rows, rows[1:]))
        self.read_ms = now_ms
        self.writes_when_read = self.writes
        self._changes += 1
        self._seen()

    def see(self, cursor: Cursor) -> None:
        """Take in a cursor that the caller has read."""
        here = self.cursor
        if here is None or (
            (cursor.ack.seq, cursor.chain.seq, cursor.epoch)
            >= (here.ack.seq, here.chain.seq, here.epoch)
        ):
            self.cursor = cursor
            self._seen()

    def forget(self) -> None:
        """Forget everything."""
        self.cursor, self.rows, self.starts, self.read_ms = None, {}, [], None
        self.places.clear()
        self._changes += 1

    def change(self, cursor: Cursor, gone: Sequence[int], put: Iterable[Claim]) -> None:
        """Take in a write."""
        self.touching = max(0, self.touching - len(gone))
        for start in gone:
            if self.rows.pop(start, None) is not None:
                del self.starts[bisect_left(self.starts, start)]
        for row in put:
            if row.start not in self.rows:
                insort(self.starts, row.start)
            self.rows[row.start] = row
        self.cursor = cursor
        self.writes += 1
        self._changes += 1
        self._seen()

    def before(self, start: int) -> Claim | None:
        """The last row that begins before a seq."""
        at = bisect_left(self.starts, start)
        return self.rows[self.starts[at - 1]] if at else None

    @property
    def ack_seq(self) -> int:
        """The lower bound of the next read."""
        return self.cursor.ack.seq if self.cursor is not None else 0

    @property
    def due_ms(self) -> int | None:
        """When the first cached open row comes due."""
        changes, due = self._changes, self._due
        if due is None or due[0] != changes:
            # Another thread may change the rows meanwhile: it counts that after it has done so.
            rows = list(self.rows.values())
            times = (row.due_ms for row in rows if row.state is not ClaimState.DONE)
            due = self._due = changes, min(times, default=None)
        return due[1]

    def _seen(self) -> None:
        """Keep the chain's place, and drop everything below the ack offset."""
        if self.cursor is None:
            return
        chain, ack = self.cursor.chain, self.cursor.ack.seq
        self.places[chain.seq] = chain.pos
        while self.starts and self.starts[0] < ack:
            del self.rows[self.starts.pop(0)]
            self._changes += 1
        if len(self.places) > 2 * len(self.starts) + 16:
            bounds = {row.end for row in self.rows.values()} | {chain.seq}
            self.places = {seq: pos for seq, pos in self.places.items() if seq in bounds}


class GroupPipes:
    """The pipes in which a group has cursors, as last listed."""

    def __init__(self) -> None:
        self.pipe_ids: dict[str, None] = {}
        self.read_ms: int | None = None
        self.asked_ms = 0  # when the last listing began


class PartitionCaches:
    """The most recently used partitions, up to `KEPT_MOST`."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, PartitionCache] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: Key) -> PartitionCache:
        with self._lock:
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = PartitionCache(key)
                self._make_room()
            self._known.move_to_end(key)
            return known

    def drop(self, key: Key) -> None:
        with self._lock:
            self._known.pop(key, None)

    def _make_room(self) -> None:
        for key in list(self._known)[: len(self._known) - KEPT_MOST]:
            if not self._known[key].lock.locked():
                del self._known[key]
