"""Explaining a message: where it is for every group, what happened to it, and what will happen.

A message starts at its first place, which its id names, and may be moved: to a group's dead
letters, and back from there. For each group these steps are followed in the catalog. The id may
name no place of the queue, because the message came from a client's spool or was carried over to
another pipe; then it starts where it is found.

Cost: for each group and step the message's claim, its move, and the removals of one pipe; the
message itself is read, without the frames before it. If a pipe it was in has been retired, nothing
records where it went: it is searched for, in at most `SEARCHED_MESSAGES` messages of the dead
letters and of what came back from them. A message that does not start where its id says is searched
for in as many of the newest messages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from cassq.base.arguments import check_text
from cassq.catalog.port import Catalog, limit_names
from cassq.errors import CorruptionError, MessageNotFoundError, UsageError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.inspect.held_keys import HeldKey, delivered, delivered_of, held_by_letter
from cassq.inspect.peeking import to_wall
from cassq.inspect.whereabouts import FrameContent, MessageState, MessageStep, Times, said, step_of
from cassq.lifecycle.dead_keys import held_by_letters
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe, seen_end
from cassq.message.frames import Place
from cassq.message.importance import importance_of
from cassq.message.message_ids import from_uuid
from cassq.model.ledger import UNFINISHED
from cassq.model.queues import dead_letter_name, is_dead_letter_name, origin_of, rules_of
from cassq.model.rows import (
    Claim,
    Cursor,
    GroupRow,
    PipeRow,
    PipeState,
    QueueRow,
    Reason,
    Retired,
)

logger: logging.Logger = logging.getLogger("cassq")

SEARCHED_MESSAGES = 200_000
SEARCH_BYTES = 8 * 1024 * 1024
STEPS_MAX = 32

Spot = tuple[str, int]  # a pipe's id, and a seq
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about a message. groups: name → its steps; the last one is where it is now.

    pushed_at and size are None if the message is not stored any more; its priority is then unknown
    too, and given as 0.
    """

    id: str
    queue: str
    pushed_at: datetime | None
    size: int | None
    importance: str
    groups: dict[str, tuple[MessageStep, ...]]
    priority: int = 0

    def as_dict(self) -> dict[str, Any]:
        """As plain values; times in ISO 8601, in UTC."""
        found: dict[str, Any] = _plain(asdict(self))
        return found

    def sentences(self) -> list[str]:
        """The explanation in sentences; those about a group are indented under its name."""
        subject = f"Message {self.id} of queue {self.queue}"
        if self.pushed_at is None:
            lines = [f"{subject} is not stored any more."]
        else:
            size = f"{self.size:,} byte{'' if self.size == 1 else 's'}"
            about = f"{size}, importance {self.importance}, priority {self.priority}"
            lines = [f"{subject} was pushed at {said(self.pushed_at)} ({about})."]
        for group, steps in self.groups.items():
            now = steps[-1]
            where = "" if now.queue == self.queue else f", in {now.queue}"
            lines.append(f"Group {group}: {now.state}{where}.")
            for step in steps:
                lines += (f"  {sentence}" for sentence in (*step.happened, *step.next))
        return lines


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case dict():
            return {key: _plain(part) for key, part in value.items()}
        case list() | tuple():
            return [_plain(part) for part in value]
        case _:
            return value


