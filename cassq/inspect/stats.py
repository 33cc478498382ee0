"""Statistics of a queue: exact depths from ends, cursors and claim rows, never from messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from cassq.catalog.port import Catalog, limit_names
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError, Slice
from cassq.inspect.held_keys import PIPES_AT_ONCE, failed_before, long_in_hand, waits_in_hand
from cassq.lifecycle.dead_keys import held_by_letters
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import seen_end
from cassq.message.frames import Place
from cassq.model.ledger import Account, Fate, GroupView, tally, tally_retired, unfinished
from cassq.model.limits import permits_of
from cassq.model.queues import rules_of
from cassq.model.rows import (
    Claim,
    Cursor,
    GroupRow,
    PipeRow,
    PipeState,
    QueueRow,
    RetiredSum,
)

# How often a queue is read again because a pipe was retired meanwhile.
LOOKS_MAX = 5
# For how long a message may fail in a group in the order of keys before its key counts as stuck.
STUCK_SECONDS = 900
# The parts of a group's statistics that add up to what was pushed for it.
LEDGER = (
    *("waiting", "pending", "committed", "dead", "expired", "purged", "merged", "lost"),
    "skipped",
)

S = TypeVar("S")


@dataclass(slots=True)
class GroupStats:
    """How many messages of a queue are in which state for one group.

    waiting: not claimed, or given back, including delayed ones; delayed: of those, not yet due;
    pending: claimed and not acked; committed; dead: moved to the group's dead letters; expired: too
    old; purged: deleted or cancelled; merged: dead letters that are back in their queue; lost:
    damaged, and given up by `Queue.skip_damage`; skipped: pushed before the group's start. All but
    `delayed` add up to `pushed`, what was pushed for this group.
    """

    waiting: int = 0
    delayed: int = 0
    pending: int = 0
    committed: int = 0
    dead: int = 0
    expired: int = 0
    purged: int = 0
    merged: int = 0
    lost: int = 0
    skipped: int = 0
    pushed: int = 0
    # Seconds since the oldest uncommitted message was pushed or, if delayed, came due; None if
    # there is none.
    oldest_age: float | None = None
    # How many keys dead letters hold, in a group made with on_dead="hold".
    held_keys: int = 0
    # How many messages that first failed more than `STUCK_SECONDS` ago hold their keys, in a group
    # made with order="key".
    stuck_keys: int = 0
    # How many messages have been in hand for more than `STUCK_SECONDS`, in a group in which others
    # of their keys wait meanwhile.
    stuck_in_hand: int = 0
    # How many messages its consumers have or are about to take, and how many `concurrency` allows
    # over all poppers; both None without that limit.
    permits: int | None = None
    concurrency: int | None = None
    # Number of deliveries → how many waiting or pending messages have had that many.
    deliveries: dict[int, int] = field(default_factory=dict)
    # Priority → how many messages of it are waiting, the greatest first; empty while all have 0.
    priorities: dict[int, int] = field(default_factory=dict)

    @property
    def popped(self) -> int:
        """Messages that were delivered at least once, except those removed since."""
        tried = sum(count for times, count in self.deliveries.items() if times)
        return self.committed + self.dead + tried

    def add(self, account: Account, priority: int = 0) -> None:
        """Add what a pipe of this priority holds for the group, or what retired pipes held."""
        waiting = account.counts.get(Fate.WAITING, 0) + account.counts.get(Fate.DELAYED, 0)
        if priority and waiting and not self.priorities:
            self.priorities[0] = self.waiting
        if waiting and (priority or self.priorities):
            levels = {**self.priorities, priority: self.priorities.get(priority, 0) + waiting}
            self.priorities = dict(sorted(levels.items(), reverse=True))
        self.pushed += account.pushed
        self.waiting += account.counts.get(Fate.DELAYED, 0)
        for fate, count in account.counts.items():
            if count:
                setattr(self, fate, getattr(self, fate) + count)
        for times, count in account.deliveries.items():
            self.deliveries[times] = self.deliveries.get(times, 0) + count


@dataclass(slots=True)
class QueueStats:
    """A queue at a glance. pushed: since it was created; pipes: by state. The rest only if
    requested: troubles: how many messages had each trouble in the last two days, see
    `cassq.inspect.degradation`. requests: how many requests to servers had each outcome, over all
    clients of all queues. expired_groups: how many `groups` expired in the last 60 days, and how
    many messages they had `uncommitted` then."""

    name: str
    consistency: str
    pushed: int = 0
    pipes: dict[str, int] = field(default_factory=dict)
    groups: dict[str, GroupStats] = field(default_factory=dict)
    troubles: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    expired_groups: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self)
        for name, group in self.groups.items():
            fields["groups"][name]["popped"] = group.popped
        return fields


def view_of(catalog: Catalog, group_id: str, pipe_id: str, cursor: Cursor | None) -> GroupView:
    """The catalog's state of a group in a pipe. Cost: three ranges of keys."""
    if cursor is None:
        return GroupView(None)
    rows = catalog.claims.rows(group_id, pipe_id)
    moves = catalog.claims.moves(group_id, pipe_id)
    return GroupView(cursor, rows, moves, catalog.claims.removed(group_id, pipe_id))


