"""Peeking: looking at the messages of a group without any effect. Writes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

from cassq.errors import CorruptionError, UsageError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import letter_groups
from cassq.message.frames import Frame, Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.ledger import UNFINISHED, Fate, Unfinished, unfinished
from cassq.model.rows import Claim, GroupRow, PipeRow, QueueRow

logger: logging.Logger = logging.getLogger("cassq")

PEEK_BYTES = 8 * 1024 * 1024
READ_MESSAGES = 4096

STATES = tuple(map(str, (*UNFINISHED, Fate.DEAD)))


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message as it is in its queue.

    state: "waiting", "pending", "delayed" or "dead". due_at: when the claim of a pending message
    ends, or when a delayed one may be delivered. attempts: its deliveries so far.
    """

    id: str
    payload: bytes
    headers: dict[str, str]
    key: bytes | None
    pushed_at: datetime
    pipe_id: str
    seq: int
    state: str
    attempts: int
    due_at: datetime | None = None
    priority: int = 0


class PeekedMessages(NamedTuple):
    """Messages `first .. last` (indexes, last excluded) of a frame, and what is known of them."""

    pipe: PipeRow
    frame: Frame
    first: int
    last: int
    part: Unfinished


def check_state(state: str | None) -> None:
    """Raise UsageError unless this is None or a state that can be peeked at."""
    if state is not None and state not in STATES:
        raise UsageError(f"{state!r} is not a state", hint=f"the states are {', '.join(STATES)}")


def peek(
    ports: Ports, queue: QueueRow, group: GroupRow, limit: int, state: str | None = None
) -> list[Peeked]:
    """The first messages in a state, pipe by pipe; without a state, those not committed."""
    if state != Fate.DEAD:
        return peek_group(ports, group, limit, UNFINISHED if state is None else (Fate(state),))
    found: list[Peeked] = []
    for place in letter_groups(ports, queue, group.name):
        if len(found) < limit:
            found += peek_group(ports, place.row, limit - len(found), meant=place.has)
    return [replace(message, state=str(Fate.DEAD)) for message in found]


def peek_group(
    ports: Ports,
    group: GroupRow,
    limit: int,
    states: Collection[Fate] = UNFINISHED,
    *,
    meant: Callable[[Mapping[str, str]], bool] | None = None,
) -> list[Peeked]:
    """The first messages of a group that are in one of `states`. meant: selects messages by their
    headers; None selects all."""
    now_ms = ports.catalog.now_ms()
    to_wall_ms = to_wall(ports, now_ms)
    found: list[Peeked] = []
    with closing(walk(ports, group, now_ms, states, limit)) as walking:
        for seen in walking:
            payloads = seen.frame.payloads(seen.first, seen.last)
            for index, payload in enumerate(payloads, seen.first):
                message = _peeked(seen, index, payload, now_ms, to_wall_ms)
                if message.state in states and (meant is None or meant(message.headers)):
                    found.append(message)
                    if len(found) == limit:
                        return found
    return found


def unfinished_headers(ports: Ports, group: GroupRow, limit: int) -> list[dict[str, str]]:
    """The headers of the first messages that a group has not committed."""
    found: list[dict[str, str]] = []
    with closing(walk(ports, group, ports.catalog.now_ms(), UNFINISHED, limit)) as walking:
        for seen in walking:
            found += (seen.frame.headers_at(index) for index in range(seen.first, seen.last))
            if len(found) >= limit:
                break
    return found[:limit]


# --- walking --------------------------------------------------------------------------------


def walk(
    ports: Ports,
    group: GroupRow,
    now_ms: int,
    states: Collection[Fate],
    limit: int,
    *,
    claimed: Callable[[Claim], RangeSet] | None = None,
) -> Generator[PeekedMessages]:
    """The messages that a group has not committed and that may be in one of the states: the
    greatest priority first, then the oldest pipe. claimed: if given, only messages that were
    claimed at least once: the seqs that it returns for each row. A pipe that cannot be read is
    skipped. Cost: the live pipes and the claims; frames as the caller iterates."""
    cursors = {cursor.pipe_id: cursor for cursor in ports.catalog.claims.cursors(group.id)}
    pipes = ports.catalog.pipes.live(group.queue_id)
    for pipe in sorted(pipes, key=lambda pipe: pipe.priority, reverse=True):
        if not pipe.is_for(group.id):
            continue
        cursor = cursors.get(pipe.id)
        if pipe.end is not None and cursor is not None and cursor.ack.seq >= pipe.end.seq:
            continue
        try:
            reader = ports.store.reader(pipe.id)
            try:
                end_seq = (pipe.end or reader.published()).seq
                rows = ports.catalog.claims.rows(group.id, pipe.id) if cursor else []
                timed = pipe.timer_ms is not None
                for part in unfinished(cursor, rows, end_seq, now_ms, timed=timed):
                    seqs = part.seqs
                    if claimed is not None:
                        seqs = EMPTY if part.row is None else claimed(part.row)
                    if part.fate in states or _undecided(pipe, part):
                        yield from _read(reader, pipe, part, seqs, limit)
            finally:
                reader.close()
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("pipe %s is skipped: %s", pipe.id, exc)


def _undecided(pipe: PipeRow, part: Unfinished) -> bool:
    """Whether only the frames say which of these messages are due."""
    return pipe.timer_ms is not None and part.row is None


def _read(
    reader: ExtentReader, pipe: PipeRow, part: Unfinished, seqs: RangeSet, limit: int
) -> Iterator[PeekedMessages]:
    pos = part.start.pos
    for start, end_seq in seqs.ranges:
        place = Place(start, pos)
        while place.seq < end_seq:
            slices = reader.read(place, end_seq, min(limit, READ_MESSAGES), PEEK_BYTES)
            for frame, first, last in slices:
                yield PeekedMessages(pipe, frame, first, last, part)
            place = reader.place_after(place, slices)
        pos = place.pos


# --- one message ----------------------------------------------------------------------------


def _peeked(
    seen: PeekedMessages, index: int, payload: bytes, now_ms: int, to_wall_ms: int
) -> Peeked:
    pipe, frame, row = seen.pipe, seen.frame, seen.part.row
    fate, due_ms = seen.part.fate, row.due_ms if row else None
    if _undecided(pipe, seen.part):
        due_ms = frame.due_ms(index) or 0
        fate = Fate.DELAYED if due_ms > now_ms else Fate.WAITING
    if fate is Fate.WAITING:
        due_ms = None  # only its place in line
    return Peeked(
        id=frame.id_at(index, pipe.id).decode(),
        payload=payload,
        headers=frame.headers_at(index),
        key=frame.keys[index] if frame.keys else None,
        pushed_at=datetime.fromtimestamp(frame.time_ms(index) / 1000, UTC),
        pipe_id=pipe.id,
        seq=frame.base_seq + index,
        state=str(fate),
        attempts=row.deliveries if row else 0,
        due_at=None if due_ms is None else moment(due_ms, to_wall_ms),
        priority=pipe.priority,
    )


def to_wall(ports: Ports, now_ms: int) -> int:
    """What to add to catalog time to get wall time; in whole seconds, so that the drift of the two
    clocks, and the time between reading them, do not show."""
    return round((ports.clock.wall_ms() - now_ms) / 1000) * 1000


def moment(at_ms: int, to_wall_ms: int) -> datetime:
    """A catalog time as wall-clock time. to_wall_ms: what to add to it."""
    return datetime.fromtimestamp((at_ms + to_wall_ms) / 1000, UTC)