def explain(ports: Ports, message_id: str, queue: QueueRow | None = None) -> Explanation:
    """Explain the message with an id, in the given queue or, without one, in any queue.

    Raises UsageError for an invalid id, MessageNotFoundError if no queue knows the message.
    """
    check_text("message_id", message_id)
    message_id = from_uuid(message_id)
    spot = parse_id(message_id)
    catalog = ports.catalog
    now_ms = catalog.now_ms()
    times = Times(now_ms, to_wall(ports, now_ms))
    home, pipe = _home(ports, spot, queue)
    if home is None or _lies_beyond(pipe, spot):
        elsewhere = _found_elsewhere(ports, message_id, queue)
        if elsewhere is not None:
            home, spot = elsewhere
            pipe = live_pipe(catalog, spot[0])
    wanted = {queue.name} if queue else set()
    if queue and is_dead_letter_name(queue.name):
        wanted.add(origin_of(queue.name)[0])  # the id of a dead letter may name its first queue
    if home is None or (wanted and home.name not in wanted):
        where = f"of queue {queue.name}" if queue else "of any queue"
        raise MessageNotFoundError(
            f"{message_id} is not a message {where}",
            hint="if its push returned an id with `spilled` set, it may still be in the spool of"
            " that client; or it was removed long ago",
        )
    groups_of_home = catalog.queues.groups(home.id)
    cursors = [c for g in groups_of_home for c in catalog.claims.cursors(g.id, [spot[0]])]
    content = _content(ports, pipe, spot, _near(spot, cursors)) if pipe else None
    if content is not None and content.id != message_id:  # the message there began elsewhere
        first = parse_id(content.id)
        began, there = _home(ports, first, None)
        if began and not _lies_beyond(there, first):
            return explain(ports, content.id)
        message_id = content.id
    tracer = _Tracer(ports, message_id, times)
    groups: dict[str, tuple[MessageStep, ...]] = {}
    for group in groups_of_home:
        if pipe is None or pipe.is_for(group.id):
            groups[group.name] = tuple(tracer.steps(home, group, spot))
    found = content or tracer.content
    return Explanation(
        id=message_id,
        queue=home.name,
        pushed_at=datetime.fromtimestamp(found.pushed_ms / 1000, UTC) if found else None,
        size=found.size if found else None,
        importance=importance_of(found.headers if found else {}),
        groups=groups,
        priority=pipe.priority if pipe else tracer.priority,
    )


def step_at(
    ports: Ports, queue: QueueRow, group: GroupRow, spot: Spot, message_id: str
) -> MessageStep:
    """Where a message is now for a group, followed from this place of a queue. message_id: its id.
    Cost: as `explain`."""
    now_ms = ports.catalog.now_ms()
    tracer = _Tracer(ports, message_id, Times(now_ms, to_wall(ports, now_ms)))
    return list(tracer.steps(queue, group, spot))[-1]


def parse_id(message_id: str) -> Spot:
    """The pipe and seq that a message id names; UsageError for an invalid id."""
    if isinstance(message_id, str):
        pipe_id, _, digits = message_id.rpartition(":")
        if pipe_id and digits.isascii() and digits.isdigit() and len(digits) < 20:
            return pipe_id, int(digits)
    raise UsageError(
        f"{message_id!r} is not a message ID", hint="an ID is PIPE:NUMBER, as a push returns it"
    )


def _home(
    ports: Ports, spot: Spot, queue: QueueRow | None
) -> tuple[QueueRow | None, PipeRow | None]:
    """The queue of a place, and its pipe unless that is retired. Cost: for a retired one, a read
    per queue."""
    catalog = ports.catalog
    pipe = catalog.pipes.by_id(spot[0])
    if pipe is not None and pipe.state is not PipeState.STAGED:
        found = catalog.queues.by_id(pipe.queue_id)
        home = None if found is None or found.deleted else found
        return home, pipe if pipe.state < PipeState.CONSUMED else None
    for row in [queue] if queue else catalog.queues.listed():
        if any(spot[1] < total.pushed for total in catalog.pipes.retired(row.id, spot[0])):
            return row, None
    return None, None


def _lies_beyond(pipe: PipeRow | None, spot: Spot) -> bool:
    """Whether a pipe was sealed before this place."""
    return pipe is not None and pipe.end is not None and spot[1] >= pipe.end.seq


