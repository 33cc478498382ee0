"""The audit: proves that what was pushed is what became of it, from the data itself.

It walks every frame of every live pipe, checks each checksum and that seqs have no gap, then
that the claim rows of each group cover exactly what lies between its ack offset and its chain
end, and that every dead letter is where its move says, by its id. It trusts no total that
somebody counted up; of retired pipes it takes the totals written once at their end. Nor does it
trust what is told of the ends of open pipes, which may be late: what was claimed or moved was
acknowledged, so its frames have to be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from cassq.catalog.cover import fault
from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.inspect.stats import GroupStats, GroupView, add_pipe, add_retired, version_of, view_of
from cassq.lifecycle.damage import excused
from cassq.lifecycle.moves import slices_of
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, known_end, sealed_end
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import (
    Claim,
    ClaimState,
    Cursor,
    GroupRow,
    Move,
    PipeRow,
    PipeState,
    QueueRow,
    Retired,
    RetiredSum,
    summed,
)
from cassq.plurals import counted

WALK_MESSAGES = 65_536
MENDED = "`cassq reap` mends that, and loses nothing"
FORWARD = "`cassq pipe show` tells what going on behind it costs"
# The parts that add up to what was pushed for a group.
LEDGER = (
    *("waiting", "pending", "committed", "dead", "expired", "purged", "merged", "lost"),
    "skipped",
)
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


class Walked(NamedTuple):
    """Messages that were read of a pipe, and the bytes of the frames that begin among them.
    finding: that not all were; cause: why, which readers of later ranges meet too."""

    pipe_id: str
    messages: int
    size_bytes: int
    finding: str = ""
    cause: str = ""


def audit_queue(ports: Ports, queue: QueueRow) -> Audit:
    """Audit a queue. Exact at a quiet moment; cost: every live pipe is read once, its dead and
    their letters once more. The rows are not all of one moment: while something is found amiss and
    others are at work in between, and while pipes are retired, they are looked at up to LOOKS_MAX
    times, and open pipes read again. Pipes whose pusher is gone are sealed first."""
    walks: dict[str, Walked] = {}
    version, audit = version_of(ports, queue), _look(ports, queue, walks)
    standing = None
    for _ in range(LOOKS_MAX - 1):
        after = version_of(ports, queue)
        if audit.balanced and after == version:
            break
        before, standing = standing, _standing(ports.catalog, queue)
        if standing == before:
            break
        version, audit = after, _look(ports, queue, walks)
    return audit


def _standing(catalog: Catalog, queue: QueueRow) -> object:
    """What moves when somebody pushes, pops, or retires; equal at two moments: nobody did."""
    groups = catalog.queues.groups(queue.id)
    return (
        catalog.pipes.live(queue.id),
        set(catalog.pipes.retired_sums(queue.id)),
        [
            sorted(catalog.claims.cursors(group.id), key=lambda each: each.pipe_id)
            for group in groups
        ],
    )


def _look(ports: Ports, queue: QueueRow, walks: dict[str, Walked]) -> Audit:
    """One look. walks: of pipes that need not be read again, by id."""
    audit = Audit(queue.name)
    _seal_abandoned(ports, audit, queue)
    pipes = ports.catalog.pipes.live(queue.id)
    claimed = _claimed(ports.catalog, queue) if any(pipe.end is None for pipe in pipes) else {}
    counts: dict[str, int] = {}
    for pipe in pipes:
        walk = walks.get(pipe.id) or _walk(ports, pipe, claimed.get(pipe.id, 0))
        if pipe.end is not None and not walk.finding:
            walks[pipe.id] = walk
        counts[pipe.id] = walk.messages
        audit.bytes += walk.size_bytes
        if walk.finding:
            audit.find(walk.finding)
    _add_up(ports, audit, queue, pipes, counts)
    return audit


def _add_up(
    ports: Ports, audit: Audit, queue: QueueRow, pipes: Sequence[PipeRow], counts: dict[str, int]
) -> None:
    """What became of the messages of these pipes, and of retired ones, for each group."""
    catalog = ports.catalog
    retired = catalog.pipes.retired(queue.id)
    retired_counts = {row.pipe_id: row.pushed for row in retired}
    audit.pipes, audit.retired_pipes = len(pipes), len(retired_counts)
    audit.pushed = sum(counts.values()) + sum(retired_counts.values())
    check_sums(audit, retired, catalog.pipes.retired_sums(queue.id))
    for group in catalog.queues.groups(queue.id):
        stats = audit.groups[group.name] = GroupStats()
        cursors = {cursor.pipe_id: cursor for cursor in catalog.claims.cursors(group.id)}
        for pipe in pipes:
            if pipe.is_for(group.id):
                view = view_of(catalog, group.id, pipe.id, cursors.get(pipe.id))
                _check_group(ports, audit, group, pipe, counts[pipe.id], view)
                add_pipe(stats, pipe, counts[pipe.id], view, catalog.now_ms())
        for row in retired:
            if row.group_id == group.id:
                add_retired(stats, row)
        check_sum(audit, group, stats)


def check_sums(audit: Audit, retired: Sequence[Retired], sums: Sequence[RetiredSum]) -> None:
    """What was added up of retired pipes is what their rows say."""
    expected = summed(retired)
    if set(expected) != set(sums):
        audit.find(f"the sums of retired pipes are {list(sums)}, not {expected}")


def check_sum(audit: Audit, group: GroupRow, stats: GroupStats) -> None:
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
    for finding in misplaced(ports, pipe, [move for move in view.moves if move.settled]):
        audit.find(finding)


def _seal_abandoned(ports: Ports, audit: Audit, queue: QueueRow) -> None:
    """Seal pipes whose pusher is gone: after a power cut only that finds their end."""
    for pipe in ports.catalog.pipes.live(queue.id):
        try:
            end_of(ports.catalog, ports.store, pipe)
        except (ExtentMissingError, CorruptionError) as exc:
            audit.find(str(exc))


def _claimed(catalog: Catalog, queue: QueueRow) -> dict[str, int]:
    """How far groups have claimed, by pipe."""
    found: dict[str, int] = {}
    for group in catalog.queues.groups(queue.id):
        for cursor in catalog.claims.cursors(group.id):
            found[cursor.pipe_id] = max(cursor.chain.seq, found.get(cursor.pipe_id, 0))
    return found


def _walk(ports: Ports, pipe: PipeRow, claimed: int) -> Walked:
    """Read every frame of a pipe. claimed: so many messages of it some group has claimed."""
    try:
        end_seq = known_end(ports.catalog, ports.store, pipe, claimed)
    except (ExtentMissingError, CorruptionError) as exc:
        return Walked(pipe.id, 0, 0, str(exc), exc.message)
    return walk_through(ports, pipe.id, Place(0, 0), end_seq)


def walk_through(ports: Ports, pipe_id: str, start: Place, end_seq: int) -> Walked:
    """Read every frame of a pipe from `start` to `end_seq`. What is damaged or gone is told, and
    ends it; but not what was given up as lost, and nobody waits for. Cost: where something is
    damaged it is read again, see `ExtentReader.after_damage`."""
    try:
        reader = ports.store.reader(pipe_id)
    except (ExtentMissingError, CorruptionError) as exc:
        known = excused(ports, pipe_id)
        if known.covers(start.seq, end_seq):
            return Walked(pipe_id, end_seq - start.seq, 0)
        return Walked(pipe_id, 0, 0, exc.message, exc.message)
    try:
        walked = read_through(reader, pipe_id, start, end_seq)
        if walked.finding and (known := excused(ports, pipe_id)):
            walked = read_through(reader, pipe_id, start, end_seq, known)
        return walked
    finally:
        reader.close()


def read_through(
    reader: ExtentReader, pipe_id: str, start: Place, end_seq: int, known: RangeSet = EMPTY
) -> Walked:
    """Read every frame of a pipe from `start` to `end_seq`: each checksum is verified, and that
    seqs have no gap. What is damaged or gone is told, and ends it; known: but not this."""
    place, size, finding, cause = start, 0, "", ""
    try:
        while place.seq < end_seq:
            try:
                slices = reader.read(place, end_seq, WALK_MESSAGES, WALK_BYTES)
            except CorruptionError:
                after = _behind(reader, place, end_seq, known)
                if after is None:
                    raise
                place = after
                continue
            size += sum(each.frame.size for each in slices if each.first == 0)
            place = reader.place_after(place, slices)
    except ExtentMissingError as exc:
        finding = cause = exc.message
    except CorruptionError as exc:
        cause = exc.message
        finding = f"pipe {pipe_id} is damaged after seq {place.seq}: {cause}; {FORWARD}"
    return Walked(pipe_id, place.seq - start.seq, size, finding, cause)


def _behind(reader: ExtentReader, place: Place, end_seq: int, known: RangeSet) -> Place | None:
    """Where it goes on behind damage at `place` that is known; None when it is not."""
    if place.seq not in known:
        return None
    after = reader.after_damage(place, end_seq) or Place(end_seq, place.pos)
    return after if known.covers(place.seq, after.seq) else None


def _check_cover(
    audit: Audit, group: GroupRow, pipe: PipeRow, count: int, cursor: Cursor, rows: Sequence[Claim]
) -> None:
    """Claim rows are disjoint and cover `[ack, chain)`, and nothing is claimed past the end."""
    if why := fault(cursor, rows):
        audit.find(f"group {group.name} is wedged in pipe {pipe.id}: {why}; {MENDED}")
        return
    for row in rows:
        if row.acked - RangeSet.run(row.start, row.end):
            audit.find(f"group {group.name}, pipe {pipe.id}: acks outside the claim at {row.start}")
    if cursor.chain.seq > count:
        audit.find(
            f"group {group.name} has claimed {counted(cursor.chain.seq, 'message')}"
            f" of pipe {pipe.id}, which holds {count}"
        )


# --- where the dead have gone ---------------------------------------------------------------------


def misplaced(ports: Ports, pipe: PipeRow, moves: Sequence[Move]) -> list[str]:
    """Which of a pipe's dead are not where their moves, which are settled, say. Of those whose new
    pipe was retired it is known that every group of the dead letters has committed them. Cost: the
    frames of the dead, in both places."""
    if not moves:
        return []
    try:
        ids = _ids(ports, pipe, [move.seq for move in moves])
    except (ExtentMissingError, CorruptionError):
        return []  # which is told of where the frames are read
    findings: list[str] = []
    there: dict[str, list[Move]] = {}
    for move in moves:
        there.setdefault(move.dest_pipe, []).append(move)
    for dest_id, arrivals in there.items():
        findings += _not_in(ports, dest_id, arrivals, ids)
    return findings


def _not_in(
    ports: Ports, dest_id: str, moves: Sequence[Move], ids: Mapping[int, bytes]
) -> list[str]:
    row = ports.catalog.pipes.by_id(dest_id)
    if row is None or row.state is PipeState.CONSUMED:
        return []
    try:
        found = _ids(ports, row, [move.dest_seq for move in moves])
    except (ExtentMissingError, CorruptionError) as exc:
        row = ports.catalog.pipes.by_id(dest_id)
        gone = row is None or row.state is PipeState.CONSUMED
        return [] if gone else [f"dead letters in pipe {dest_id} cannot be read: {exc.message}"]
    return [
        f"message {move.pipe_id}:{move.seq} is not in the dead letters,"
        f" where it should be {move.dest_pipe}:{move.dest_seq}"
        for move in moves
        if found.get(move.dest_seq) != ids.get(move.seq, b"")
    ]


def _ids(ports: Ports, pipe: PipeRow, seqs: Iterable[int]) -> dict[int, bytes]:
    """The ids of those of these messages that a pipe has."""
    wanted = RangeSet.of(sorted(set(seqs)))
    sealed = sealed_end(ports.catalog, ports.store, pipe)
    reader = ports.store.reader(pipe.id)
    try:
        end = sealed or reader.published()
        found = dict(_read_ids(reader, pipe.id, wanted.within(0, end.seq)))
        if sealed is None:
            # What lies further on is there though nobody was told, or is told of as misplaced.
            further = wanted - RangeSet.run(0, end.seq)
            with suppress(CorruptionError):
                found.update(_read_ids(reader, pipe.id, further))
        return found
    finally:
        reader.close()


def _read_ids(reader: ExtentReader, pipe_id: str, seqs: RangeSet) -> Iterator[tuple[int, bytes]]:
    for _, (frame, first, last) in slices_of(reader, Place(0, 0), seqs):
        for index in range(first, last):
            yield frame.base_seq + index, frame.id_at(index, pipe_id)
