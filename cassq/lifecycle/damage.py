"""Damage: finds the unreadable parts of a pipe, and the messages that each group would lose.
Writes nothing.

Damage is never skipped automatically: `cassq.lifecycle.skipping` does it when a person asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cassq.catalog.port import Catalog
from cassq.errors import CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe, sealed_end
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.ledger import done_of, is_held
from cassq.model.rows import Cursor, GroupRow, PipeRow, QueueRow, Reason

READ_MESSAGES = 65_536
READ_BYTES = 8 * 1024 * 1024


class DamagedRange(NamedTuple):
    """Unreadable messages `[start, end)` of a pipe. why: the error. after: the start of the next
    whole frame, if there is one."""

    start: int
    end: int
    why: str
    after: Place | None


@dataclass(frozen=True, slots=True)
class GroupDamage:
    """What damage in a pipe costs a group, in messages.

    lost: unreadable and not yet delivered. held: unreadable, but held by consumers, which may still
    commit them. readable: intact, neither committed nor held.
    """

    lost: int = 0
    held: int = 0
    readable: int = 0


@dataclass(frozen=True, slots=True)
class PipeDamage:
    """The damage found in a pipe, and whether it was skipped.

    messages: how many it holds. damaged: (first seq, end seq, why) of each unreadable range.
    groups: by name. header: why the pipe cannot be opened although its messages can be read; a skip
    then rewrites its header. skipped: whether the damage was recorded as lost just now.
    """

    pipe_id: str
    queue: str
    state: str
    messages: int
    damaged: tuple[tuple[int, int, str], ...] = ()
    groups: dict[str, GroupDamage] = field(default_factory=dict)
    header: str = ""
    skipped: bool = False

    @property
    def is_damaged(self) -> bool:
        """Whether any part of it is unreadable."""
        return bool(self.damaged or self.header)

    @property
    def unreadable(self) -> int:
        """The number of unreadable messages."""
        return sum(end - start for start, end, _ in self.damaged)

    @property
    def lost(self) -> int:
        """The number of lost messages, summed over groups."""
        return sum(group.lost for group in self.groups.values())

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "unreadable": self.unreadable, "lost": self.lost}


@dataclass(frozen=True, slots=True)
class PipeInfo:
    """A pipe as the catalog describes it. messages: None while only its pusher knows. left: group
    name → number of messages it has not committed. lost: group name → number of messages given up.
    priority: of all its messages."""

    id: str
    queue: str
    state: str
    opened_at: datetime
    messages: int | None
    delayed: bool
    left: dict[str, int]
    lost: dict[str, int]
    priority: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "opened_at": self.opened_at.isoformat()}


def pipes_of(ports: Ports, queue: QueueRow) -> list[PipeInfo]:
    """The live pipes of a queue, oldest first. Cost: three range reads for each pipe and group; no
    message is read."""
    catalog = ports.catalog
    to_wall_ms = ports.clock.wall_ms() - catalog.now_ms()
    groups = catalog.queues.groups(queue.id)
    cursors = {
        (c.group_id, c.pipe_id): c for group in groups for c in catalog.claims.cursors(group.id)
    }
    found = []
    for pipe in catalog.pipes.live(queue.id):
        mine = [group for group in groups if pipe.is_for(group.id)]
        left: dict[str, int] = {}
        lost: dict[str, int] = {}
        for group in mine:
            cursor = cursors.get((group.id, pipe.id))
            done = _done(catalog, cursor) if cursor else EMPTY
            if pipe.end is not None:
                left[group.name] = pipe.end.seq - len(done.within(0, pipe.end.seq))
            lost[group.name] = len(_lost(catalog, group.id, pipe.id))
        found.append(
            PipeInfo(
                id=pipe.id,
                queue=queue.name,
                state=pipe.state.name.lower(),
                opened_at=datetime.fromtimestamp((pipe.created_ms + to_wall_ms) / 1000, UTC),
                messages=None if pipe.end is None else pipe.end.seq,
                delayed=pipe.timer_ms is not None,
                priority=pipe.priority,
                left=left,
                lost={name: count for name, count in lost.items() if count},
            )
        )
    return found


def look_into(ports: Ports, queue: QueueRow, pipe_id: str) -> PipeDamage:
    """Find the unreadable parts of a pipe, and the messages that `skip` would give up. Cost: reads
    the whole pipe, and for each damage that of `ExtentReader.after_damage`."""
    pipe = pipe_in(ports, queue, pipe_id)
    end = _end(ports, queue, pipe)
    stretches, header = damaged_ranges(ports, pipe, end.seq)
    return report_of(ports, queue, pipe, end.seq, stretches, header)


def excused(ports: Ports, pipe_id: str) -> RangeSet:
    """The messages of a pipe that every group is done with, so that it does not matter whether they
    can be read. Empty unless some group gave up messages of the pipe as lost. Cost: three range
    reads for each group."""
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None:
        return EMPTY
    catalog, found, given_up = ports.catalog, None, False
    for group in catalog.queues.groups(pipe.queue_id):
        if not pipe.is_for(group.id):
            continue
        cursor = catalog.claims.find_cursor(group.id, pipe_id)
        done = _done(catalog, cursor) if cursor else EMPTY
        found = done if found is None else found & done
        given_up |= bool(_lost(catalog, group.id, pipe_id))
    return found if found is not None and given_up else EMPTY


# --- pipes, and their damage --------------------------------------------------------------------


def pipe_in(ports: Ports, queue: QueueRow, pipe_id: str) -> PipeRow:
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None or pipe.queue_id != queue.id:
        raise UsageError(
            f"queue {queue.name!r} has no pipe {pipe_id!r}",
            hint=f"`cassq pipe list {queue.name}` lists its pipes that are not retired",
        )
    return pipe


def groups_of(ports: Ports, queue: QueueRow, pipe: PipeRow) -> list[GroupRow]:
    return [group for group in ports.catalog.queues.groups(queue.id) if pipe.is_for(group.id)]


def _end(ports: Ports, queue: QueueRow, pipe: PipeRow) -> Place:
    """The current end of a pipe, as far as it can be read, or groups have claimed."""
    try:
        sealed = sealed_end(ports.catalog, ports.store, pipe)
        if sealed is not None:
            return sealed
        reader = ports.store.reader(pipe.id)
    except ExtentMissingError:
        return missing_end(ports, queue, pipe)
    except CorruptionError:
        reader = ports.store.salvage_reader(pipe.id)
    try:
        return max(reader.published(), claimed(ports, queue, pipe))
    finally:
        reader.close()


def missing_end(ports: Ports, queue: QueueRow, pipe: PipeRow, *, fence: bool = False) -> Place:
    """The end of a pipe whose extent is missing, as far as its store knows, or groups have claimed.
    fence: make its pusher continue in another pipe."""
    known = ports.store.missing_end(pipe.id, fence=fence) or Place(0, 0)
    return max(known, claimed(ports, queue, pipe))


def claimed(ports: Ports, queue: QueueRow, pipe: PipeRow) -> Place:
    cursors = (
        cursor
        for group in groups_of(ports, queue, pipe)
        for cursor in ports.catalog.claims.cursors(group.id, [pipe.id])
    )
    return max((cursor.chain for cursor in cursors), default=Place(0, 0))


def damaged_ranges(ports: Ports, pipe: PipeRow, end_seq: int) -> tuple[list[DamagedRange], str]:
    """The damaged ranges of a pipe, and why it cannot be opened although it can be read."""
    header = ""
    try:
        try:
            reader = ports.store.reader(pipe.id)
        except CorruptionError as exc:
            header = exc.message
            reader = ports.store.salvage_reader(pipe.id)
    except (ExtentMissingError, CorruptionError) as exc:
        return [DamagedRange(0, end_seq, exc.message, None)] if end_seq else [], ""
    try:
        found = list(_stretches(reader, end_seq))
    finally:
        reader.close()
    if header and [each[:2] for each in found] == [(0, end_seq)]:
        return [DamagedRange(0, end_seq, header, None)], ""
    return found, header


def _stretches(reader: ExtentReader, end_seq: int) -> Iterator[DamagedRange]:
    place = Place(0, 0)
    while place.seq < end_seq:
        try:
            slices = reader.read(place, end_seq, READ_MESSAGES, READ_BYTES)
            place = reader.place_after(place, slices)
            continue
        except CorruptionError as exc:
            why = exc.message
        except ExtentMissingError as exc:
            yield DamagedRange(place.seq, end_seq, exc.message, None)
            return
        after = reader.after_damage(place, end_seq)
        yield DamagedRange(place.seq, after.seq if after else end_seq, why, after)
        if after is None:
            return
        place = after


def report_of(
    ports: Ports,
    queue: QueueRow,
    pipe: PipeRow,
    end_seq: int,
    stretches: Sequence[DamagedRange],
    header: str,
) -> PipeDamage:
    """Report damage and its cost for each group."""
    groups = {
        group.name: _cost(ports, group, pipe, end_seq, unreadable(stretches))
        for group in groups_of(ports, queue, pipe)
    }
    row = ports.catalog.pipes.by_id(pipe.id) or pipe
    return PipeDamage(
        pipe_id=pipe.id,
        queue=queue.name,
        state=row.state.name.lower(),
        messages=end_seq,
        damaged=tuple(each[:3] for each in stretches),
        groups=groups,
        header=header,
    )


def _cost(
    ports: Ports, group: GroupRow, pipe: PipeRow, end_seq: int, damaged: RangeSet
) -> GroupDamage:
    catalog = ports.catalog
    cursor = catalog.claims.find_cursor(group.id, pipe.id)
    rows = catalog.claims.rows(group.id, pipe.id) if cursor else []
    left = RangeSet.run(0, end_seq) - (done_of(cursor, rows) if cursor else EMPTY)
    now_ms = catalog.now_ms()
    held = RangeSet.joined([EMPTY, *(row.left for row in rows if is_held(row, now_ms))])
    bad = left & damaged
    return GroupDamage(
        lost=len(bad - held), held=len(bad & held), readable=len(left - damaged - held)
    )


def unreadable(stretches: Iterable[DamagedRange]) -> RangeSet:
    return RangeSet((each.start, each.end) for each in stretches)


def _done(catalog: Catalog, cursor: Cursor) -> RangeSet:
    return done_of(cursor, catalog.claims.rows(cursor.group_id, cursor.pipe_id))


def _lost(catalog: Catalog, group_id: str, pipe_id: str) -> RangeSet:
    """The messages of a pipe that were given up for a group."""
    removed = catalog.claims.removed(group_id, pipe_id)
    return RangeSet((row.start, row.end) for row in removed if row.reason is Reason.LOST)