class _Tracer:
    """Follows one message for one group after another."""

    def __init__(self, ports: Ports, message_id: str, times: Times) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._id = message_id
        self._times = times
        self.content: FrameContent | None = None  # of the last place where it was found
        self.priority: int = 0  # there

    def steps(self, queue: QueueRow, group: GroupRow, spot: Spot) -> Iterator[MessageStep]:
        """The places where the message was for a group, in order; the last is where it is."""
        seen: set[Spot] = set()
        while spot not in seen and len(seen) < STEPS_MAX:
            seen.add(spot)
            there = self._look(queue, group, spot)
            self.content = there.content or self.content
            self.priority = there.pipe.priority if there.pipe else self.priority
            step = step_of(there, self._times)
            onward = self._onward(there, seen)
            if onward is None:
                yield step
                return
            if step.state == "gone":
                step = replace(step, state="dead")
            yield step
            queue, group, spot = onward

    def _look(self, queue: QueueRow, group: GroupRow, spot: Spot) -> MessageState:
        pipe_id, seq = spot
        catalog = self._catalog
        pipe = live_pipe(catalog, pipe_id)
        if pipe is None:
            totals = catalog.pipes.retired(queue.id, pipe_id)
            mine: Retired | None = next((r for r in totals if r.group_id == group.id), None)
            return MessageState(queue, group, pipe_id, seq, retired=mine)
        cursor = catalog.claims.find_cursor(group.id, pipe_id)
        rows = catalog.claims.rows(group.id, pipe_id, range(seq, seq + 1)) if cursor else []
        claim = rows[0] if rows else None
        moves = catalog.claims.moves(group.id, pipe_id, range(seq, seq + 1))
        removals = catalog.claims.removed(group.id, pipe_id)
        near = _near(spot, [cursor] if cursor else [], claim)
        content = _content(self._ports, pipe, spot, near)
        there = MessageState(
            queue,
            group,
            pipe_id,
            seq,
            pipe=pipe,
            end_seq=seen_end(self._ports.store, pipe),
            cursor=cursor,
            claim=claim,
            move=moves[0] if moves else None,
            removed=next((r for r in removals if r.start <= seq < r.end), None),
            content=content,
            success_ms=catalog.records.success_ms(group.id),
            shared=self._shared(queue, group),
            above=_above(catalog, group, pipe),
        )
        return replace(there, held_by=self._holders(there))

    def _holders(self, there: MessageState) -> tuple[HeldKey, ...]:
        """What holds the key of a message: a dead letter, or as many delivered and unsettled
        messages of the key as the group allows at once. Cost: in a group whose keys dead letters
        hold, reads the dead letters; in a group in which messages wait for others of their key,
        the messages that were delivered."""
        group, claim = there.group, there.claim
        key = there.content.key if there.content is not None else None
        if key is None or there.fate(self._times.now_ms) not in UNFINISHED:
            return ()
        letters = held_by_letters(self._ports, there.queue.name, group).get(key, [])
        for letter in letters:
            if letter.id != self._id:
                return (held_by_letter(letter),)
        most = group.policy.limit_per_key or int(group.policy.order == "key")
        if not most or (claim is not None and there.seq in delivered(claim)):
            return ()
        found = delivered_of(self._ports, group, key, most)
        return tuple(found) if len(found) == most else ()

    def _shared(self, queue: QueueRow, group: GroupRow) -> tuple[str, str]:
        """The state of the group's limits that its poppers share: of the rate and of the permits.
        Cost: two reads if it has limits."""
        if not rules_of(queue.policy, group.policy).limited:
            return "", ""
        rate, permits = map(self._catalog.leases.shared, limit_names(group.id))
        return rate, permits

    def _onward(
        self, there: MessageState, seen: set[Spot]
    ) -> tuple[QueueRow, GroupRow, Spot] | None:
        """Where it went from there, if it was moved."""
        move, totals, removed = there.move, there.retired, there.removed
        if move is not None and move.settled:
            spot = (move.dest_pipe, move.dest_seq)
            found = self._at(spot) if live_pipe(self._catalog, move.dest_pipe) else None
            return found or self._search(there, seen)
        merged = removed is not None and removed.reason is Reason.MERGED
        retired = totals is not None and (totals.dead or totals.merged)
        return self._search(there, seen) if merged or retired else None

    def _at(self, spot: Spot) -> tuple[QueueRow, GroupRow, Spot] | None:
        """A place, with its queue and the group that reads it there."""
        pipe = self._catalog.pipes.by_id(spot[0])
        queue = self._catalog.queues.by_id(pipe.queue_id) if pipe else None
        if pipe is None or queue is None or queue.deleted:
            return None
        groups = self._catalog.queues.groups(queue.id)
        for group in groups:
            if group.id == pipe.group_id or (not pipe.group_id and group.name == "default"):
                return queue, group, spot
        return (queue, groups[0], spot) if groups and not pipe.group_id else None

    def _search(
        self, there: MessageState, seen: set[Spot]
    ) -> tuple[QueueRow, GroupRow, Spot] | None:
        """Search for the message where it may have gone."""
        spot = _search(self._ports, self._candidates(there), self._id, seen)
        return self._at(spot) if spot else None

    def _candidates(self, there: MessageState) -> list[PipeRow]:
        """The pipes of the group's dead letters, and those that are for the group alone."""
        queue, group = there.queue, there.group
        pairs = [(queue.name, group.name)]
        if is_dead_letter_name(queue.name):
            pairs.append(origin_of(queue.name))
        pipes: list[PipeRow] = []
        for name, group_name in pairs:
            own = self._catalog.queues.named(name)
            named = {dead_letter_name(name, group_name), own.policy.dead_letters if own else ""}
            for letters in map(self._catalog.queues.named, filter(None, named)):
                pipes += self._catalog.pipes.live(letters.id) if letters else []
            pipes += [p for p in self._catalog.pipes.live(own.id) if p.group_id] if own else []
        return pipes


