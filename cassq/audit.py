"""The audit: proves that what was pushed is what became of it, from the data itself.

It walks every frame of every live pipe, checks each checksum and that seqs have no gap, then
that the claim rows of each group cover exactly what lies between its ack offset and its chain
end, and that every dead letter is where its move says. It trusts no total that somebody counted
up; of retired pipes it takes the totals written once at their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cassq.catalog.port import Catalog
from cassq.catalog.rows import (
    Claim,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    QueueRow,
    Retired,
    RetiredSum,
    summed,
)
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.frames import Place
from cassq.ports import Ports
from cassq.ranges import RangeSet
from cassq.sealing import end_of
from cassq.stats import GroupStats, GroupView, add_pipe, add_retired, view_of

WALK_MESSAGES = 65_536
# The parts that add up to what was pushed for a group.
LEDGER = ("waiting", "pending", "committed", "dead", "expired", "purged", "merged", "skipped")
WALK_BYTES = 8 * 1024 * 1024
# So often a queue is looked at that moves, before what is amiss in it is told.
LOOKS_MAX = 5


@dataclass(slots=True)
class Audit:
    """What an audit found. findings: a sentence for everything that is not as it must be."""

    queue: str
    balanced: bool = True
    pushed: int = 0
    bytes: int = 0
    pipes: int = 0
    retired_pipes: int = 0
    groups: dict[str, GroupStats] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def find(self, what: str) -> None:
        self.balanced = False
        self.findings.append(what)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit_queue(ports: Ports, queue: QueueRow) -> Audit:
    """Audit a queue. Exact at a quiet moment; cost: every live pipe is read once, and again, up to
    LOOKS_MAX times, while something is found amiss and others are at work in between, since the
    rows are not all of one moment. Pipes whose pusher is gone are sealed first."""
    audit = _look(ports, queue)
    standing = None
    for _ in range(LOOKS_MAX - 1):
        before, standing = standing, _standing(ports.catalog, queue)
        if audit.balanced or standing == before:
            break
        audit = _look(ports, queue)
    return audit


def _standing(catalog: Catalog, queue: QueueRow) -> object:
    """What moves when somebody pushes, pops, or retires; equal at two moments: nobody did."""
    groups = catalog.groups(queue.id)
    return (
        catalog.pipes(queue.id),
        set(catalog.retired_sums(queue.id)),
        [sorted(catalog.cursors(group.id), key=lambda each: each.pipe_id) for group in groups],
    )


def _look(ports: Ports, queue: QueueRow) -> Audit:
    catalog = ports.catalog
    audit = Audit(queue.name)
    _seal_abandoned(ports, audit, queue)
    pipes = catalog.pipes(queue.id)
    counts: dict[str, int] = {}
    for pipe in pipes:
        counts[pipe.id] = _walk(ports, audit, pipe)
    retired = catalog.retired(queue.id)
    retired_counts = {row.pipe_id: row.pushed for row in retired}
    audit.pipes, audit.retired_pipes = len(pipes), len(retired_counts)
    audit.pushed = sum(counts.values()) + sum(retired_counts.values())
    _check_sums(audit, retired, catalog.retired_sums(queue.id))
    for group in catalog.groups(queue.id):
        stats = audit.groups[group.name] = GroupStats()
        cursors = {cursor.pipe_id: cursor for cursor in catalog.cursors(group.id)}
        for pipe in pipes:
            if pipe.is_for(group.id):
                view = view_of(catalog, group.id, pipe.id, cursors.get(pipe.id))
                _check_group(ports, audit, group, pipe, counts[pipe.id], view)
                add_pipe(stats, pipe, counts[pipe.id], view, catalog.now_ms())
        for row in retired:
            if row.group_id == group.id:
                add_retired(stats, row)
        _check_sum(audit, group, stats)
    return audit


def _check_sums(audit: Audit, retired: Sequence[Retired], sums: Sequence[RetiredSum]) -> None:
    """What was added up of retired pipes is what their rows say."""
    expected = summed(retired)
    if set(expected) != set(sums):
        audit.find(f"the sums of retired pipes are {list(sums)}, not {expected}")


def _check_sum(audit: Audit, group: GroupRow, stats: GroupStats) -> None:
    """What was pushed for a group is exactly what became of it."""
    parts = {name: getattr(stats, name) for name in LEDGER}
    if sum(parts.values()) != stats.pushed or min(parts.values()) < 0:
        told = " + ".join(f"{name} {count}" for name, count in parts.items())
        audit.find(f"group {group.name}: {told} is not pushed {stats.pushed}")


def _check_group(
    ports: Ports, audit: Audit, group: GroupRow, pipe: PipeRow, count: int, view: GroupView
) -> None:
    """The claims of a group in a pipe, and where what it moved has gone."""
    if view.cursor is None:
        return
    _check_cover(audit, group, pipe, count, view.cursor, view.rows)
    done = RangeSet.run(view.cursor.start, view.cursor.ack.seq)
    for row in view.rows:
        whole = [(row.start, row.end)]
        done |= RangeSet(whole) if row.state is ClaimState.DONE else row.acked
    for removal in view.removed:
        if not done.covers(removal.start, removal.end):
            where = f"group {group.name}, pipe {pipe.id}"
            audit.find(f"{where}: seqs {removal.start}-{removal.end} were removed and are not done")
    for move in view.moves:
        if move.settled:
            _check_move(ports, audit, move)


def _seal_abandoned(ports: Ports, audit: Audit, queue: QueueRow) -> None:
    """Seal pipes whose pusher is gone: after a power cut only that finds their end."""
    for pipe in ports.catalog.pipes(queue.id):
        try:
            end_of(ports.catalog, ports.store, pipe)
        except (ExtentMissingError, CorruptionError) as exc:
            audit.find(str(exc))


def _walk(ports: Ports, audit: Audit, pipe: PipeRow) -> int:
    """Read every frame of a pipe; how many messages it holds."""
    try:
        reader = ports.store.reader(pipe.id)
    except (ExtentMissingError, CorruptionError) as exc:
        audit.find(str(exc))
        return 0
    try:
        end = pipe.end or reader.published()
        place = Place(0, 0)
        try:
            while place.seq < end.seq:
                place = _step(audit, reader, place, end.seq)
        except ExtentMissingError as exc:
            audit.find(str(exc))
        except CorruptionError as exc:
            audit.find(f"pipe {pipe.id} is damaged after seq {place.seq}: {exc.message}")
        return place.seq
    finally:
        reader.close()


def _step(audit: Audit, reader: ExtentReader, place: Place, end_seq: int) -> Place:
    slices = reader.read(place, end_seq, WALK_MESSAGES, WALK_BYTES)
    audit.bytes += sum(piece.frame.size for piece in slices)
    return reader.place_after(place, slices)


def _check_cover(
    audit: Audit, group: GroupRow, pipe: PipeRow, count: int, cursor: Cursor, rows: Sequence[Claim]
) -> None:
    """Claim rows are disjoint and cover `[ack, chain)`, and nothing is claimed past the end."""
    at = cursor.ack.seq
    for row in rows:
        if row.start != at or row.end <= row.start:
            audit.find(f"group {group.name}, pipe {pipe.id}: no claim row covers seq {at}")
            return
        if row.acked - RangeSet.run(row.start, row.end):
            audit.find(f"group {group.name}, pipe {pipe.id}: acks outside the claim at {at}")
        at = row.end
    if at != cursor.chain.seq:
        audit.find(f"group {group.name}, pipe {pipe.id}: no claim row covers seq {at}")
    if cursor.chain.seq > count:
        audit.find(
            f"group {group.name} has claimed {cursor.chain.seq} messages of pipe {pipe.id},"
            f" which holds {count}"
        )


def _check_move(ports: Ports, audit: Audit, move: Move) -> None:
    catalog: Catalog = ports.catalog
    row = catalog.pipe(move.dest_pipe)
    if row is None or row.state == 3:
        return  # retired: every group of the dead letters has committed it
    try:
        end = end_of(catalog, ports.store, row)
    except (ExtentMissingError, CorruptionError) as exc:
        audit.find(str(exc))
        return
    if end.seq <= move.dest_seq:
        audit.find(
            f"message {move.pipe_id}:{move.seq} is not in the dead letters,"
            f" where it should be {move.dest_pipe}:{move.dest_seq}"
        )
