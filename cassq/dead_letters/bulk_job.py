"""Bulk jobs: one rate-limited run over the dead letters of a group, and its outcome.

A run goes through the pipes that exist when it starts, oldest first, and processes the letters that
no consumer holds. Letters that consumers hold are only counted; a move that was interrupted is
finished first. To continue a run that ended early or crashed, run it again.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from cassq.base.clock import Clock
from cassq.dead_letters.letters import Filter, parts_of
from cassq.errors import CassqError, CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader, Slice
from cassq.lifecycle.moves import finish, slices_of
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, live_pipe
from cassq.message.frames import Frame, Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.ledger import Fate, Unfinished, is_held
from cassq.model.rows import Claim, Cursor, GroupRow, PipeRow

logger: logging.Logger = logging.getLogger("cassq")

BATCH_MESSAGES = 4096
BATCH_BYTES = 4 * 1024 * 1024
TRIES_MAX = 32
WAIT_SECONDS = 0.25
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class BulkOutcome:
    """What a merge or purge has done; after a dry run, what it would do.

    messages: how many were merged or purged. pipes: how many pipes were moved as a whole. held:
    selected letters that were left because a consumer of the dead letters, or another merge, has
    them. broken: pipes that cannot be read, and why. complete: False if it ended before the last
    pipe.
    """

    messages: int = 0
    pipes: int = 0
    held: int = 0
    broken: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def plus(self, other: BulkOutcome) -> BulkOutcome:
        """The outcome of both; complete if both are."""
        return BulkOutcome(
            self.messages + other.messages,
            self.pipes + other.pipes,
            self.held + other.held,
            self.broken | other.broken,
            self.complete and other.complete,
            self.dry_run,
        )


# Called after each step with the outcome so far; returning True ends the job there.
Watch = Callable[[BulkOutcome], bool]


class RateLimiter:
    """Limits a job to a rate and a total of messages, and ends it on request.

    rate: messages a second; None: as fast as possible. limit: messages in all.
    """

    def __init__(
        self, clock: Clock, rate: float | None, limit: int | None, wants_end: Callable[[], bool]
    ) -> None:
        self._clock = clock
        self._rate = rate
        self._left = _NO_LIMIT if limit is None else limit
        self._wants_end = wants_end
        self._begun_ms = clock.boot_ms()
        self._count = 0

    @property
    def is_off(self) -> bool:
        """Whether there is neither a rate nor a limit."""
        return self._rate is None and self._left >= _NO_LIMIT // 2

    def room(self) -> int:
        """How many messages may be processed next; waits if the rate requires it. 0: no more."""
        while not self._wants_end():
            if self._rate is None:
                return self._left
            due_ms = self._begun_ms + self._count * 1000 / self._rate
            wait_ms = due_ms - self._clock.boot_ms()
            if wait_ms <= 0 or self._left <= 0:
                return min(self._left, max(1, int(self._rate)))
            self._clock.sleep(min(wait_ms / 1000, WAIT_SECONDS))
        return 0

    def used(self, count: int) -> None:
        """Record that `count` messages were processed."""
        self._count += count
        self._left -= count


class LetterBatch(NamedTuple):
    """Letters of a part that are processed together. end: the place after the last of them. stop:
    all letters below this seq were examined."""

    seqs: RangeSet
    end: Place
    stop: int
    slices: list[Slice]


class PipeTarget(NamedTuple):
    """A pipe that is processed, up to `end`."""

    pipe: PipeRow
    end: Place
    reader: ExtentReader


class BulkJob(abc.ABC):
    """One run over the dead letters of a group. letters: the group of the dead-letter queue."""

    def __init__(
        self,
        ports: Ports,
        letters: GroupRow,
        where: Filter,
        *,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        watch: Watch | None = None,
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._version = ports.ids.version
        self._letters = letters
        self._where = where
        self._dry_run = dry_run
        self._watch = watch
        self._cut_short = False
        self.outcome: BulkOutcome = BulkOutcome(dry_run=dry_run)
        # A rate does not slow down a dry run.
        rate = None if dry_run else rate
        self._limiter = RateLimiter(ports.clock, rate, limit, self._wants_end)

    def _wants_end(self) -> bool:
        return self._watch is not None and self._watch(self.outcome)

    def run(self) -> BulkOutcome:
        """Process every pipe that exists now; return what was done."""
        for pipe in self._catalog.pipes.live(self._letters.queue_id):
            if self._cut_short or self._limiter.room() <= 0:
                return self.outcome
            if not pipe.is_for(self._letters.id):
                continue
            try:
                end = end_of(self._catalog, self._ports.store, pipe)
                if end.seq and not self._whole(pipe, end):
                    self._part_by_part(pipe, end)
            except (ExtentMissingError, CorruptionError) as exc:
                self._set_aside(pipe, exc)
        self.outcome.complete = not self._cut_short
        return self.outcome

    def _set_aside(self, pipe: PipeRow, exc: CassqError) -> None:
        """Record that a pipe cannot be read, unless it was retired meanwhile."""
        if live_pipe(self._catalog, pipe.id) is not None:
            self.outcome.broken[pipe.id] = str(exc)

    def _count(self, count: int) -> None:
        self.outcome.messages += count
        self._limiter.used(count)

    @abc.abstractmethod
    def _whole(self, pipe: PipeRow, end: Place) -> bool:
        """Process a pipe as a whole, if possible. Returns whether that was done."""

    @abc.abstractmethod
    def _handle(self, spot: PipeTarget, part: Unfinished, chosen: LetterBatch) -> bool:
        """Process letters of a part; False if another process had it by then."""

    def _part_by_part(self, pipe: PipeRow, end: Place) -> None:
        spot = PipeTarget(pipe, end, self._ports.store.reader(pipe.id))
        try:
            at, tries = 0, 0
            while tries < TRIES_MAX:
                room = self._limiter.room()
                self._cut_short = room <= 0
                step = None if self._cut_short else self._step(spot, at, room)
                if step is None:
                    return
                tries = tries + 1 if step == at else 0
                at = step
            logger.warning("pipe %s: other processes keep changing its claims", pipe.id)
        finally:
            spot.reader.close()

    def _step(self, spot: PipeTarget, at: int, room: int) -> int | None:
        """Process the next letters from seq `at` on. Returns the seq below which all are done; `at`
        if another process was faster; None if there are no more letters."""
        for part in parts_of(self._ports, self._letters, spot.pipe, spot.end.seq):
            left = part.seqs - RangeSet.run(0, at)
            if not left:
                continue
            row = part.row
            if row is not None and self._is_left_over(row):
                finish(self._ports, row)
                return at
            if row is not None and (part.fate is Fate.PENDING or claims.is_leaving(row)):
                self.outcome.held += self._count_meant(spot, part, left)
                return left.ranges[-1][1]
            chosen = self._choose(spot, part, left, room)
            if chosen.seqs:
                if not self._dry_run and not self._handle(spot, part, chosen):
                    return at
                self._count(len(chosen.seqs))
            return chosen.stop
        return None

    def _is_left_over(self, row: Claim) -> bool:
        """Whether these are part of a move that was interrupted: its deadline has passed."""
        if self._dry_run or not claims.is_moving(row):
            return False
        return not is_held(row, self._catalog.now_ms())

    def _count_meant(self, spot: PipeTarget, part: Unfinished, left: RangeSet) -> int:
        if self._where.is_empty:
            return len(left)
        return len(self._choose(spot, part, left, _NO_LIMIT, bytes_max=_NO_LIMIT).seqs)

    def _choose(
        self,
        spot: PipeTarget,
        part: Unfinished,
        left: RangeSet,
        room: int,
        bytes_max: int = BATCH_BYTES,
    ) -> LetterBatch:
        """The first selected letters of a part, at most a batch."""
        now_ms, pipe_id = self._ports.clock.wall_ms(), spot.pipe.id
        room = min(room, BATCH_MESSAGES) if bytes_max == BATCH_BYTES else room
        slices: list[Slice] = []
        kept: Frame | None = None
        spans: list[tuple[int, int]] = []
        end, stop, count, size = part.start, part.start.seq, 0, 0
        for place, (frame, first, last) in slices_of(spot.reader, part.start, left):
            picked = self._where.picked(frame, first, last, pipe_id, now_ms)
            for a, b in picked.ranges:
                b = min(b, a + room - count)
                slices.append(Slice(frame, a, b))
                spans.append((frame.base_seq + a, frame.base_seq + b))
                end = Place(frame.base_seq + b, place.pos)
                count += b - a
                if count >= room:
                    return LetterBatch(RangeSet(spans), end, end.seq, slices)
            if picked and frame is not kept:
                kept = frame
                size += frame.size
            stop = frame.base_seq + last
            if size >= bytes_max:
                break
        return LetterBatch(RangeSet(spans), end, stop, slices)

    def _unclaimed(
        self, spot: PipeTarget, part: Unfinished, end: Place
    ) -> tuple[Cursor, Claim] | None:
        """The cursor, and the letters up to `end` that were never claimed, as a row that is not
        written yet; None if others have claimed some of them."""
        cursor = self._catalog.claims.cursor(self._letters.id, spot.pipe.id)
        if cursor is None or cursor.chain.seq != part.start.seq:
            return None
        return cursor, claims.unclaimed(cursor, end, self._version, spot.pipe.priority)
