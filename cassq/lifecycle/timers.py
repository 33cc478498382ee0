"""Timer pipes: delayed messages, and how they come due.

A delayed message is pushed to a timer pipe, whose frames have a due time for each message. It is
then *scheduled* for every group: its run (consecutive messages with one due time) gets a claim row
that is free from the due time on. After that it is like any message that waits for redelivery.

Timer pipes come in lanes (`cassq.model.lanes`). Each pipe records its earliest due time and is read
only when that time is near, so messages that are due much later cost a pop nothing.

Invariants:
1. A message is scheduled for a group by moving the chain of its cursor, in one transaction with
   the rows: exactly once, whichever process does it.
2. Nothing is delivered before its due time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from cassq.base.sharing import BESIDE_MS, answered
from cassq.errors import CassqError, CorruptionError
from cassq.extents.port import (
    ExtentMissingError,
    ExtentReader,
    ExtentUnavailableError,
    Slice,
)
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.rows import Cursor, GroupRow, PipeRow

logger: logging.Logger = logging.getLogger("cassq")

READERS_MAX = 64
HORIZON_MS = 60_000  # how near a pipe's earliest due time must be for it to be read
LISTED = 256
KINDS_KEPT = 4096
ROWS_AT_ONCE = 4096

Run = tuple[int, int, int, int]  # start, end, pos, due_ms


class _Timer:
    """A timer pipe as one group sees it."""

    __slots__ = ("cursor", "reader", "row")

    def __init__(self, row: PipeRow) -> None:
        self.row = row
        self.reader: ExtentReader | None = None
        self.cursor: Cursor | None = None


class Timers:
    """Schedules the messages that are nearly due in a queue's timer pipes, for one group. wanted:
    says whether to look at a pipe; None: at every one."""

    def __init__(
        self, ports: Ports, group: GroupRow, wanted: Callable[[PipeRow], bool] | None = None
    ) -> None:
        self._ports = ports
        self._wanted = wanted
        self._catalog = ports.catalog
        self._group = group
        self.known: dict[str, _Timer] = {}  # the listed timer pipes, by id
        self._limit = LISTED
        self._kinds: dict[str, bool] = {}
        self.broken: list[tuple[str, CassqError]] = []  # unreadable pipes, to set aside

    def refresh(self, *, old_ms: int = 0) -> None:
        """List the timer pipes that are nearly due again, as `CandidatePipes.refresh` does. Cost:
        one query of a partial index."""
        rows = self._listed(old_ms)
        while len(rows) == self._limit:  # open pipes stay listed, even if fully scheduled
            self._limit *= 2
            rows = self._listed(old_ms)
        if self._wanted is not None:
            rows = list(filter(self._wanted, rows))
        timers = {row.id: self.known.get(row.id) or _Timer(row) for row in rows}
        for row in rows:
            timers[row.id].row = row
        for pipe_id in self.known.keys() - timers.keys():
            _close(self.known[pipe_id])
        self.known = timers

    def _listed(self, old_ms: int) -> list[PipeRow]:
        limit = self._limit

        def ask() -> list[PipeRow]:
            until_ms = self._catalog.now_ms() + HORIZON_MS
            return self._catalog.pipes.timers(self._group, until_ms, limit)

        key = "timers", self._group.id, limit
        boot_ms = self._ports.clock.boot_ms
        beside_ms = BESIDE_MS if old_ms else 0
        sharing = self._ports.sharing
        return answered(sharing, key, ask, boot_ms, old_ms=old_ms, beside_ms=beside_ms).value

    def has_news(self) -> bool:
        """Whether a known timer pipe has messages that are not scheduled. Reads only memory."""
        for timer in list(self.known.values()):
            reader, cursor = timer.reader, timer.cursor  # another thread may be scheduling
            if reader is None or cursor is None or timer.row.end is not None:
                continue
            if reader.published().seq > cursor.chain.seq:
                return True
        return False

    def owns(self, pipe_id: str) -> bool:
        """Whether a pipe is a timer pipe. Cost: one read per pipe, cached."""
        known = self._kinds.get(pipe_id)
        if known is None:
            row = self._catalog.pipes.by_id(pipe_id)
            known = row is not None and row.timer_ms is not None
            if len(self._kinds) >= KINDS_KEPT:
                self._kinds.clear()
            self._kinds[pipe_id] = known
        return known

    def schedule(self) -> None:
        """Schedule new messages. Cost: one unsynced transaction for up to 4,096 runs."""
        for timer in list(self.known.values()):
            try:
                self._schedule(timer)
            except (ExtentMissingError, CorruptionError) as exc:
                self._forget(timer)
                self.broken.append((timer.row.id, exc))
            except ExtentUnavailableError as exc:
                logger.warning("delayed messages cannot be scheduled yet: %s", exc)
        # Readers stay open for `has_news`; those beyond the limit are opened again each time.
        for timer in [timer for timer in self.known.values() if timer.reader][:-READERS_MAX]:
            _close(timer)

    def _schedule(self, timer: _Timer) -> None:
        while True:
            cursor = timer.cursor or self._catalog.claims.cursor(self._group.id, timer.row.id)
            if cursor is None:
                self._forget(timer)  # it was retired
                return
            timer.cursor = cursor
            end = timer.row.end
            if end is not None and cursor.chain.seq >= end.seq:
                _close(timer)  # fully scheduled
                return
            if timer.reader is None:
                timer.reader = self._ports.store.reader(timer.row.id)
            end_seq = (end or timer.reader.published()).seq
            if cursor.chain.seq >= end_seq:
                return
            timer.cursor = schedule_next(self._ports, timer.row, timer.reader, cursor, end_seq)

    def _forget(self, timer: _Timer) -> None:
        self.known.pop(timer.row.id, None)
        _close(timer)

    def close_dropped(self) -> None:
        """Close the pipes that were retired since the last listing."""
        for timer in list(self.known.values()):
            if timer.reader is not None and timer.reader.dropped():
                _close(timer)

    def close(self) -> None:
        """Release file handles and mappings."""
        while self.known:
            _close(self.known.popitem()[1])


def _close(timer: _Timer) -> None:
    if timer.reader is not None:
        timer.reader.close()
        timer.reader = None


def schedule_pipe(ports: Ports, group: GroupRow, pipe: PipeRow) -> None:
    """Schedule the next messages of a timer pipe for a group. Raises as `reader` and `read` do."""
    reader = ports.store.reader(pipe.id)
    try:
        cursor = ports.catalog.claims.cursor(group.id, pipe.id)
        end_seq = (pipe.end or reader.published()).seq
        if cursor is not None and cursor.chain.seq < end_seq:
            schedule_next(ports, pipe, reader, cursor, end_seq)
    finally:
        reader.close()


def schedule_next(
    ports: Ports, pipe: PipeRow, reader: ExtentReader, cursor: Cursor, end_seq: int
) -> Cursor | None:
    """Schedule the messages after the end of the chain. Returns the new cursor, or None if another
    process was faster."""
    runs, chain = _next_runs(reader, cursor.chain, end_seq)
    rows = claims.scheduled(cursor, runs, ports.ids.version, pipe.priority)
    return replace(cursor, chain=chain) if ports.catalog.claims.claim(cursor, chain, rows) else None


def runs_between(ports: Ports, pipe_id: str, start: Place, end_seq: int) -> list[Run]:
    """A timer pipe's runs of equal due times from `start` to `end_seq`. Raises as `reader` and
    `read` do. Cost: reads the messages between."""
    reader = ports.store.reader(pipe_id)
    try:
        found: list[Run] = []
        while start.seq < end_seq:
            runs, start = _next_runs(reader, start, end_seq)
            found += runs
        return found
    finally:
        reader.close()


def _next_runs(reader: ExtentReader, start: Place, end_seq: int) -> tuple[list[Run], Place]:
    """The next runs of equal due times from `start` on, and the place after them."""
    runs: list[Run] = []
    place = start
    while place.seq < end_seq and len(runs) < ROWS_AT_ONCE:
        slices = reader.read(place, end_seq, end_seq - place.seq, 0)[:1]
        runs += _runs(slices[0], place.pos)
        place = reader.place_after(place, slices)
    return runs, place


def _runs(piece: Slice, pos: int) -> Iterator[Run]:
    frame, first, last = piece
    base = frame.base_seq
    at = first
    due_ms = frame.due_ms(first) or 0
    for index in range(first + 1, last if frame.has_due_times else first):
        next_ms = frame.due_ms(index) or 0
        if next_ms != due_ms:
            yield base + at, base + index, pos, due_ms
            at, due_ms = index, next_ms
    yield base + at, base + last, pos, due_ms
