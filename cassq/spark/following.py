"""Following: records what a stream has read from a queue, pipe by pipe, as acks of its group.

The offset of a stream, which Spark keeps in the checkpoint, names pipes, and for each of them

- where the stream begins in it, or continues after lost messages,
- how far it was read: every message below is in this batch or an earlier one,
- a position from which that place is found;

and the catalog's identity: a checkpoint does not continue with other queues. The offset before all
others may be marked `new`: then the first call of `latest` finds where the stream begins. As Spark
writes that call's result to the checkpoint, and not the mark, this happens once.

Spark asks for the next offset when the previous batch is done. It calls `commit` for that batch
some time later or, when the query ends, never: so messages are acked at either call, and the last
batch of a stopped query when it runs again. A pipe that is acked to its end leaves the offset with
the next batch that is not empty.

One query follows a group at a time, under a lease; nothing else may pop from that group.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from cassq.base.processes import is_gone, process_name
from cassq.errors import (
    BackendError,
    ConfigError,
    LeaseLostError,
    UsageError,
)
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
from cassq.spark.starting import begin_at

logger: logging.Logger = logging.getLogger("cassq")

LEASE_MS = 20_000
RENEW_SECONDS = 5.0
LOOK_SECONDS = 0.5
LISTED_MAX = 1_000_000
_TRIES = 3
_NEW = "new"
_IN = "@"  # between the id of a lease's owner and its process

Offset = dict[str, Any]


class FollowedPipe(NamedTuple):
    """What a stream has read of a pipe: from `first` on, below `done`. pos: the position of the
    frame that holds `done`, or of an earlier one."""

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
    offset = offset_of(identity, {})
    return offset if options.start == GROUP else {**offset, _NEW: True}


def check_identity(offset: Offset, location: Location) -> None:
    """Raise ConfigError for an offset of other queues than those at the location. One from before
    offsets had an identity fits all."""
    begun = offset.get("identity", location.identity)
    if begun != location.identity:
        raise ConfigError(
            f"the stream's checkpoint was made for other queues ({begun}) than those at"
            f" {location.url} ({location.identity})",
            hint="read the queues that the stream began with, or begin with a new checkpoint",
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


class Follower:
    """Follows a group for one query, on the driver. Not thread-safe."""

    def __init__(self, ports: Ports, options: StreamOptions, location: Location) -> None:
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
        self._lease = f"stream:{self._group.id}"
        process = process_name(self._ports.clock)
        self._owner = f"{self._ports.ids.version()}{_IN}{process}"
        self._acked: dict[str, int] = {}
        self._begun = False
        self._latest: Offset | None = None
        self._targets: dict[str, int] | None = None
        self._lost = False
        self._ended = threading.Event()
        self._take_lease()
        self._thread = threading.Thread(target=self._keep_on, name="cassq-follower", daemon=True)
        self._thread.start()

    # --- one query a group ----------------------------------------------------------------------

    def _take_lease(self) -> None:
        """Take the lease. That of a query whose process is known to be gone is released, that of
        another killed query is waited out. Raises UsageError while another query follows the
        group. Cost: while another has it, a read twice a second."""
        clock = self._ports.clock
        started_ms = clock.boot_ms()
        while not self._renew():
            if clock.boot_ms() - started_ms > LEASE_MS * 1.25:
                raise UsageError(
                    f"another query reads group {self._options.group!r} of queue"
                    f" {self._options.queue!r}",
                    hint="stop it, or give this one a group of its own, which gets every message:"
                    ' .option("group", …)',
                )
            holder = self._catalog.leases.owner(self._lease)
            if holder and is_gone(holder.partition(_IN)[2], clock):
                self._catalog.leases.drop(self._lease, holder)
            else:
                clock.sleep(LOOK_SECONDS)

    def _renew(self) -> bool:
        """Renew the lease; returns whether it is ours now, for its whole length."""
        return self._catalog.leases.take(self._lease, self._owner, LEASE_MS) is not None

    def keep_on(self) -> None:
        """Renew the lease, as a thread does every few seconds."""
        self._lost = not self._renew() or self._lost

    def _keep_on(self) -> None:
        while not self._ended.wait(RENEW_SECONDS):
            try:
                self.keep_on()
            except BackendError as exc:
                logger.warning("the lease of a stream could not be renewed: %s", exc)

    def _check_lease(self) -> None:
        if self._lost:
            raise LeaseLostError(
                f"another query began to read group {self._options.group!r} of queue"
                f" {self._options.queue!r} while this one was paused",
                hint="let one of them run, or give each a group of its own",
            )

    def close(self) -> None:
        """Let others follow the group."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join(timeout=RENEW_SECONDS)
        self._catalog.leases.drop(self._lease, self._owner)

    # --- offsets --------------------------------------------------------------------------------

    def latest(self, start: Offset, most: int | None) -> Offset:
        """The end of the next batch, of at most `most` messages; `start` when there are none.
        Everything before `start` is done. Raises ExtentMissingError for lost messages, ConfigError
        for a `start` of other queues, and as `begin_at` for a new one."""
        self.ack(start)
        if _NEW in start:
            self._begin()
            start = offset_of(self._location.identity, {})
        before = spans_of(start)
        spans: dict[str, FollowedPipe] = {}
        readable: dict[str, FollowedPipe] = {}
        left = most
        for pipe in self._pipes():
            span = before.get(pipe.id) or self._first(pipe)
            if span is None:
                continue
            span = self._unlost(pipe, span)
            readable[pipe.id] = whole = self._readable(pipe, span)
            spans[pipe.id] = grown = self._limited(pipe, span, whole, left)
            if left is not None:
                left -= grown.done - span.done
        for pipe_id in before.keys() - spans.keys():
            self._check_gone(pipe_id, before[pipe_id])
        new = {pipe_id: span for pipe_id, span in spans.items() if span.done > span.first}
        changed = any(new[each].done != before.get(each, (0, -1))[1] for each in new)
        behind = sum(readable[each].done - spans[each].done for each in spans)
        ends = {pipe_id: span for pipe_id, span in readable.items() if span.done > span.first}
        self._latest = {**offset_of(self._location.identity, ends), "behind": behind}
        return offset_of(self._location.identity, new) if changed else start

    def reported(self) -> Offset | None:
        """Where the last call of `latest` saw the end of what can be read: an offset, and `behind`,
        the number of messages between the offset that the call returned and this one. None before
        the first. Cost: none."""
        return self._latest

    def _begin(self) -> None:
        """Begin where the options say, unless this query has begun."""
        if not self._begun and self._options.start != GROUP:
            purged = begin_at(
                self._ports, self._queue, self._group, self._options.start, self._check_alone
            )
            logger.info("%s before the start of a stream purged", counted(purged, "message"))
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
                " from that",
            )

    def _end(self, pipe: PipeRow) -> Place:
        return end_of(self._catalog, self._ports.store, pipe)

    def _readable(self, pipe: PipeRow, span: FollowedPipe) -> FollowedPipe:
        """The span of a pipe as if everything that may be read by now were read."""
        end = self._end(pipe)
        if pipe.timer_ms is not None:
            end = self._due_end(pipe, Place(span.done, span.pos), end)
        return span if end.seq <= span.done else span._replace(done=end.seq, pos=end.pos)

    def _limited(
        self, pipe: PipeRow, span: FollowedPipe, whole: FollowedPipe, most: int | None
    ) -> FollowedPipe:
        """The span of a pipe with the next batch, of at most `most` of its messages."""
        done = whole.done
        if self._targets is not None:
            done = min(done, max(self._targets.get(pipe.id, 0), span.done))
        if most is not None:
            done = min(done, span.done + most)
        return whole if done == whole.done else span._replace(done=done)

    def _due_end(self, pipe: PipeRow, start: Place, end: Place) -> Place:
        """The place of the first message of a timer pipe that is not due."""
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
        self._check_lease()
        check_identity(offset, self._location)
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
        for _ in range(_TRIES):
            cursor = self._catalog.claims.cursor(self._group.id, pipe_id)
            if cursor is None or cursor.ack.seq >= span.done:
                return
            self._check_alone(cursor)
            chain = Place(span.done, max(span.pos, cursor.chain.pos))
            version = self._ports.ids.version
            done = claims.as_dead(claims.unclaimed(cursor, chain, version), version)
            if self._catalog.claims.claim(cursor, chain, done, synced=True):
                return
        raise BackendError(
            f"other processes keep moving group {self._group.name!r} in pipe {pipe_id}"
        )

    # --- what is lost ---------------------------------------------------------------------------

    def _unlost(self, pipe: PipeRow, span: FollowedPipe) -> FollowedPipe:
        """The span, moved past messages that were removed since, as by a purge or for their age."""
        cursor = self._catalog.claims.cursor(self._group.id, pipe.id)
        if cursor is None or cursor.ack.seq <= span.done:
            return span
        self._lose(pipe.id, span.done, cursor.ack.seq)
        return FollowedPipe(cursor.ack.seq, cursor.ack.seq, cursor.ack.pos)

    def _check_gone(self, pipe_id: str, span: FollowedPipe) -> None:
        """Check that everything was read of a pipe that left the listing, and so is all acked."""
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
