"""Quotas: how long a queue may become, whether it is paused, and how long consumed pipes are kept.

The length of a queue is the number of messages that its slowest group has not committed. Each
pusher keeps an estimate of the room left. It reads the length again after `LOOK_MS`, or when it has
used a tenth of the room, so most pushes pay nothing for the limit.

The bound: a single pusher never exceeds the limit. n pushers exceed it by at most what n - 1 of
them push between two checks: each the larger of one append (a `push_many`, or the pushes that wait
together) and a tenth of the room left at its last check. If several threads share a pusher, it
counts once for every level (a priority, or a key lane) that they push to.

In a full queue that drops its oldest messages, these are marked as doomed in one transaction. Then
they become dead letters like any other rejected message: through this pusher, or, if it dies,
through the next process that finds them.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable

from cassq.base.clock import Clock
from cassq.errors import CorruptionError, QueueFullError, QueuePausedError, UsageError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import MAXLEN, DeadLetterFn, dead_letter_or_leave
from cassq.lifecycle.sealing import end_of, seen_end
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.ledger import Fate, Unfinished, unfinished
from cassq.model.queues import QueuePolicy
from cassq.model.rows import Claim, Cursor, GroupRow, PipeRow, PipeState, QueueRow
from cassq.plurals import counted
from cassq.settings import QueueSettings

logger: logging.Logger = logging.getLogger("cassq")

LOOK_MS = 250
DRAIN_LOOK_SECONDS = 0.05
LOOK_FULL_MS = 10  # how often a full queue is checked, so that not every push does
DOOMED_AT_ONCE = 256


# --- retention of consumed pipes ----------------------------------------------------------------


def keeps(pipe: PipeRow, policy: QueuePolicy, now_ms: int) -> bool:
    """Whether a pipe that every group has committed must be kept for future groups.

    It is kept for at least `retain_consumed` after its newest message was pushed. Its row only
    implies that this was within twice `max_push_time_of_pipe` of its creation: once for the time
    that it was ready, once for the time that it was open. now_ms: catalog time.
    """
    if policy.retain_consumed == 0 or not pipe.end or pipe.end.seq == 0:
        return False
    newest_ms = pipe.created_ms + 2000 * policy.max_push_time_of_pipe
    return pipe.state is PipeState.SEALED and now_ms < newest_ms + policy.retain_consumed * 1000


# --- pausing and draining -----------------------------------------------------------------------


def paused(value: bool, *, push: bool, pop: bool) -> QueueSettings:
    """The settings that pause or resume pushing, popping or both. Raises UsageError for neither."""
    if not push and not pop:
        raise UsageError(
            "neither pushing nor popping was chosen", hint="pass push=True, pop=True, or both"
        )
    changes = QueueSettings()
    if push:
        changes["push_paused"] = value
    if pop:
        changes["pop_paused"] = value
    return changes


def drained(clock: Clock, left_now: Callable[[], int], seconds: float, notice_ms: int) -> int:
    """Wait until every group has committed everything, for at most `seconds`, but at least for
    `notice_ms`. Returns how many messages the slowest group has left.

    left_now: returns that number at the moment. notice_ms: how long pushes may still arrive.
    """
    started_ms = clock.boot_ms()
    while True:
        passed_ms = clock.boot_ms() - started_ms
        left = left_now()
        over = left == 0 or passed_ms >= seconds * 1000
        if over and passed_ms >= notice_ms:
            return left
        clock.sleep(DRAIN_LOOK_SECONDS)


# --- the length ---------------------------------------------------------------------------------


def uncommitted(
    end_seq: int, cursor: Cursor | None, rows: Iterable[Claim], *, doomed: bool = False
) -> int:
    """How many messages of a pipe a group has not committed. doomed: also count doomed messages,
    which are not dead letters yet."""
    return sum(
        part.messages
        for part in unfinished(cursor, rows, end_seq, 0)
        if doomed or part.row is None or not claims.is_doomed(part.row)
    )


def lengths(ports: Ports, queue: QueueRow, *, doomed: bool = False) -> dict[str, int]:
    """Group id → number of messages it has not committed, as `uncommitted` counts.

    Cost: a read of each live pipe, and the open claims of each group.
    """
    catalog = ports.catalog
    pipes = catalog.pipes.live(queue.id)
    ends = {pipe.id: seen_end(ports.store, pipe) for pipe in pipes}
    found: dict[str, int] = {}
    for group in catalog.queues.groups(queue.id):
        cursors = {cursor.pipe_id: cursor for cursor in catalog.claims.cursors(group.id)}
        found[group.id] = 0
        for pipe in pipes:
            cursor = cursors.get(pipe.id)
            if pipe.is_for(group.id):
                open_claims = cursor is not None and cursor.ack.seq < cursor.chain.seq
                rows = catalog.claims.rows(group.id, pipe.id) if open_claims else ()
                found[group.id] += uncommitted(ends[pipe.id], cursor, rows, doomed=doomed)
    if not found:
        found[""] = sum(ends.values())  # without groups nothing is ever committed
    return found


class Quota:
    """Checks before each append whether the queue has room. Not thread-safe: only the leader calls
    it.

    dead_letter: makes a message a dead letter of its group.
    """

    def __init__(
        self, ports: Ports, queue: Callable[[], QueueRow], dead_letter: DeadLetterFn
    ) -> None:
        self._ports = ports
        self._queue = queue
        self._dead_letter = dead_letter
        self._most = 0
        self._looked_ms = 0
        self._length = 0  # at the last check, plus what was admitted since
        self._allowance = 0  # what may be admitted before the next check

    def admit(self, count: int, *, whole: bool) -> int:
        """How many of `count` messages may be pushed now. whole: all or none.

        Raises QueuePausedError; QueueFullError if none may be pushed. Cost: none without a limit;
        with one, a comparison, and now and then a read of the queue's length.
        """
        policy = self._queue().policy
        if policy.push_paused:
            raise QueuePausedError(f"pushing to queue {self._queue().name!r} is paused", pushed=0)
        most = policy.max_length
        if most is None:
            return count
        self._keep_up(count, most)
        room = most - self._length
        if policy.overflow == "drop-oldest":
            if count > room:
                trim(self._ports, self._queue(), self._dead_letter, extra=count)
                self._look()
        elif room <= 0 or (whole and count > room):
            raise self.full_error(count)
        else:
            count = min(count, room)
        self._length += count
        self._allowance -= count
        return count

    def _keep_up(self, count: int, most: int) -> None:
        """Read the length again if it may have changed too much."""
        age_ms = self._ports.clock.boot_ms() - self._looked_ms
        full = self._length + count > most
        used_up = age_ms >= LOOK_FULL_MS if full else count > self._allowance
        if self._most != most or age_ms >= LOOK_MS or used_up:
            self._look()
        self._most = most

    def _look(self) -> None:
        self._looked_ms = self._ports.clock.boot_ms()
        self._length = max(lengths(self._ports, self._queue()).values())
        most = self._queue().policy.max_length
        self._allowance = 0 if most is None else max(0, most - self._length) // 10

    def full_error(self, count: int = 1) -> QueueFullError:
        """The error for a push of `count` messages, by the length at the last check."""
        name, most = self._queue().name, self._most
        length = counted(self._length, "uncommitted message")
        message = f"queue {name!r} has {length}; its limit is {most}"
        hint = ""
        if count > most:
            message = (
                f"queue {name!r} may hold at most {most} messages: {count} at once are too many"
            )
            hint = "push fewer at a time, or raise max_length"
        error = QueueFullError(message, hint=hint, retryable=count <= most)
        error.fields |= {"length": self._length, "limit": most, "pushed": 0}
        return error


# --- dropping the oldest ------------------------------------------------------------------------


def trim(ports: Ports, queue: QueueRow, dead_letter: DeadLetterFn, *, extra: int = 0) -> int:
    """In a queue that drops its oldest messages, move the excess to the dead letters of each group;
    returns how many messages. Those that poppers hold, or that are delayed, stay.

    extra: how many messages are about to be pushed. Cost: the same as `lengths`; then one
    transaction for every 256 messages, and one dead letter for each message.
    """
    most = queue.policy.max_length
    if most is None or queue.policy.overflow != "drop-oldest":
        return 0
    length = lengths(ports, queue)
    moved = 0
    for group in ports.catalog.queues.groups(queue.id):
        excess = length.get(group.id, 0) + min(extra, most) - most
        while excess > 0:
            doomed = doom_oldest(ports, queue, group, min(excess, DOOMED_AT_ONCE))
            if not doomed:
                break
            excess -= len(doomed)
            moved += sum(_put_away(dead_letter, queue, group, row) for row in doomed)
    return moved


def _put_away(dead_letter: DeadLetterFn, queue: QueueRow, group: GroupRow, row: Claim) -> bool:
    try:
        return dead_letter_or_leave(dead_letter, queue, group, row)
    except (ExtentMissingError, CorruptionError) as exc:
        logger.warning("pipe %s is not trimmed: %s", row.pipe_id, exc)
        return False


def doom_oldest(ports: Ports, queue: QueueRow, group: GroupRow, count: int) -> list[Claim]:
    """Mark the oldest waiting messages of a group as doomed; returns their rows, one for each."""
    lines: list[_Backlog] = []
    doomed: list[Claim] = []
    try:
        pipes = [p for p in ports.catalog.pipes.live(queue.id) if p.is_for(group.id)]
        lines += [_Backlog(ports, group, pipe) for pipe in pipes]
        heads = [(line.head_ms, number) for number, line in enumerate(lines) if line.look()]
        heapq.heapify(heads)
        while heads and len(doomed) < count:
            _, number = heapq.heappop(heads)
            line = lines[number]
            doomed += line.doom(count - len(doomed))
            if line.look():
                heapq.heappush(heads, (line.head_ms, number))
    finally:
        for line in lines:
            line.close()
    return doomed


class _Backlog:
    """The messages of a pipe that wait for a group, oldest first."""

    def __init__(self, ports: Ports, group: GroupRow, pipe: PipeRow) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._group = group
        self._pipe = pipe
        self._reader: ExtentReader | None = None
        self._free: Claim | None = None
        self._cursor: Cursor | None = None
        self._end_seq = 0
        self.head_ms = 0  # when the first message was pushed, or came due

    def look(self) -> bool:
        """Find the first message; False if nothing waits."""
        try:
            return self._look()
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("pipe %s is left as it is: %s", self._pipe.id, exc)
            return False

    def _look(self) -> bool:
        self._cursor = self._catalog.claims.cursor(self._group.id, self._pipe.id)
        if self._cursor is None:
            return False
        self._end_seq = end_of(self._catalog, self._ports.store, self._pipe).seq
        rows = self._catalog.claims.rows(self._group.id, self._pipe.id)
        now_ms, timed = self._catalog.now_ms(), self._pipe.timer_ms is not None
        parts = unfinished(self._cursor, rows, self._end_seq, now_ms, timed=timed)
        first = next((part for part in parts if self._may_go(part)), None)
        if first is None:
            return False
        self._free = first.row
        place, _ = first.runs[0]
        if self._reader is None:
            self._reader = self._ports.store.reader(self._pipe.id)
        ((frame, index, _),) = self._reader.read(place, place.seq + 1, 1, 0)
        self.head_ms = frame.due_ms(index) or frame.time_ms(index)
        return True

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _may_go(self, part: Unfinished) -> bool:
        row = part.row
        if row is not None and (claims.is_doomed(row) or claims.is_moving(row)):
            return False
        # In a timer pipe, messages that wait for their time are not old. In others they are: there
        # they are redeliveries.
        return part.fate is Fate.WAITING or (
            part.fate is Fate.DELAYED and self._pipe.timer_ms is None
        )

    def doom(self, count: int) -> list[Claim]:
        """Mark the first messages, at most `count`, within one row or one frame."""
        assert self._cursor is not None
        assert self._reader is not None
        if self._free is not None:
            return self._doom_free(self._free, count)
        cursor, limit = self._cursor, min(count, DOOMED_AT_ONCE)
        slices = self._reader.read(cursor.chain, self._end_seq, limit, 0)[:1]
        chain = self._reader.place_after(cursor.chain, slices)
        version = self._ports.ids.version
        waiting = claims.unclaimed(cursor, chain, version, self._pipe.priority)
        rows = self._doomed(waiting, count)
        return rows if self._catalog.claims.claim(cursor, chain, rows) else []

    def _doom_free(self, row: Claim, count: int) -> list[Claim]:
        rows = self._doomed(row, min(count, DOOMED_AT_ONCE))
        if not self._catalog.claims.replace(row, rows):
            return []
        return [new for new in rows if claims.is_doomed(new)]

    def _doomed(self, row: Claim, count: int) -> list[Claim]:
        """The rows that replace a free row: a doomed row for each of its first messages, and the
        rest."""
        now_ms = self._catalog.now_ms()
        failure = claims.failure_record(MAXLEN, "", "", now_ms, doomed=True)
        chosen = [seq for seq, _ in zip(row.left, range(count), strict=False)]
        gives = [
            ReturnedSeqs(RangeSet.run(seq, seq + 1), 0, row.deliveries, failure) for seq in chosen
        ]
        return claims.resolved(row, EMPTY, gives, self._ports.ids.version)
