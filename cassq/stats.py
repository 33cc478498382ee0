"""Statistics of a queue: exact depths from ends, cursors and claim rows, never from messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from cassq.catalog.port import Claim, ClaimState, Cursor, PipeRow, PipeState, QueueRow
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.frames import Place
from cassq.ports import Ports


@dataclass(slots=True)
class GroupStats:
    """How many messages of a queue are in which state for one group.

    waiting: not claimed, or given back; pending: claimed and not acked; committed; dead: moved to
    the group's dead letters; skipped: pushed before the group's start. The first four add up to
    what was pushed, less skipped.
    """

    waiting: int = 0
    pending: int = 0
    committed: int = 0
    dead: int = 0
    skipped: int = 0
    # Seconds since the oldest message that is not committed was pushed; None when there is none.
    oldest_age: float | None = None


@dataclass(slots=True)
class QueueStats:
    """A queue at a glance. pushed: since it was created; pipes: by state."""

    name: str
    consistency: str
    pushed: int = 0
    pipes: dict[str, int] = field(default_factory=dict)
    groups: dict[str, GroupStats] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def add_pipe(stats: GroupStats, end: int, cursor: Cursor | None, rows: Iterable[Claim]) -> None:
    """Add what a pipe with `end` messages holds for a group."""
    if cursor is None:
        stats.waiting += end
        return
    stats.skipped += cursor.start
    stats.waiting += max(0, end - cursor.chain.seq)
    stats.committed += cursor.ack.seq - cursor.start
    for row in rows:
        acked = len(row.acked)
        if row.state is ClaimState.DONE:
            stats.committed += row.count
        elif row.state is ClaimState.FREE:
            stats.waiting += row.count
        else:
            stats.pending += row.count - acked
            stats.committed += acked


def queue_stats(ports: Ports, queue: QueueRow) -> QueueStats:
    """The statistics of a queue. Cost: its live pipes, and the open claims of each group."""
    catalog = ports.catalog
    stats = QueueStats(queue.name, queue.policy.consistency)
    pipes = catalog.pipes(queue.id)
    ends = {pipe.id: _end(ports, pipe) for pipe in pipes}
    retired = catalog.retired(queue.id)
    stats.pushed = sum(ends.values())
    stats.pushed += sum({row.pipe_id: row.pushed for row in retired}.values())
    for state in (PipeState.READY, PipeState.OPEN, PipeState.SEALED):
        stats.pipes[state.name.lower()] = sum(pipe.state is state for pipe in pipes)
    stats.pipes["retired"] = len({row.pipe_id for row in retired})
    for group in catalog.groups(queue.id):
        mine = stats.groups[group.name] = GroupStats()
        cursors = {cursor.pipe_id: cursor for cursor in catalog.cursors(group.id)}
        for pipe in pipes:
            cursor = cursors.get(pipe.id)
            rows = catalog.claims(group.id, pipe.id) if cursor else []
            add_pipe(mine, ends[pipe.id], cursor, rows)
            mine.dead += sum(move.settled for move in catalog.moves(group.id, pipe.id))
        for row in retired:
            if row.group_id == group.id:
                mine.committed += row.pushed - row.start
                mine.dead += row.dead
                mine.skipped += row.start
        mine.committed -= mine.dead
        mine.oldest_age = _oldest_age(ports, pipes, cursors, ends)
    return stats


def _end(ports: Ports, pipe: PipeRow) -> int:
    if pipe.end is not None:
        return pipe.end.seq
    try:
        reader = ports.store.reader(pipe.id)
    except (ExtentMissingError, CorruptionError):
        return 0  # `cassq audit` tells of it
    try:
        return reader.published().seq
    finally:
        reader.close()


def _oldest_age(
    ports: Ports, pipes: list[PipeRow], cursors: dict[str, Cursor], ends: dict[str, int]
) -> float | None:
    """From the first unacked message of the oldest pipe that has one. Cost: one frame."""
    for pipe in pipes:
        cursor = cursors.get(pipe.id)
        place = cursor.ack if cursor else Place(0, 0)
        if place.seq >= ends[pipe.id]:
            continue
        try:
            reader = ports.store.reader(pipe.id)
        except (ExtentMissingError, CorruptionError):
            continue
        try:
            ((frame, first, _),) = reader.read(place, place.seq + 1, 1, 0)
        except CorruptionError:
            continue
        finally:
            reader.close()
        return max(0.0, (ports.clock.wall_ms() - frame.time_ms(first)) / 1000)
    return None
