"""Following: records what a stream has read from a queue, pipe by pipe, as acks of its group.

The offset of a stream, which Spark keeps in the checkpoint, names pipes, and for each of them

- where the stream begins in it, or continues after lost messages,
- how far it was read: every message below is in this batch or an earlier one,
- a position from which that place is found;

and the catalog's identity: a checkpoint does not continue with other queues. The initial offset may
be marked `new`: then the first call of `latest` finds where the stream begins. Spark writes that
call's result to the checkpoint, without the mark, so this happens once.

Spark asks for the next offset when the previous batch is done. It calls `commit` for that batch
some time later or, when the query ends, never. So messages are acked at whichever call comes first,
and those of a stopped query's last batch when it runs again. A pipe that is acked to its end leaves
the offset with the next batch that is not empty.

One query follows a group at a time, under a lease; nothing else may pop from that group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.base.clock import attempts, contended
from cassq.errors import ConfigError, UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.rows import Cursor, GroupRow, PipeRow
from cassq.plurals import counted
from cassq.spark.clients import Location, queue_of
from cassq.spark.options import GROUP, StreamOptions
from cassq.spark.reading import READ_BYTES, READ_MESSAGES, PipeRange, group_of
from cassq.spark.streams.leasing import GroupLease, Renewals
from cassq.spark.streams.starting import begin_at

logger: logging.Logger = logging.getLogger("cassq")

LISTED_MAX = 1_000_000
NEW = "new"
QUEUES = "queues"  # in offsets of several queues only

Offset = dict[str, Any]


class FollowedPipe(NamedTuple):
    """What a stream has read of a pipe: messages `first .. done` (excluded). pos: the position of
    the frame that holds `done`, or of an earlier frame."""

    first: int
    done: int
    pos: int


def spans_of(offset: Offset) -> dict[str, FollowedPipe]:
    return {pipe_id: FollowedPipe(*span) for pipe_id, span in offset.get("pipes", {}).items()}


def offset_of(identity: str, spans: Mapping[str, FollowedPipe]) -> Offset:
    pipes = {pipe_id: list(span) for pipe_id, span in spans.items()}
    return {"pipes": pipes, "identity": identity}


def initial_offset(identity: str, options: StreamOptions) -> Offset:
    """The offset of a query whose checkpoint has none."""
    offset = offset_of(identity, {}) if options.queue else {QUEUES: {}, "identity": identity}
    return offset if options.start == GROUP else {**offset, NEW: True}


def check_offset(offset: Offset, location: Location, *, several: bool = False) -> None:
    """Raise ConfigError for an offset of other queues than those at the location, and for the
    offset of a stream of several queues in a stream of one, or the other way round. An offset from
    before offsets had an identity fits every location."""
    begun = offset.get("identity", location.identity)
    if begun != location.identity:
        raise ConfigError(
            f"the stream's checkpoint was made for other queues ({begun}) than those at"
            f" {location.url} ({location.identity})",
            hint="read the queues that the stream began with, or begin with a new checkpoint",
        )
    if several != (QUEUES in offset):
        raise ConfigError(
            "the stream's checkpoint was made for one queue, not for several"
            if several
            else "the stream's checkpoint was made for several queues, not for one",
            hint="read with the option that the stream began with (`queue`, or `queues` or"
            " `queuePattern`), or begin with a new checkpoint",
        )


def pieces_between(start: Offset, end: Offset) -> list[PipeRange]:
    """The messages between two offsets. Pure: a replayed batch has the same messages."""
    before = spans_of(start)
    found = []
    for pipe_id, span in spans_of(end).items():
        was = before.get(pipe_id, FollowedPipe(span.first, span.first, 0))
        begin = max(was.done, span.first)
        if span.done > begin:
            found.append(PipeRange(pipe_id, Place(begin, was.pos), span.done))
    return found


class ReadablePipes(NamedTuple):
    """What can be read of a queue's pipes after `start`. spans: how far each pipe was read.
    readable: the same if everything that is there by now had been read. allowed: the same if
    everything that the query may read had been read."""

    start: Offset
    spans: dict[str, FollowedPipe]
    readable: dict[str, FollowedPipe]
    allowed: dict[str, FollowedPipe]

    @property
    def messages(self) -> int:
        """How many messages may be read."""
        return sum(self.allowed[each].done - span.done for each, span in self.spans.items())


class Follower:
    """Follows a group for one query, on the driver. Not thread-safe."""

    def __init__(
        self, ports: Ports, options: StreamOptions, location: Location, renewals: Renewals
    ) -> None:
        self._ports = ports
        self._catalog = ports.catalog
        self._options = options
        self._location = location
        queue = queue_of(ports, options.queue)
        self._group: GroupRow = group_of(self._ports, queue.id, options.queue, options.group)
        if queue.policy.strict or self._group.policy.exclusive:
            raise ConfigError(
                f"group {options.group!r} of queue {options.queue!r} is exclusive: it keeps"
                " messages in order, but the tasks of a stream read in parallel",
                hint="read from an ap queue, and name a group that is not exclusive with"
                ' .option("group", …)',
            )
        if self._group.policy.group_expires is not None:
            raise ConfigError(
                f"group {options.group!r} of queue {options.queue!r} is removed when it has no"
                " popper, and a stream has none",
                hint='name a group without group_expires with .option("group", …)',
            )
        self._queue = queue
        self._acked: dict[str, int] = {}
        self._begun = False
        self._latest: Offset | None = None
        self._targets: dict[str, int] | None = None
        self.lease: GroupLease = GroupLease(ports, self._group, options.queue)
        self.lease.take()
        self._renewals = renewals
        renewals.add(self.lease)

    @property
    def queue_id(self) -> str:
        return self._queue.id

    def close(self) -> None:
        """Let others follow the group."""
        self._renewals.remove(self.lease)
        self.lease.release()

    # --- offsets --------------------------------------------------------------------------------

    def latest(self, start: Offset, most: int | None) -> Offset:
        """The end of the next batch, of at most `most` messages; `start` if there are none.
        Everything before `start` must have been processed. Raises as `look`."""
        return self.take(self.look(start), most)

    def look(self, start: Offset) -> ReadablePipes:
        """What can be read from `start` on; acks everything before it. Raises ExtentMissingError
        for lost messages, ConfigError for a `start` of other queues, and as `begin_at` for a new
        one."""
        self.ack(start)
        if NEW in start:
            self._begin()
            start = offset_of(self._location.identity, {})
        before = spans_of(start)
        spans: dict[str, FollowedPipe] = {}
        readable: dict[str, FollowedPipe] = {}
        allowed: dict[str, FollowedPipe] = {}
        for pipe in self._pipes():
            span = before.get(pipe.id) or self._first(pipe)
            if span is None:
                continue
            spans[pipe.id] = span = self._past_removed(pipe, span)
            readable[pipe.id] = whole = self._readable(pipe, span)
            allowed[pipe.id] = self._allowed(pipe, span, whole)
        for pipe_id in before.keys() - spans.keys():
            self._check_gone(pipe_id, before[pipe_id])
        return ReadablePipes(start, spans, readable, allowed)

    def take(self, seen: ReadablePipes, most: int | None) -> Offset:
        """The end of the next batch, of at most `most` messages that `look` saw; its start if there
        are none."""
        before = spans_of(seen.start)
        left = seen.messages if most is None else most
        spans: dict[str, FollowedPipe] = {}
        for pipe_id, span in seen.spans.items():
            whole = seen.allowed[pipe_id]
            done = min(whole.done, span.done + left)
            spans[pipe_id] = whole if done == whole.done else span._replace(done=done)
            left -= done - span.done
        new = {pipe_id: span for pipe_id, span in spans.items() if span.done > span.first}
        changed = any(new[each].done != before.get(each, (0, -1))[1] for each in new)
        behind = sum(seen.readable[each].done - spans[each].done for each in spans)
        ends = {pipe_id: span for pipe_id, span in seen.readable.items() if span.done > span.first}
        self._latest = {**offset_of(self._location.identity, ends), "behind": behind}
        return offset_of(self._location.identity, new) if changed else seen.start

    def reported(self) -> Offset | None:
        """The end of what could be read at the last call of `latest`, as an offset. Its `behind` is
        the number of messages between the offset that the call returned and this one. None before
        the first call. Cost: none."""
        return self._latest

    def _begin(self) -> None:
        """Begin where the options say, unless this query has begun."""
        if not self._begun and self._options.start != GROUP:
            purged = begin_at(
                self._ports, self._queue, self._group, self._options.start, self._check_alone
            )
            logger.info("purged %s before the start of a stream", counted(purged, "message"))
        self._begun = True

    def stop_here(self) -> None:
        """Read no further than what is there now."""
        self._targets = {pipe.id: self._end(pipe).seq for pipe in self._pipes()}

    def _pipes(self) -> list[PipeRow]:
        """The pipes that are not fully acked, timer pipes last."""
        now_ms = self._catalog.now_ms()
        plain = self._catalog.pipes.unclaimed(self._group, LISTED_MAX, unacked=True)
        return plain + self._catalog.pipes.timers(self._group, now_ms, LISTED_MAX)

    def _first(self, pipe: PipeRow) -> FollowedPipe | None:
        """Where the stream begins in a pipe that is new to it: at the group's ack offset."""
        cursor = self._catalog.claims.cursor(self._group.id, pipe.id)
        if cursor is None:
            return None
        self._check_alone(cursor)
        return FollowedPipe(cursor.ack.seq, cursor.ack.seq, cursor.ack.pos)

    def _check_alone(self, cursor: Cursor) -> None:
        if cursor.chain.seq != cursor.ack.seq:
            raise UsageError(
                f"a popper of group {self._options.group!r} of queue {self._options.queue!r} has"
                f" claimed messages {cursor.ack.seq} to {cursor.chain.seq - 1} of pipe"
                f" {cursor.pipe_id}",
                hint='give the stream a group of its own, .option("group", …), and pop nothing'
                " from it",
            )

    def _end(self, pipe: PipeRow) -> Place:
        return end_of(self._catalog, self._ports.store, pipe)

    def _readable(self, pipe: PipeRow, span: FollowedPipe) -> FollowedPipe:
        """The span of a pipe if everything that can be read by now had been read."""
        end = self._end(pipe)
        if pipe.timer_ms is not None:
            end = self._due_end(pipe, Place(span.done, span.pos), end)
        return span if end.seq <= span.done else span._replace(done=end.seq, pos=end.pos)

    def _allowed(self, pipe: PipeRow, span: FollowedPipe, whole: FollowedPipe) -> FollowedPipe:
        """The same, limited to what was there when `stop_here` was called, if it was."""
        if self._targets is None:
            return whole
        done = min(whole.done, max(self._targets.get(pipe.id, 0), span.done))
        return whole if done == whole.done else span._replace(done=done)

    def _due_end(self, pipe: PipeRow, start: Place, end: Place) -> Place:
        """The place of the first message of a timer pipe that is not due, or `end`."""
        now_ms = self._catalog.now_ms()
        reader = self._ports.store.reader(pipe.id)
        try:
            place = start
            while place.seq < end.seq:
                slices = reader.read(place, end.seq, READ_MESSAGES, READ_BYTES)
                for frame, first, last in slices:
                    for index in range(first, last):
                        if (frame.due_ms(index) or 0) > now_ms:
                            return Place(frame.base_seq + index, place.pos)
                place = reader.place_after(place, slices)
            return end
        finally:
            reader.close()

    # --- acks -----------------------------------------------------------------------------------

    def ack(self, offset: Offset) -> None:
        """Ack everything below an offset for the group. Cost: a read and a synced transaction for
        each pipe that moved on."""
        self.lease.check()
        check_offset(offset, self._location)
        moved = False
        for pipe_id, span in spans_of(offset).items():
            if self._acked.get(pipe_id, span.first) < span.done:
                self._ack(pipe_id, span)
                self._acked[pipe_id] = span.done
                moved = True
        if moved:
            self._catalog.records.note_success(self._group.id, self._catalog.now_ms())
        self._acked = {p: n for p, n in self._acked.items() if p in offset.get("pipes", {})}

    def _ack(self, pipe_id: str, span: FollowedPipe) -> None:
        for _ in attempts(self._ports.clock):
            cursor = self._catalog.claims.cursor(self._group.id, pipe_id)
            if cursor is None or cursor.ack.seq >= span.done:
                return
            self._check_alone(cursor)
            chain = Place(span.done, max(span.pos, cursor.chain.pos))
            version = self._ports.ids.version
            done = claims.as_dead(claims.unclaimed(cursor, chain, version), version)
            if self._catalog.claims.claim(cursor, chain, done, synced=True):
                return
        raise contended(f"the position of group {self._group.name!r} in pipe {pipe_id}")

    # --- what is lost ---------------------------------------------------------------------------

    def _past_removed(self, pipe: PipeRow, span: FollowedPipe) -> FollowedPipe:
        """The span, moved past messages that were removed since, by a purge or for their age."""
        cursor = self._catalog.claims.cursor(self._group.id, pipe.id)
        if cursor is None or cursor.ack.seq <= span.done:
            return span
        self._lose(pipe.id, span.done, cursor.ack.seq)
        return FollowedPipe(cursor.ack.seq, cursor.ack.seq, cursor.ack.pos)

    def _check_gone(self, pipe_id: str, span: FollowedPipe) -> None:
        """Check that a pipe was read to its end. It left the listing, so all of it is acked."""
        row = self._catalog.pipes.by_id(pipe_id)
        totals = self._catalog.pipes.retired(self._queue.id, pipe_id)
        end = row.end.seq if row is not None and row.end is not None else None
        if end is None:
            end = max((total.pushed for total in totals), default=span.done)
        if end > span.done:
            self._lose(pipe_id, span.done, end)

    def _lose(self, pipe_id: str, first: int, end: int) -> None:
        what = f"messages {first} to {end - 1} of pipe {pipe_id}"
        if self._options.fail_on_data_loss:
            raise ExtentMissingError(
                f"{what} of queue {self._options.queue!r} were removed before the stream read"
                " them: the group was purged, or their retention ended",
                hint='continue without them: .option("failOnDataLoss", "false")',
                retryable=False,
            )
        logger.warning("%s are gone, and are left out", what)
