"""The mend pass: repairs claim rows that have gaps or overlap, without losing a message.

Messages that no row covers are delivered again, unless they are recorded as removed or moved;
messages that several rows cover stay with one of them. Messages that are acked by any row or by
the ack offset stay acked.

Groups that are wedged by such rows are found by reading the cursors of live pipes and their open
claims, at the cost of `Claims.wedged`; retired pipes have neither. A mend replaces all rows of a
(group, pipe) by one compare-and-set that raises the cursor's epoch, so of several concurrent mends
only one succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from cassq.base.clock import attempts
from cassq.catalog.cover import fault, fault_now
from cassq.catalog.port import Catalog
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe, seen_end
from cassq.lifecycle.timers import runs_between
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims, ledger
from cassq.model.queues import rules_of
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow, Reason
from cassq.plurals import counted
from cassq.reaper.actions import Action, PlannedPass, Scope

# Lists the messages in [start, end), from a position on, as runs: (start, end, pos, due time).
Fill = Callable[[int, int, int], Sequence[tuple[int, int, int, int]]]
# How often a long-running reaper checks all queues.
EVERY_MS = 60_000


class Wedge(NamedTuple):
    """A group whose claims in a pipe are faulty, and why."""

    queue: str
    cursor: Cursor
    why: str


def plan(snapshot: Sequence[Wedge]) -> list[Action]:
    """One action per wedge. Pure."""
    return [
        Action("mend", f"{wedge.cursor.pipe_id}", wedge.queue, detail=wedge.why, row=wedge)
        for wedge in snapshot
    ]


class Mend(PlannedPass[Sequence[Wedge]]):
    """Mends wedged groups.

    Messages that no row covers never come due, so they can only be found by reading every cursor of
    a live pipe with its open claims. Therefore a reaper looks at most once a minute, except for
    named queues and dry runs. Retired pipes have no cursors, so they cost nothing.
    """

    name = "mend"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._next_ms = 0  # boot time

    def run(self, scope: Scope, *, dry_run: bool) -> list[Action]:
        """Look, decide and act, if it is time."""
        now_ms = self._ports.clock.boot_ms()
        if scope.ids is None and not dry_run:
            if now_ms < self._next_ms:
                return []
            self._next_ms = now_ms + EVERY_MS
        return super().run(scope, dry_run=dry_run)

    def look(self, scope: Scope) -> list[Wedge]:
        """Cost: the same as `Claims.wedged`; four reads for each wedge found."""
        catalog, found = self._ports.catalog, []
        for cursor, why in faults(catalog, scope.ids):
            pipe = catalog.pipes.by_id(cursor.pipe_id)
            if pipe is not None:
                found.append(Wedge(scope.name(pipe.queue_id), cursor, why))
        return found

    def plan(self, snapshot: Sequence[Wedge], now_ms: int) -> list[Action]:
        return plan(snapshot)

    def apply(self, action: Action) -> str | None:
        """Cost: the same as `mend`."""
        wedge: Wedge = action.row
        return mend(self._ports, wedge.cursor.group_id, wedge.cursor.pipe_id)


# --- one (group, pipe) ----------------------------------------------------------------------


class MendedClaims(NamedTuple):
    """The rows that should replace claim rows. freed: messages that no row covered, which are
    delivered again. doubled: messages that more than one row covered."""

    rows: Sequence[Claim]
    chain: Place
    freed: int
    doubled: int


def mend(ports: Ports, group_id: str, pipe_id: str) -> str | None:
    """Mend the claim rows of a group in a pipe; return what was done, or None if no fault is left.
    Raises CorruptionError or ExtentMissingError for a timer pipe that cannot be read. Cost: reads
    the claims, moves and removals of that pipe, and one synced conditional write."""
    catalog = ports.catalog
    for _ in attempts(ports.clock):
        pipe = live_pipe(catalog, pipe_id)
        cursor = None if pipe is None else catalog.claims.cursor(group_id, pipe_id)
        if pipe is None or cursor is None:
            return None
        rows = catalog.claims.rows(group_id, pipe_id)
        why = fault(cursor, rows)
        if not why:
            return None

        def fill(start: int, end: int, pos: int) -> Sequence[tuple[int, int, int, int]]:
            return runs_between(ports, pipe_id, Place(start, pos), end)

        planned = mended(
            cursor,
            rows,
            _on_record(catalog, cursor),
            _under_way(catalog, cursor),
            fill if pipe.timer_ms is not None else _at_once,
            ports.ids.version,
            seen_end(ports.store, pipe),
            _counted(catalog, pipe, group_id),
        )
        new = [replace(row, priority=pipe.priority) for row in planned.rows]
        if catalog.claims.mend(cursor, rows, new, planned.chain):
            what = f"{why}; delivered again: {counted(planned.freed, 'message')}"
            return f"{what}; had two claims: {planned.doubled}" if planned.doubled else what
    return None


def mended(
    cursor: Cursor,
    rows: Sequence[Claim],
    on_record: RangeSet,
    under_way: Mapping[int, str],
    fill: Fill,
    version: claims.Version,
    end_seq: int,
    deliveries: int = 0,
) -> MendedClaims:
    """Rows without gaps or overlaps, most of them unchanged. Pure, except for `fill`.

    on_record: seqs that were removed or moved. under_way: seqs whose move is neither settled nor
    withdrawn, each with the failure record that makes it be finished. end_seq: how many messages
    the pipe is known to hold. deliveries: the delivery count for messages that no row covers.
    """
    ack = cursor.ack.seq
    last = max([cursor.chain.seq, ack, *(row.end for row in rows)])
    last = min(last, max(end_seq, cursor.chain.seq, ack))
    done = on_record | ledger.acked(rows)
    covered, doubled = EMPTY, EMPTY
    found: list[Claim] = []
    for row in sorted(rows, key=_rank):
        span = RangeSet.run(max(row.start, ack), min(row.end, last))
        doubled |= span & covered
        found += _kept(row, span - covered, done, rows, cursor, version)
        covered |= span
    freed = 0
    for start, end in (RangeSet.run(ack, last) - covered).ranges:
        new = [
            replace(row, deliveries=deliveries) if row.state is ClaimState.FREE else row
            for row in _uncovered(cursor, start, end, done, under_way, fill, rows, version)
        ]
        freed += sum(row.left_count for row in new if row.state is not ClaimState.DONE)
        found += new
    found.sort(key=lambda row: row.start)
    chain = cursor.chain if last == cursor.chain.seq else Place(last, _pos(rows, cursor, last))
    return MendedClaims(found, chain, freed, len(doubled))


def _counted(catalog: Catalog, pipe: PipeRow, group_id: str) -> int:
    """The delivery count for messages that no row covers: 1, as they were claimed, unless they were
    only scheduled. It must stay below the limit, or a message would be given up undelivered."""
    queue = catalog.queues.by_id(pipe.queue_id)
    group = next((row for row in catalog.queues.groups(pipe.queue_id) if row.id == group_id), None)
    if pipe.timer_ms is not None or queue is None or group is None:
        return 0
    return min(1, rules_of(queue.policy, group.policy).max_deliveries - 1)


def _rank(row: Claim) -> tuple[object, ...]:
    """Sort key: of overlapping rows, the first keeps the overlap. Held rows come first, so that no
    second consumer gets its messages, then free and done ones; among each, rows delivered more
    often come first, then rows due later."""
    held = row.state is ClaimState.HELD
    return (not held, row.state is ClaimState.DONE, -row.deliveries, -row.due_ms, row.start)


def _kept(
    row: Claim,
    span: RangeSet,
    done: RangeSet,
    rows: Sequence[Claim],
    cursor: Cursor,
    version: claims.Version,
) -> list[Claim]:
    """The part of a row to keep: the row itself if that is all of it, else new rows. The holder
    finds these at its next write; in an exclusive group it has lost its claim."""
    if row.state is ClaimState.DONE:
        acked = EMPTY
    else:
        acked = (row.acked | (done & span)).within(row.start, row.end)
    if span.ranges == ((row.start, row.end),) and acked == row.acked:
        return [row]
    found: list[Claim] = []
    for start, end in span.ranges:
        pos = _pos(rows, cursor, start)
        part = replace(row, start=start, end=end, pos=pos, version=version())
        tried = None if row.tried is None else row.tried.within(start, end)
        part = replace(part, acked=acked.within(start, end), tried=tried)
        is_open = row.state is not ClaimState.DONE and part.left
        found += [part] if is_open else claims.as_dead(part, version)
    return found


def _uncovered(
    cursor: Cursor,
    start: int,
    end: int,
    done: RangeSet,
    under_way: Mapping[int, str],
    fill: Fill,
    rows: Sequence[Claim],
    version: claims.Version,
) -> list[Claim]:
    """Rows for messages that no row covers: done for those on record, free for the others. Messages
    being moved get rows of their own, so that the move is finished first."""
    whole = RangeSet.run(start, end)
    pos = _pos(rows, cursor, start)
    pattern = replace(claims.unclaimed(cursor, Place(end, pos), version), pos=pos)
    found: list[Claim] = []
    for first, last in (whole & done).ranges:
        found += claims.as_dead(replace(pattern, start=first, end=last), version)
    moving = RangeSet.of(sorted(seq for seq in under_way if start <= seq < end)) - done
    for seq in moving:
        part = replace(pattern, start=seq, end=seq + 1, failure=under_way[seq], version=version())
        found.append(part)
    for first, last in (whole - done - moving).ranges:
        for at, until, where, due_ms in fill(first, last, pos):
            part = replace(pattern, start=at, end=until, pos=where, due_ms=due_ms)
            found.append(replace(part, version=version()))
    return found


def _pos(rows: Sequence[Claim], cursor: Cursor, seq: int) -> int:
    """The nearest position at or before a seq that the catalog knows."""
    places = [cursor.ack, cursor.chain, *(Place(row.start, row.pos) for row in rows)]
    return max((place for place in places if place.seq <= seq), default=Place(0, 0)).pos


def _at_once(start: int, end: int, pos: int) -> Sequence[tuple[int, int, int, int]]:
    return [(start, end, pos, 0)]


def _on_record(catalog: Catalog, cursor: Cursor) -> RangeSet:
    """The seqs that were removed or have moved."""
    key = cursor.group_id, cursor.pipe_id
    removed = RangeSet((each.start, each.end) for each in catalog.claims.removed(*key))
    moved = RangeSet.of(sorted(move.seq for move in catalog.claims.moves(*key) if move.settled))
    return removed | moved


def _under_way(catalog: Catalog, cursor: Cursor) -> dict[int, str]:
    """Seqs that may have arrived elsewhere, each with the failure record that makes poppers check
    that before they deliver it."""
    found: dict[int, str] = {}
    for move in catalog.claims.moves(cursor.group_id, cursor.pipe_id):
        if not move.settled:
            row = claims.unclaimed(cursor, cursor.chain, str)
            merged = move.reason == str(Reason.MERGED)
            found[move.seq] = (
                claims.marked_moving(row) if merged else claims.marked_leaving(row, move.reason)
            )
    return found


def faults(catalog: Catalog, queue_ids: Collection[str] | None = None) -> list[tuple[Cursor, str]]:
    """The cursors of wedged groups, each with its fault. Cost: that of `Claims.wedged`, and that of
    `fault_now` for each cursor that it names."""
    looks = (fault_now(catalog.claims, *key) for key in catalog.claims.wedged(queue_ids))
    return [found for found in looks if found is not None]
