"""Expiry: messages older than the maximum age are removed instead of delivered.

A popper that is about to claim such a message marks it done instead, and records why, in the
transaction that moves the chain. So the message is never handed out, and the ledger counts it as
expired. The reaper's pass `expire` does the same where no popper claims.

A message's age counts from its push, by its pusher's wall clock, or from its due time if it was
delayed. It is never more than the age of its pipe, which counts in catalog time: so a jump of a
wall clock cannot expire a message before its pipe is that old. A dead letter is as old as its pipe.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter

from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader, Slice
from cassq.lifecycle.moves import removals
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.timers import schedule_next
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow, QueueRow, Reason

logger: logging.Logger = logging.getLogger("cassq")

READ_MESSAGES = 65_536
READ_BYTES = 8 * 1024 * 1024
PIPES_KEPT = 4096


def older(piece: Slice, before_ms: int, pipe_ms: int, wall_offset_ms: int) -> RangeSet:
    """The seqs of a slice whose age counts from `before_ms` or earlier.

    before_ms: catalog time. pipe_ms: when the pipe was opened, in catalog time. wall_offset_ms:
    what must be added to wall time to get catalog time. Cost: one comparison if all messages of the
    frame have one time.
    """
    frame, first, last = piece

    def is_older(index: int) -> bool:
        due_ms = frame.due_ms(index)
        if due_ms is None:
            due_ms = max(frame.time_ms(index) + wall_offset_ms, pipe_ms)
        return due_ms <= before_ms

    if isinstance(frame.times_ms(), int) and not frame.has_due_times:
        if not is_older(first):
            return EMPTY
        return RangeSet.run(frame.base_seq + first, frame.base_seq + last)
    return RangeSet.of(frame.base_seq + at for at in range(first, last) if is_older(at))


def split(slices: Sequence[Slice], old: RangeSet) -> tuple[list[Slice], list[Slice]]:
    """The old messages at the front, and the messages after them up to the next old one."""
    runs: list[tuple[bool, Slice]] = []
    for frame, first, last in slices:
        span = RangeSet.run(frame.base_seq + first, frame.base_seq + last)
        parts = [(start, end, True) for start, end in (span & old).ranges]
        parts += [(start, end, False) for start, end in (span - old).ranges]
        for start, end, is_old in sorted(parts):
            runs.append((is_old, Slice(frame, start - frame.base_seq, end - frame.base_seq)))
    spans = [
        (is_old, [piece for _, piece in part]) for is_old, part in groupby(runs, key=itemgetter(0))
    ]
    head = spans.pop(0)[1] if spans and spans[0][0] else []
    return head, spans[0][1] if spans else []


def plan_expiry(
    pipes: Iterable[PipeRow], group_ids: Sequence[str], before_ms: int
) -> list[tuple[str, PipeRow]]:
    """The (group id, pipe) pairs old enough that some messages may have expired."""
    return [
        (group_id, pipe)
        for pipe in pipes
        if (pipe.created_ms if pipe.timer_ms is None else pipe.timer_ms) <= before_ms
        for group_id in group_ids
        if pipe.is_for(group_id)
    ]


class Expiry:
    """Removes expired messages of one queue. queue: returns its current row."""

    def __init__(self, ports: Ports, queue: Callable[[], QueueRow]) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._queue = queue
        self._opened_ms: dict[str, int] = {}

    def before_ms(self) -> int | None:
        """Messages have expired if their age counts from this catalog time or earlier; None:
        nothing expires."""
        limit_ms = self._queue().policy.age_limit_ms
        return None if limit_ms is None else self._catalog.now_ms() - limit_ms

    # --- unclaimed messages ---------------------------------------------------------------------

    def select(
        self,
        pipe: PipeRow,
        cursor: Cursor,
        reader: ExtentReader,
        slices: list[Slice],
        end_seq: int,
    ) -> tuple[Cursor | None, list[Slice]]:
        """Select the messages to deliver from those read at the cursor's chain end.

        If the first of them have expired, removes those, and selects none: returns the new cursor,
        or None if another popper moved the chain. Cost: none without an age limit, or if the pipe
        is younger than the limit.
        """
        before_ms = self.before_ms()
        if before_ms is None or pipe.created_ms > before_ms:
            return cursor, slices
        head, live = split(slices, self._old(slices, before_ms, pipe.created_ms))
        if not head:
            return cursor, live
        return self.remove_head(pipe, cursor, reader, end_seq, before_ms), []

    def remove_head(
        self,
        pipe: PipeRow,
        cursor: Cursor,
        reader: ExtentReader,
        end_seq: int,
        before_ms: int,
        reason: Reason = Reason.EXPIRED,
    ) -> Cursor | None:
        """Remove old messages from the end of the chain up to the first that is not old. Returns
        the new cursor, or None if another popper moved the chain.

        Cost: one read of the messages, and one unsynced transaction for every 65,536 of them.
        """
        while cursor.chain.seq < end_seq:
            slices = reader.read(cursor.chain, end_seq, READ_MESSAGES, READ_BYTES)
            head, live = split(slices, self._old(slices, before_ms, pipe.created_ms))
            if not head:
                break
            chain = reader.place_after(cursor.chain, head)
            moved = skip(self._ports, cursor, chain, reason)
            if moved is None:
                return None
            cursor = moved
            if live:
                break
        return cursor

    def _old(self, slices: Sequence[Slice], before_ms: int, pipe_ms: int) -> RangeSet:
        offset_ms = self._catalog.now_ms() - self._ports.clock.wall_ms()
        found = [older(piece, before_ms, pipe_ms, offset_ms) for piece in slices]
        return RangeSet(span for seqs in found for span in seqs.ranges)

    # --- scheduled and returned messages --------------------------------------------------------

    def remove_free(
        self, row: Claim, reader: Callable[[str], ExtentReader], *, epoch: int | None = None
    ) -> bool:
        """Remove the expired messages of a free row; return whether there were any.

        Cost: none without an age limit; if the pipe is older than the limit, a read of the row's
        messages, and a synced transaction if any have expired.
        """
        before_ms = self.before_ms()
        if before_ms is None or claims.is_leaving(row):
            return False
        opened_ms = self._opened(row.pipe_id)
        if opened_ms is None or opened_ms > before_ms:
            return False
        old = self.old_of(row, reader(row.pipe_id), before_ms, opened_ms)
        if old:
            cut_out(self._ports, row, old, Reason.EXPIRED, epoch=epoch)
        return bool(old)

    def old_of(self, row: Claim, reader: ExtentReader, before_ms: int, pipe_ms: int) -> RangeSet:
        """The messages left in a claim row that are old."""
        old: list[tuple[int, int]] = []
        pos = row.pos
        for start, end in row.left.ranges:
            place = Place(start, pos)
            while place.seq < end:
                slices = reader.read(place, end, READ_MESSAGES, READ_BYTES)
                old += self._old(slices, before_ms, pipe_ms).ranges
                place = reader.place_after(place, slices)
            pos = place.pos
        return RangeSet(old)

    def _opened(self, pipe_id: str) -> int | None:
        """When a pipe was opened; None if it is gone. Cost: one read per pipe, cached."""
        if pipe_id not in self._opened_ms:
            pipe = self._catalog.pipes.by_id(pipe_id)
            if pipe is None:
                return None
            if len(self._opened_ms) >= PIPES_KEPT:
                self._opened_ms.clear()
            # A delayed message's age does not depend on its pipe's.
            self._opened_ms[pipe_id] = 0 if pipe.timer_ms is not None else pipe.created_ms
        return self._opened_ms[pipe_id]

    # --- the pass -------------------------------------------------------------------------------

    def remove_from(self, group_id: str, pipe: PipeRow, before_ms: int) -> int:
        """Remove a pipe's expired messages for a group; return how many."""
        cursor = self._catalog.claims.cursor(group_id, pipe.id)
        if cursor is None:
            return 0
        reader = self._ports.store.reader(pipe.id)
        try:
            end_seq = (pipe.end or reader.published()).seq
            count = 0
            if pipe.timer_ms is not None:
                while cursor is not None and cursor.chain.seq < end_seq:
                    cursor = schedule_next(self._ports, pipe, reader, cursor, end_seq)
            elif cursor.chain.seq < end_seq:
                after = self.remove_head(pipe, cursor, reader, end_seq, before_ms)
                count += after.chain.seq - cursor.chain.seq if after else 0
            pipe_ms = pipe.created_ms if pipe.timer_ms is None else 0
            for row in self._catalog.claims.rows(group_id, pipe.id):
                if row.state is not ClaimState.FREE or claims.is_leaving(row):
                    continue
                if _not_yet(pipe, row, before_ms):
                    continue
                old = self.old_of(row, reader, before_ms, pipe_ms)
                if old and cut_out(self._ports, row, old, Reason.EXPIRED):
                    count += len(old)
            return count
        finally:
            reader.close()