def _above(catalog: Catalog, group: GroupRow, pipe: PipeRow) -> tuple[int, ...]:
    """The priorities greater than a pipe's whose messages may go first; the greatest comes first.
    Cost: the oldest pipe of each."""
    listed = catalog.pipes.unclaimed(group, 1, unacked=_is_in_order(catalog, group))
    return tuple(row.priority for row in listed if row.priority > pipe.priority)


def _is_in_order(catalog: Catalog, group: GroupRow) -> bool:
    """Whether the group's poppers list unacked pipes, not only unclaimed ones. This never changes
    for a group."""
    queue = catalog.queues.by_id(group.queue_id)
    in_order = group.policy.exclusive or (queue is not None and queue.policy.strict)
    return in_order and not group.policy.keyed


# --- searching --------------------------------------------------------------------------------


def _found_elsewhere(
    ports: Ports, message_id: str, queue: QueueRow | None
) -> tuple[QueueRow, Spot] | None:
    """The queue and the first place of a message whose id names no place of a queue."""
    queues = {row.id: row for row in ([queue] if queue else ports.catalog.queues.listed())}
    pipes = [pipe for queue_id in queues for pipe in ports.catalog.pipes.live(queue_id)]
    spot = _search(ports, pipes, message_id, set())
    if spot is None:
        return None
    return next((queues[pipe.queue_id], spot) for pipe in pipes if pipe.id == spot[0])


def _search(
    ports: Ports, pipes: Iterable[PipeRow], message_id: str, seen: Collection[Spot]
) -> Spot | None:
    """Search for a message in pipes where it did not begin, the newest first. The places `seen` are
    skipped."""
    wanted = message_id.encode()
    left = SEARCHED_MESSAGES

    def find(pipe: PipeRow, reader: ExtentReader) -> Spot | None:
        nonlocal left
        place, end_seq = Place(0, 0), (pipe.end or reader.published()).seq
        while place.seq < end_seq and left > 0:
            slices = reader.read(place, end_seq, left, SEARCH_BYTES)
            for frame, first, last in slices:
                left -= last - first
                if frame.ids and wanted in frame.ids[first:last]:
                    spot = (pipe.id, frame.base_seq + frame.ids.index(wanted))
                    if spot not in seen:
                        return spot
            place = reader.place_after(place, slices)
        return None

    newest_first = sorted(
        {pipe.id: pipe for pipe in pipes}.values(), key=attrgetter("ordinal"), reverse=True
    )
    found = (_use(ports, pipe, partial(find, pipe)) for pipe in newest_first)
    return next(filter(None, found), None)


# --- reading ----------------------------------------------------------------------------------


def _near(spot: Spot, cursors: Iterable[Cursor], claim: Claim | None = None) -> Place:
    """The nearest place known to the catalog that is at or before a message."""
    places = [place for cursor in cursors for place in (cursor.ack, cursor.chain)]
    places += [Place(claim.start, claim.pos)] if claim else []
    return max((place for place in places if place.seq <= spot[1]), default=Place(0, 0))


def _content(ports: Ports, pipe: PipeRow, spot: Spot, near: Place) -> FrameContent | None:
    """What the frame says about a message; None if it cannot be read.

    near: a known place at or before it.
    """
    seq = spot[1]

    def read(reader: ExtentReader) -> FrameContent | None:
        end = pipe.end or reader.published()
        if seq >= end.seq:
            return None
        ((frame, first, last),) = reader.read(Place(seq, near.pos), seq + 1, 1, 0)
        (payload,) = frame.payloads(first, last)
        return FrameContent(
            frame.id_at(first, pipe.id).decode(),
            frame.time_ms(first),
            len(payload),
            frame.headers_at(first),
            frame.due_ms(first),
            frame.key_at(first),
        )

    return _use(ports, pipe, read)


def _use(ports: Ports, pipe: PipeRow, use: Callable[[ExtentReader], T]) -> T | None:
    """Apply `use` to a pipe's reader; if the pipe cannot be read, log that and return None."""
    try:
        with closing(ports.store.reader(pipe.id)) as reader:
            return use(reader)
    except (ExtentMissingError, CorruptionError) as exc:
        logger.warning("pipe %s is skipped: %s", pipe.id, exc)
        return None