def views_of(
    catalog: Catalog, group_id: str, pipes: Sequence[PipeRow], cursors: Mapping[str, Cursor]
) -> Iterator[GroupView]:
    """`view_of` each of some pipes, in their order. cursors: by pipe. Cost: on networked catalogs
    three rounds of reads for every `PIPES_AT_ONCE` pipes with a cursor."""
    claims = catalog.claims
    for at in range(0, len(pipes), PIPES_AT_ONCE):
        some = pipes[at : at + PIPES_AT_ONCE]
        known = [pipe.id for pipe in some if pipe.id in cursors]
        rows, moves = claims.rows_in(group_id, known), claims.moves_in(group_id, known)
        read = zip(rows, moves, claims.removed_in(group_id, known), strict=True)
        views = {
            pipe_id: GroupView(cursors[pipe_id], *parts)
            for pipe_id, parts in zip(known, read, strict=True)
        }
        for pipe in some:
            yield views.get(pipe.id) or GroupView(None)


def queue_stats(ports: Ports, queue: QueueRow) -> QueueStats:
    """The statistics of a queue. Cost: its live pipes, and the open claims of each group, however
    many pipes were retired; for the ages, a frame for each group, and two for each timer pipe that
    is due; the dead letters of groups whose keys they hold; one more read for a group in which
    messages in hand hold their keys, or with `concurrency`. Up to LOOKS_MAX times all that while
    pipes are being retired."""
    return _steady(ports, queue, lambda: _look(ports, queue))


def group_stats(ports: Ports, queue: QueueRow, group: GroupRow) -> GroupStats:
    """The statistics of one group, without the age of its oldest message. Cost: as `queue_stats`,
    for this group alone."""

    def look() -> GroupStats:
        pipes = [pipe for pipe in ports.catalog.pipes.live(queue.id) if pipe.is_for(group.id)]
        retired = {row.group_id: row for row in ports.catalog.pipes.retired_sums(queue.id)}
        return _look_at(ports, group, pipes, retired.get(group.id))

    return _steady(ports, queue, look)


def _steady(ports: Ports, queue: QueueRow, look: Callable[[], S]) -> S:
    """What `look` finds if no pipe is retired meanwhile; the last of LOOKS_MAX tries counts even if
    one is."""
    before, found = version_of(ports, queue), look()
    for _ in range(LOOKS_MAX - 1):
        # A pipe that is retired between two of these reads would count twice.
        after = version_of(ports, queue)
        if before == after:
            break
        before, found = after, look()
    return found


def _look_at(
    ports: Ports, group: GroupRow, pipes: Sequence[PipeRow], retired: RetiredSum | None
) -> GroupStats:
    catalog, found = ports.catalog, GroupStats()
    cursors = {cursor.pipe_id: cursor for cursor in catalog.claims.cursors(group.id)}
    for pipe, view in zip(pipes, views_of(catalog, group.id, pipes, cursors), strict=True):
        end_seq, timed = seen_end(ports.store, pipe), pipe.timer_ms is not None
        found.add(tally(view, catalog.now_ms()).up_to(end_seq, timed=timed), pipe.priority)
    if retired is not None:
        found.add(tally_retired(retired))
    return found


def version_of(ports: Ports, queue: QueueRow) -> int | None:
    """A version that changes whenever pipes are retired. Cost: one read."""
    row = ports.catalog.queues.by_id(queue.id)
    return None if row is None else row.groups_version


