"""Skipping: gives up unreadable messages, on command, so that those after them are delivered.

Unreadable messages are recorded as lost, for each group that has not received them, and readable
ones after them are delivered. Only claim rows change, by conditional writes, so a skip may stop
anywhere and be repeated; no frame is ever written.

Invariant: the store finds the next whole frame after the damage, and every claim row after the
damage begins at that frame or later, so that no reader has to read through the damage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from cassq.base.clock import attempts, contended
from cassq.errors import CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.damage import (
    DamagedRange,
    GroupDamage,
    PipeDamage,
    damaged_ranges,
    groups_of,
    look_into,
    missing_end,
    pipe_in,
    report_of,
    unreadable,
)
from cassq.lifecycle.moves import removals
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seal_pipe
from cassq.lifecycle.timers import runs_between
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.ledger import is_held
from cassq.model.rows import (
    NOTED_MS,
    Claim,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    QueueRow,
    Reason,
    Sample,
)

logger = logging.getLogger("cassq")


class ReadableRange(NamedTuple):
    """Readable messages `[start, end)`. pos: of the first frame."""

    start: int
    end: int
    pos: int


def skip(ports: Ports, queue: QueueRow, pipe_id: str, *, dry_run: bool = False) -> PipeDamage:
    """Skip the damage in a pipe: record unreadable messages as lost for each existing group that
    has not received them, so that readable ones are delivered.

    A pipe that is still written to is sealed first; its pusher continues in another one. Consumers
    keep the messages that they hold, which are counted as `held`: skip again once they have
    finished them. Raises UsageError if the queue has no such pipe. Cost: that of `look_into`; for
    each group one synced write, and one for each claim row in or after the damage.
    """
    if dry_run:
        return look_into(ports, queue, pipe_id)
    pipe = pipe_in(ports, queue, pipe_id)
    restored = False
    try:
        restored = ports.store.restore_identity(pipe_id, queue.name)
        if restored:
            logger.warning("the header of pipe %s was rewritten", pipe_id)
    except ExtentMissingError:
        logger.warning("pipe %s is missing: all its messages are lost", pipe_id)
    end = _sealed(ports, queue, pipe)
    stretches, _ = damaged_ranges(ports, pipe, end.seq)
    found = report_of(ports, queue, pipe, end.seq, stretches, "")
    groups: dict[str, GroupDamage] = {}
    for group in groups_of(ports, queue, pipe) if stretches else ():
        lost = _Skipping(ports, group, pipe, end, stretches).run()
        groups[group.name] = replace(found.groups[group.name], lost=lost)
        if lost:
            now_ms = ports.catalog.now_ms()
            data = f'{{"lost": {lost}}}'
            ports.catalog.records.add_samples([Sample(f"lost:{group.id}", NOTED_MS, now_ms, data)])
    skipped = restored or bool(stretches)
    return replace(found, groups=groups or found.groups, skipped=skipped)


def _sealed(ports: Ports, queue: QueueRow, pipe: PipeRow) -> Place:
    """The final end of a pipe; if its extent is missing, as far as is known."""
    try:
        end = seal_pipe(ports.catalog, ports.store, pipe.id)
    except (ExtentMissingError, CorruptionError):
        known = missing_end(ports, queue, pipe, fence=True)
        end = ports.catalog.pipes.record_end(pipe.id, known)
    if end is None:
        raise UsageError(f"pipe {pipe.id} was retired meanwhile: no messages are left in it")
    return end


class _Skipping:
    """Records damage as lost for one group."""

    def __init__(
        self,
        ports: Ports,
        group: GroupRow,
        pipe: PipeRow,
        end: Place,
        stretches: Sequence[DamagedRange],
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._key = group.id, pipe.id
        self._pipe = pipe
        self._end = end
        self._damaged = unreadable(stretches)
        self._runs = list(_runs(stretches, end.seq))
        self._last = stretches[-1]

    def run(self) -> int:
        """Record the damage; return how many messages were given up."""
        lost = 0
        for _ in attempts(self._ports.clock):
            cursor = self._catalog.claims.cursor(*self._key)
            if cursor is None:
                return lost  # it was retired
            rows = self._catalog.claims.rows(*self._key)
            done = True
            for row in rows:
                if row.state is ClaimState.DONE or is_held(row, self._catalog.now_ms()):
                    continue
                if self._is_in_the_way(row):
                    given_up = self._cut(row)
                    done &= given_up is not None
                    lost += given_up or 0
            if cursor.chain.seq < self._last.end:
                given_up = self._claim(cursor)
                done &= given_up is not None
                lost += given_up or 0
            if done:
                return lost
        hint = "try again: it continues where it stopped"
        raise contended(f"the claims of pipe {self._pipe.id}", hint=hint)

    def _is_in_the_way(self, row: Claim) -> bool:
        """Whether a row contains damage, or would be read from a place before the damage."""
        return bool(self._damaged.within(row.start, row.end)) or any(
            piece.pos > row.pos for piece in self._whole(row.start, row.end)[:1]
        )

    def _cut(self, row: Claim) -> int | None:
        """Split a row: damaged messages become done, readable ones get rows of their own. Return
        how many messages were given up; None if another process was faster."""
        version = self._ports.ids.version
        bad = row.left & self._damaged
        rows: list[Claim] = []
        for start, end in self._damaged.within(row.start, row.end).ranges:
            rows += claims.as_dead(replace(row, start=start, end=end), version)
        for piece in self._whole(row.start, row.end):
            acked = row.acked.within(piece.start, piece.end)
            part = replace(row, start=piece.start, end=piece.end, acked=acked, version=version())
            part = replace(part, pos=max(row.pos, piece.pos))
            rows += [part] if part.left else claims.as_dead(part, version)
        moves = self._unsettled(row, bad)
        if claims.is_leaving(row) and not moves:
            rows = [claims.unmarked(each) for each in rows]
        facts = removals(row, bad, Reason.LOST, self._catalog.now_ms())
        rows.sort(key=lambda each: each.start)
        if not self._catalog.claims.replace(row, rows, removed=facts, withdraw=moves):
            return None
        return len(bad)

    def _unsettled(self, row: Claim, bad: RangeSet) -> list[Move]:
        """Unfinished moves of given-up messages: whether they arrived can no longer be known."""
        if not bad or not claims.is_leaving(row):
            return []
        moves = self._catalog.claims.moves(*self._key, range(row.start, row.end))
        return [move for move in moves if not move.settled and move.seq in bad]

    def _claim(self, cursor: Cursor) -> int | None:
        """Move the chain past the damage; readable messages before it get rows of their own."""
        version, start, end = self._ports.ids.version, cursor.chain.seq, self._last.end
        place = self._last.after or self._end
        pattern = claims.unclaimed(cursor, Place(end, place.pos), version, self._pipe.priority)
        rows: list[Claim] = []
        bad = self._damaged.within(start, end)
        for first, last in bad.ranges:
            rows += claims.as_dead(replace(pattern, start=first, end=last), version)
        for piece in self._whole(start, end):
            pos = max(cursor.chain.pos, piece.pos)
            rows += self._waiting(pattern, piece._replace(pos=pos))
        rows.sort(key=lambda each: each.start)
        facts = removals(pattern, bad, Reason.LOST, self._catalog.now_ms())
        chain = Place(end, place.pos)
        if not self._catalog.claims.claim(cursor, chain, rows, removed=facts, synced=True):
            return None
        return len(bad)

    def _waiting(self, pattern: Claim, piece: ReadableRange) -> list[Claim]:
        """Free rows for what was never claimed; in a timer pipe, each free from its due time on."""
        version = self._ports.ids.version
        if self._pipe.timer_ms is None:
            times = [(*piece, 0)]
        else:
            times = runs_between(
                self._ports, self._pipe.id, Place(piece.start, piece.pos), piece.end
            )
        return [
            replace(pattern, start=start, end=end, pos=pos, due_ms=due_ms, version=version())
            for start, end, pos, due_ms in times
        ]

    def _whole(self, start: int, end: int) -> list[ReadableRange]:
        """The readable ranges in `[start, end)`."""
        return [
            ReadableRange(max(start, run.start), min(end, run.end), run.pos)
            for run in self._runs
            if run.start < end and run.end > start
        ]


def _runs(stretches: Sequence[DamagedRange], end_seq: int) -> Iterator[ReadableRange]:
    """The ranges between damage, each from its first frame on."""
    start = Place(0, 0)
    for each in stretches:
        if start.seq < each.start:
            yield ReadableRange(start.seq, each.start, start.pos)
        if each.after is None:
            return
        start = each.after
    if start.seq < end_seq:
        yield ReadableRange(start.seq, end_seq, start.pos)
