"""Merging and purging: returns dead letters to their group, or deletes them.

A merge of everything moves each pipe that was never claimed from as a whole: one compare-and-set
re-points it to the group, however many letters it holds. Letters of other pipes are copied in
batches by the protocol of `cassq.lifecycle.moves`: four blocking writes per batch, however many
letters it has. A purge marks its letters done: one write for each run of letters in the same state,
or for each batch if there is a filter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cassq.dead_letters.bulk_job import BATCH_BYTES, BulkJob, LetterBatch, PipeTarget
from cassq.dead_letters.letters import Filter
from cassq.errors import CassqError, OwnershipError
from cassq.extents.port import Slice
from cassq.lifecycle.expiry import cut_out
from cassq.lifecycle.moves import Intents, finish_own, held_by, removals, settle
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.batches import Batch, Intend
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.ledger import Unfinished
from cassq.model.rows import Claim, GroupRow, PipeRow, Reason

logger: logging.Logger = logging.getLogger("cassq")

# Pushes a batch; passes its places to `Intend` first.
Append = Callable[[Batch, Intend], object]


class Merging(BulkJob):
    """Moves dead letters back to `group`, and only to it; None: to where `append` pushes. ring:
    wakes the group's poppers. as_new: their push time becomes the present, so that age limits count
    from now."""

    def __init__(
        self,
        ports: Ports,
        letters: GroupRow,
        where: Filter,
        *,
        group: GroupRow | None,
        append: Append,
        ring: Callable[[], None],
        as_new: bool = False,
        **how: Any,
    ) -> None:
        super().__init__(ports, letters, where, **how)
        self._group = group
        self._append = append
        self._ring = ring
        self._as_new = as_new
        self._owner = self._version()
        # If the dead-letter queue has other groups, these keep the letters: then they are copied.
        readers = self._catalog.queues.groups(letters.queue_id)
        self._may_repoint = where.is_empty and len(readers) == 1 and not as_new
        if self._may_repoint and self._has_key_lanes():
            self._may_repoint = False

    def _has_key_lanes(self) -> bool:
        """Whether the group's queue has a pipe of its own for each key lane."""
        row = None if self._group is None else self._catalog.queues.by_id(self._group.queue_id)
        return row is not None and row.policy.key_lanes > 1

    def _whole(self, pipe: PipeRow, end: Place) -> bool:
        if self._group is None or not self._may_repoint or pipe.timer_ms is not None:
            return False
        if not self._limiter.is_off and (pipe.end is None or end.seq > self._limiter.room()):
            return False
        cursor = self._catalog.claims.cursor(self._letters.id, pipe.id)
        if cursor is None or cursor.chain.seq > 0:
            return False
        if not self._dry_run:
            # Its pusher continues in another pipe.
            sealed = end if pipe.end else seal_pipe(self._catalog, self._ports.store, pipe.id)
            if sealed is None:
                return True  # it was retired, or merged by another
            if not self._catalog.pipes.repoint(pipe.id, self._group.queue_id, self._group.id):
                return False
            end = sealed
            self._ring()
        self.outcome.pipes += 1
        self._count(end.seq)
        return True

    def _handle(self, spot: PipeTarget, part: Unfinished, chosen: LetterBatch) -> bool:
        held = self._take(spot, part, chosen.end)
        if held is None:
            return False
        intents = Intents(self._catalog, held, list(chosen.seqs), Reason.MERGED)
        try:
            now_ms = self._ports.clock.wall_ms() if self._as_new else None
            self._append(_batch(chosen.slices, spot.pipe, now_ms), intents)
        except OwnershipError:
            return False  # our claim had expired: another process finishes the move
        except CassqError:
            self._finish_own(held)
            raise
        # If the claim is no longer ours, its new holder finds them all in their new place.
        settle(self._ports, held, chosen.seqs, intents.moves.values())
        return True

    def _finish_own(self, held: Claim) -> None:
        """Called after a failed push: mark the letters that arrived as done, and free the others,
        if that is possible now."""
        try:
            finish_own(self._ports, held)
        except CassqError as exc:
            logger.warning("letters of pipe %s are left for later: %s", held.pipe_id, exc)

    def _take(self, spot: PipeTarget, part: Unfinished, end: Place) -> Claim | None:
        """Claim everything of a part below `end`, as a mover. None if others were faster."""
        now_ms = self._catalog.now_ms()
        if part.row is None:
            found = self._unclaimed(spot, part, end)
            if found is None:
                return None
            cursor, free = found
            held = held_by(free, self._owner, now_ms, self._version)
            return held if self._catalog.claims.claim(cursor, end, [held]) else None
        mine, rows = claims.taken(part.row, end, self._owner, 0, self._version)
        free = replace(part.row, end=mine.end, acked=mine.acked)
        held = held_by(free, self._owner, now_ms, self._version)
        return held if self._catalog.claims.replace(part.row, [held, *rows[1:]]) else None


class Purging(BulkJob):
    """Deletes dead letters."""

    def _whole(self, pipe: PipeRow, end: Place) -> bool:
        return False  # each of its parts is done as a whole

    def _choose(
        self,
        spot: PipeTarget,
        part: Unfinished,
        left: RangeSet,
        room: int,
        bytes_max: int = BATCH_BYTES,
    ) -> LetterBatch:
        if self._where.is_empty and self._limiter.is_off:
            end = spot.end if part.row is None else Place(part.row.end, part.row.pos)
            return LetterBatch(left, end, end.seq, [])
        return super()._choose(spot, part, left, room, bytes_max)

    def _handle(self, spot: PipeTarget, part: Unfinished, chosen: LetterBatch) -> bool:
        if part.row is not None:
            return cut_out(self._ports, part.row, chosen.seqs, Reason.PURGED)
        found = self._unclaimed(spot, part, chosen.end)
        if found is None:
            return False
        cursor, free = found
        rows = claims.resolved(free, chosen.seqs, [], self._version)
        removed = removals(free, chosen.seqs, Reason.PURGED, self._catalog.now_ms())
        return self._catalog.claims.claim(cursor, chosen.end, rows, removed=removed, synced=True)


def _batch(slices: list[Slice], pipe: PipeRow, now_ms: int | None) -> Batch:
    """The batch that pushes letters of a pipe again unchanged, under their original ids. now_ms:
    their new push time; None: they keep theirs."""
    payloads: list[bytes] = []
    times: list[int] = []
    headers: list[bytes | None] = []
    keys: list[bytes | None] = []
    ids: list[bytes | None] = []
    for frame, first, last in slices:
        payloads += frame.payloads(first, last)
        times += map(frame.time_ms, range(first, last))
        headers += _column(frame.headers, first, last)
        keys += _column(frame.keys, first, last)
        ids += (frame.id_at(at, pipe.id) for at in range(first, last))
    sent_ms = times if now_ms is None else [now_ms] * len(times)
    return Batch(payloads, sent_ms, headers, keys, ids, priority=pipe.priority)


def _column(column: list[bytes | None] | None, first: int, last: int) -> list[bytes | None]:
    return column[first:last] if column else [None] * (last - first)