def _not_yet(pipe: PipeRow, row: Claim, before_ms: int) -> bool:
    """Whether the row alone shows that its messages cannot have expired."""
    return pipe.timer_ms is not None and row.deliveries == 0 and row.due_ms > before_ms


def skip(
    ports: Ports, cursor: Cursor, chain: Place, reason: Reason, *, synced: bool = False
) -> Cursor | None:
    """Remove all messages between the end of the cursor's chain and `chain`. Returns the new
    cursor, or None if another process moved the chain. synced: make it survive a power cut."""
    row = claims.unclaimed(cursor, chain, ports.ids.version)
    facts = removals(row, row.left, reason, ports.catalog.now_ms())
    done = claims.as_dead(row, ports.ids.version)
    if not ports.catalog.claims.claim(cursor, chain, done, removed=facts, synced=synced):
        return None
    return replace(cursor, chain=chain)


def cut_out(
    ports: Ports, row: Claim, seqs: RangeSet, reason: Reason, *, epoch: int | None = None
) -> bool:
    """Remove messages of a claim row; False if the row has changed since it was read."""
    facts = removals(row, seqs, reason, ports.catalog.now_ms())
    rows = claims.resolved(row, seqs, (), ports.ids.version)
    return ports.catalog.claims.replace(row, rows, epoch=epoch, removed=facts)


def expire(ports: Ports, queue: QueueRow) -> int:
    """Remove a queue's expired messages for every group; return how many.

    Cost: none without an age limit. With one, for each pipe that is older and each group, a read of
    the open claims and of the old messages.
    """
    expiry = Expiry(ports, lambda: queue)
    before_ms = expiry.before_ms()
    if before_ms is None:
        return 0
    group_ids = [group.id for group in ports.catalog.queues.groups(queue.id)]
    count = 0
    for group_id, pipe in plan_expiry(ports.catalog.pipes.live(queue.id), group_ids, before_ms):
        try:
            count += expiry.remove_from(group_id, pipe, before_ms)
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("expiry: skipped pipe %s: %s", pipe.id, exc)
    return count