def _look(ports: Ports, queue: QueueRow) -> QueueStats:
    catalog = ports.catalog
    stats = QueueStats(queue.name, queue.policy.consistency)
    pipes = catalog.pipes.live(queue.id)
    ends = {pipe.id: seen_end(ports.store, pipe) for pipe in pipes}
    retired = {row.group_id: row for row in catalog.pipes.retired_sums(queue.id)}
    whole = retired.get("", RetiredSum("", 0, 0, 0, 0))
    now_ms = catalog.now_ms()
    stats.pushed = sum(ends.values()) + whole.pushed
    for state in (PipeState.READY, PipeState.OPEN, PipeState.SEALED):
        stats.pipes[state.name.lower()] = sum(pipe.state is state for pipe in pipes)
    stats.pipes["retired"] = whole.pipes
    for group in catalog.queues.groups(queue.id):
        mine = stats.groups[group.name] = GroupStats()
        cursors = {cursor.pipe_id: cursor for cursor in catalog.claims.cursors(group.id)}
        for_it = [pipe for pipe in pipes if pipe.is_for(group.id)]
        ages: list[float] = []
        rows: list[Claim] = []
        for pipe, view in zip(for_it, views_of(catalog, group.id, for_it, cursors), strict=True):
            timed = pipe.timer_ms is not None
            mine.add(tally(view, now_ms).up_to(ends[pipe.id], timed=timed), pipe.priority)
            rows += view.rows
            if pipe.timer_ms is not None and pipe.timer_ms <= now_ms:
                ages += _ages_due(ports, pipe.id, ends[pipe.id], view, now_ms)
        if group.id in retired:
            mine.add(tally_retired(retired[group.id]))
        at_once = [pipe for pipe in for_it if pipe.timer_ms is None]
        ages += _ages_pushed(ports, at_once, cursors, ends)
        mine.oldest_age = max(ages, default=None)
        mine.held_keys = len(held_by_letters(ports, queue.name, group))
        _count_stuck(catalog, mine, group, rows, now_ms)
        mine.concurrency = rules_of(queue.policy, group.policy).concurrency
        if mine.concurrency is not None:
            mine.permits = permits_in_use(catalog, group)
    return stats


def permits_in_use(catalog: Catalog, group: GroupRow) -> int:
    """How many messages the poppers of a group may have in hand now, of those that its concurrency
    allows. Cost: a read."""
    text = catalog.leases.shared(limit_names(group.id)[1])
    return sum(count for count, _ in permits_of(text, catalog.now_ms()).values())


def _count_stuck(
    catalog: Catalog, stats: GroupStats, group: GroupRow, rows: Sequence[Claim], now_ms: int
) -> None:
    """Count the messages that have held their keys for too long. Cost: a read in a group in which
    messages in hand hold their keys."""
    before_ms = now_ms - STUCK_SECONDS * 1000
    if group.policy.order == "key":
        stats.stuck_keys = sum(row.left_count for row in rows if failed_before(row, before_ms))
    if waits_in_hand(group.policy):
        stats.stuck_in_hand = long_in_hand(catalog, group.id, rows, now_ms, before_ms)


def _ages_pushed(
    ports: Ports, pipes: list[PipeRow], cursors: dict[str, Cursor], ends: dict[str, int]
) -> list[float]:
    """Seconds since the push of the first unacked message in the oldest pipe that has one; empty if
    none has. Cost: one frame."""
    for pipe in pipes:
        cursor = cursors.get(pipe.id)
        place = cursor.ack if cursor else Place(0, 0)
        found = _frame_at(ports, pipe.id, place) if place.seq < ends[pipe.id] else None
        if found is not None:
            frame, first, _ = found
            return [max(0.0, (ports.clock.wall_ms() - frame.time_ms(first)) / 1000)]
    return []


def _ages_due(ports: Ports, pipe_id: str, end: int, view: GroupView, now_ms: int) -> list[float]:
    """Seconds since uncommitted messages of a timer pipe came due, including the oldest one that
    was never delivered. Cost: two frames at most."""
    unread: list[Place] = []
    dues: list[int] = []
    parts = unfinished(view.cursor, view.rows, end, now_ms)
    for part in sorted(parts, key=lambda part: part.row is not None):
        row = part.row
        if row is not None and part.fate is not Fate.PENDING and row.due_ms and not row.deliveries:
            dues.append(row.due_ms)
        else:
            unread.append(part.start)  # only its frame has its due time
    for place in unread[:2]:
        found = _frame_at(ports, pipe_id, place)
        if found is not None:
            frame, first, _ = found
            dues.append(frame.due_ms(first) or now_ms)
    return [(now_ms - due_ms) / 1000 for due_ms in dues if due_ms <= now_ms]


def _frame_at(ports: Ports, pipe_id: str, place: Place) -> Slice | None:
    """The message at a place, in its frame; None if it cannot be read."""
    try:
        reader = ports.store.reader(pipe_id)
    except (ExtentMissingError, CorruptionError):
        return None
    try:
        return reader.read(place, place.seq + 1, 1, 0)[0]
    except (ExtentMissingError, CorruptionError):
        return None
    finally:
        reader.close()
