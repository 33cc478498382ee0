"""The audit: proves `pushed = waiting + pending + committed + dead` from the data itself.

It walks every frame of every live pipe, checks each checksum and that seqs have no gap, then
that the claim rows of each group cover exactly what lies between its ack offset and its chain
end, and that every dead letter is where its move says. It trusts no total that somebody counted
up; of retired pipes it takes the totals written once at their end.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from cassq.catalog.port import Catalog, Claim, Cursor, GroupRow, Move, PipeRow, QueueRow
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.frames import Place
from cassq.pipes import seal_pipe
from cassq.ports import Ports
from cassq.ranges import RangeSet
from cassq.stats import GroupStats, add_pipe

WALK_MESSAGES = 65_536
WALK_BYTES = 8 * 1024 * 1024


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
    """Audit a queue. Exact at a quiet moment; cost: every live pipe is read once. Pipes whose
    pusher is gone are sealed first."""
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
    for group in catalog.groups(queue.id):
        stats = audit.groups[group.name] = GroupStats()
        cursors = {cursor.pipe_id: cursor for cursor in catalog.cursors(group.id)}
        for pipe in pipes:
            cursor = cursors.get(pipe.id)
            rows = catalog.claims(group.id, pipe.id) if cursor else []
            if cursor:
                _check_cover(audit, group, pipe, counts[pipe.id], cursor, rows)
            add_pipe(stats, counts[pipe.id], cursor, rows)
            for move in catalog.moves(group.id, pipe.id):
                if move.settled:
                    stats.dead += 1
                    _check_move(ports, audit, move)
        mine = [row for row in retired if row.group_id == group.id]
        stats.committed += sum(row.pushed - row.start for row in mine)
        stats.skipped += sum(row.start for row in mine)
        stats.dead += sum(row.dead for row in mine)
        stats.committed -= stats.dead
        before = sum(retired_counts.values()) - sum(row.pushed for row in mine)
        stats.skipped += before  # retired before the group was created
        total = stats.waiting + stats.pending + stats.committed + stats.dead + stats.skipped
        if total != audit.pushed:
            audit.find(
                f"group {group.name}: waiting {stats.waiting} + pending {stats.pending}"
                f" + committed {stats.committed} + dead {stats.dead} + skipped {stats.skipped}"
                f" is not pushed {audit.pushed}"
            )
    return audit


def _seal_abandoned(ports: Ports, audit: Audit, queue: QueueRow) -> None:
    """Seal pipes whose pusher is gone: after a power cut only that finds their end."""
    for pipe in ports.catalog.pipes(queue.id):
        try:
            if pipe.end is None and ports.store.abandoned(pipe.id):
                seal_pipe(ports.catalog, ports.store, pipe.id)
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
    audit: Audit, group: GroupRow, pipe: PipeRow, count: int, cursor: Cursor, rows: list[Claim]
) -> None:
    """Claim rows are disjoint and cover `[ack, chain)`, and nothing is claimed past the end."""
    at = cursor.ack.seq
    for row in rows:
        if row.start != at or row.end <= row.start:
            audit.find(f"group {group.name}, pipe {pipe.id}: no claim row covers seq {at}")
            return
        if row.acked - RangeSet([(row.start, row.end)]):
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
        end = row.end
        if end is None and ports.store.abandoned(move.dest_pipe):
            end = seal_pipe(catalog, ports.store, move.dest_pipe)
        reader = ports.store.reader(move.dest_pipe)
    except (ExtentMissingError, CorruptionError) as exc:
        audit.find(str(exc))
        return
    try:
        if (end or reader.published()).seq <= move.dest_seq:
            audit.find(
                f"message {move.pipe_id}:{move.seq} is not in the dead letters,"
                f" where it should be {move.dest_pipe}:{move.dest_seq}"
            )
    finally:
        reader.close()
