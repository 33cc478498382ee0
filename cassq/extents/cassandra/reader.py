"""Reading an extent from Cassandra in slices of a bucket, frame by verified frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cassandra.cluster import ResponseFuture

from cassq.base.clock import Clock, Stopwatch
from cassq.cassandra.session import Cql, Row
from cassq.errors import BackendError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head, Heads
from cassq.extents.cassandra.marks import ExtentMarks, marks_of
from cassq.extents.cassandra.places import bucket_and_seq, end_place, position
from cassq.extents.cassandra.published import PolledEnds
from cassq.extents.cassandra.writer import CassandraWriter
from cassq.extents.frame_cache import FrameCache
from cassq.extents.port import ExtentReader, Slice, missing
from cassq.extents.read_loop import parted, read_slices
from cassq.message.frames import HEADER_SIZE, Frame, FrameError, Place, decode, frame_seqs, pipe_key

_SLICE_MIN, _SLICE_MAX = 128 * 1024, 2 * 1024 * 1024
_ROWS_MAX = 5000  # a page of the driver's
_BUCKETS_KNOWN_MAX = 10_000
IDLE_SECONDS = 1.0  # so long after a read, a request for the end no longer asks for a frame too


class TurnRequests:
    """The pipes in which this process asked for a turn, and when each last had something new."""

    def __init__(self, cql: Cql, clock: Clock) -> None:
        self._cql = cql
        self._clock = clock
        self._seen: dict[str, tuple[int, int]] = {}

    def ask(self, extent: str, marks: ExtentMarks) -> int:
        """Ask once; returns the time of the last append that was seen, in this process's boot
        milliseconds. Cost: one plain write, the first time."""
        if extent not in self._seen:
            self._cql.write(statements.ASK_TURN, (extent,))
        acked, since_ms = self._seen.get(extent, (-1, 0))
        if acked != marks.acked:
            since_ms = self._clock.boot_ms()
            self._seen[extent] = (marks.acked, since_ms)
        return since_ms

    def forget(self, extent: str) -> None:
        """Forget a sealed extent."""
        self._seen.pop(extent, None)


class _Coming(NamedTuple):
    bucket: int
    base_seq: int
    future: ResponseFuture


class CassandraReader(ExtentReader):
    """Reads one extent; keeps the last slice for the next read, and prefetches the one after it
    while it is read in order.

    kept, ends: shared by the readers of this process: frames they read, and how far pipes go.
    local: the writer of a pipe, if it is in this process.
    """

    earlier_boot = False

    def __init__(
        self,
        cql: Cql,
        heads: Heads,
        head: Head,
        turns: TurnRequests,
        kept: FrameCache,
        ends: PolledEnds,
        local: Callable[[str], CassandraWriter | None],
    ) -> None:
        self._cql = cql
        self._heads = heads
        self._head = head
        self._turns = turns
        self._kept = kept
        self._local = local
        self._pipe_id = head.pipe_id
        self._key = pipe_key(head.pipe_id)
        self._published = ends.of(head.extent)
        self._ahead: dict[int, tuple[int, bytes]] = {}  # by base seq: bucket, frame
        self._frame: Frame | None = None
        self._buckets: dict[int, int] = {}  # of frames read, by base seq
        self._coming: _Coming | None = None
        self._next_frame: _Coming | None = None
        self._read_watch: Stopwatch | None = None  # since the last read
        self._next_seq = 0  # where a read in order begins
        self._in_order = True
        self._slice_bytes = _SLICE_MIN
        self._row_bytes = _SLICE_MIN // 2
        self._row_messages = _SLICE_MAX  # one row is asked for until it is known

    # --- the end ------------------------------------------------------------------------------

    def published(self) -> Place:
        writer = self._local(self._pipe_id)
        if writer is not None:
            self._published.learn(writer.end)
            return self._published.end
        return self._published.newest()

    asks = True
    renews = True

    def known_end(self) -> Place:
        if self._local(self._pipe_id) is not None:
            return self.published()
        return self._published.renewed()

    def ask_published(self) -> None:
        """While messages come, also ask for the frame at the end: if it turns out to be
        acknowledged, a read does not have to wait for it."""
        if self._local(self._pipe_id) is not None or not self._published.ask():
            return
        self._next_frame = None
        if self._read_watch is None or self._read_watch.seconds() > IDLE_SECONDS:
            return
        bucket, base = bucket_and_seq(self._published.end.pos)
        statement = self._cql.bound(statements.NEXT_FRAME, (self._head.extent, bucket, base))
        self._next_frame = _Coming(bucket, base, self._cql.send(statement))

    def ask_turn(self) -> int:
        writer = self._local(self._pipe_id)
        if writer is not None:
            writer.want_turn()
            return writer.last_append_ms
        rows = self._cql.read(statements.READ_MARKS, (self._head.extent,))
        return self._turns.ask(self._head.extent, marks_of(rows))

    # --- reading ------------------------------------------------------------------------------

    def read(self, start: Place, end_seq: int, limit: int, bytes_max: int) -> list[Slice]:
        self._in_order = start.seq == self._next_seq

        def frame_of(seq: int, before: Frame | None, left: int) -> Frame:
            if before is None:
                return self._holding(seq, *bucket_and_seq(start.pos), end_seq, left)
            bucket = self._buckets[before.base_seq]
            return self._holding(seq, bucket, before.end_seq, end_seq, left)

        slices = read_slices(frame_of, start.seq, end_seq, limit, bytes_max)
        for frame in parted(slices):
            bucket = self._buckets.get(frame.base_seq)
            if bucket is not None:
                self._kept.put(self._head.extent, bucket, frame)
        self._next_seq = slices[-1].end_seq if slices else start.seq
        self._read_watch = Stopwatch()
        return slices

    def place_after(self, start: Place, slices: Sequence[Slice]) -> Place:
        last = slices[-1]
        base = last.frame.base_seq
        seq = base + last.last
        bucket = self._buckets.get(base)
        if bucket is None:
            bucket, _ = self._find(base, bucket_and_seq(start.pos)[0])
        if seq == last.frame.end_seq:
            return end_place(bucket, seq)
        return Place(seq, position(bucket, base))

    def after_damage(self, start: Place, end_seq: int) -> Place | None:
        """Cost: a read of the keys of each bucket from the damage on, and one for each frame
        tried."""
        first, _ = bucket_and_seq(start.pos)
        for bucket in range(first, self._looked_up().buckets):
            values = (self._head.extent, bucket, start.seq, end_seq)
            for base, part in self._cql.read(statements.NEXT_FRAMES, values):
                if part == 0 and self._is_good(bucket, base):
                    return Place(base, position(bucket, base))
        return None

    def _is_good(self, bucket: int, base: int) -> bool:
        """Whether a whole frame begins there."""
        self._ahead, self._frame, self._coming = {}, None, None
        try:
            self._load(bucket, base, base + 1, 1)
            self._decoded(base)
        except FrameError:
            return False
        return True

    def close(self) -> None:
        self._ahead.clear()
        self._frame = self._coming = self._next_frame = None

    def _holding(self, seq: int, bucket: int, base: int, end_seq: int, limit: int) -> Frame:
        """The verified frame that holds `seq`. bucket, base: of a frame at or before it."""
        frame = self._frame
        if frame is not None and frame.base_seq <= seq < frame.end_seq:
            return frame
        if seq in self._ahead:
            return self._decoded(seq)
        kept = self._kept.get(self._head.extent, base)
        if kept is not None and seq < kept[1].end_seq:
            self._buckets[base], self._frame = kept
            return kept[1]
        if base not in self._ahead and not self._take_at_hand(base):
            self._load(bucket, base, end_seq, limit)
        while self._end_of(base) <= seq:
            base = self._end_of(base)
            if base not in self._ahead and not self._take_at_hand(base):
                bucket, base = self._find(seq, bucket)
                self._load(bucket, base, end_seq, limit)
        return self._decoded(base)

    def _take_at_hand(self, base: int) -> bool:
        """Take a frame from its writer, if that is in this process and still has it, or from what
        was asked for together with the end."""
        writer = self._local(self._pipe_id)
        found = writer.wrote(base) if writer is not None else self._asked_for(base)
        if found is None:
            return False
        self._ahead = {base: found}
        if len(self._buckets) > _BUCKETS_KNOWN_MAX:
            self._buckets = {}
        self._buckets[base] = found[0]
        return True

    def _asked_for(self, base: int) -> tuple[int, bytes] | None:
        """The bucket and the frame, if it was asked for, was there, and has one part."""
        asked = self._next_frame
        if asked is None or asked.base_seq != base:
            return None
        self._next_frame = None
        rows = self._came(asked)
        parts, _, data = rows[0] if rows else (None, None, None)
        return (asked.bucket, data) if parts == 1 and data is not None else None

    def _end_of(self, base: int) -> int:
        """The end of a frame that was read but not yet verified."""
        data = self._ahead[base][1]
        end = base + frame_seqs(data)[1] if len(data) >= HEADER_SIZE else base
        if end == base:
            raise self._damaged(base, "it is cut short")
        return end

    def _decoded(self, base: int) -> Frame:
        try:
            frame = decode(self._ahead[base][1], pipe_key=self._key)
        except FrameError as exc:
            raise self._damaged(base, exc.message) from exc
        if frame.base_seq != base:
            raise self._damaged(base, f"it is the frame of seq {frame.base_seq}")
        self._frame = frame
        return frame

    def _damaged(self, base: int, why: str) -> FrameError:
        text = f"pipe {self._pipe_id}, the frame at seq {base}: {why}"
        return FrameError(text, pipe_id=self._pipe_id)

    def _find(self, seq: int, bucket: int) -> tuple[int, int]:
        """The bucket and the base seq of the frame that holds `seq`. bucket: that bucket or an
        older one. Cost: two reads, and one for each bucket, concurrently."""
        head = self._looked_up()
        buckets = range(bucket, head.buckets)
        asked = [(statements.READ_BUCKET, (head.extent, number)) for number in buckets]
        for number, rows in zip(buckets, self._cql.read_many(asked), strict=True):
            if rows and rows[0][2] is not None and rows[0][2] <= seq:
                bucket = number
        found = self._cql.read(statements.FIND_FRAME, (head.extent, bucket, seq))
        if not found:
            raise self._damaged(seq, "it is missing")
        return bucket, found[0][0]

    def _looked_up(self) -> Head:
        head = self._heads.find(self._pipe_id)
        if head is None or head.extent != self._head.extent:
            raise missing(self._pipe_id)
        self._head = head
        return head

    # --- slices -------------------------------------------------------------------------------

    def _load(self, bucket: int, base: int, end_seq: int, limit: int) -> None:
        """Read the frame at `base`, and some that follow. Cost: one read, often under way already;
        one or two more where a bucket ends."""
        rows = self._slice(bucket, base, end_seq, limit)
        while not rows:
            if bucket + 1 >= self._looked_up().buckets:
                raise self._damaged(base, "it is missing")
            bucket += 1
            rows = self._slice(bucket, base, end_seq, limit)
        self._keep(bucket, rows)
        if base not in self._ahead:
            raise self._damaged(base, f"it is missing; seq {rows[0][0]} comes next")
        if self._in_order:
            self._slice_bytes = min(2 * self._slice_bytes, _SLICE_MAX)
            following = self._end_of(next(reversed(self._ahead)))
            known = max(end_seq, self._published.end.seq)
            if following < known:
                values = (self._head.extent, bucket, following, known, self._rows(limit))
                statement = self._cql.bound(statements.READ_FRAMES, values)
                self._coming = _Coming(bucket, following, self._cql.send(statement))
        else:
            self._slice_bytes = _SLICE_MIN

    def _slice(self, bucket: int, base: int, end_seq: int, limit: int) -> list[Row]:
        coming, self._coming = self._coming, None
        if coming is not None and coming[:2] == (bucket, base):
            rows = self._came(coming)
            if rows is not None:
                return rows
        values = (self._head.extent, bucket, base, end_seq, self._rows(limit))
        return self._cql.read(statements.READ_FRAMES, values)

    def _came(self, coming: _Coming) -> list[Row] | None:
        """What was asked for in advance; None if it has to be asked for again."""
        try:
            return self._cql.result(coming.future)
        except BackendError as exc:
            if not exc.retryable:
                raise
            return None

    def _rows(self, limit: int) -> int:
        """The number of rows to ask for, by the mean size of rows and the need of the next read."""
        size = self._slice_bytes if self._in_order else _SLICE_MAX
        rows = max(1, size // self._row_bytes)
        if not self._in_order:
            rows = min(rows, -(-limit // self._row_messages))
        return min(rows, _ROWS_MAX)

    def _keep(self, bucket: int, rows: list[Row]) -> None:
        """Keep the whole frames of a slice; the first one is completed if necessary."""
        self._ahead = {}
        size, at = 0, 0
        while at < len(rows):
            base, part, parts, data = rows[at]
            if part != 0 or parts is None or data is None:
                raise self._damaged(base, "a part of it is missing")
            whole = [row[3] for row in rows[at : at + parts] if row[0] == base]
            if len(whole) < parts:
                if at > 0:
                    break  # cut off by the limit
                values = (self._head.extent, bucket, base)
                further = self._cql.read(statements.READ_PARTS, values)
                whole = [data, *(row[0] for row in further)]
                if len(whole) != parts:
                    raise self._damaged(base, f"only {len(whole)} of its {parts} parts exist")
            frame = data if parts == 1 else b"".join(whole)
            self._ahead[base] = (bucket, frame)
            self._buckets[base] = bucket
            size += len(frame)
            at += parts
        if len(self._buckets) > _BUCKETS_KNOWN_MAX:
            self._buckets = dict.fromkeys(self._ahead, bucket)
        count = min(at, len(rows))
        self._row_bytes = max(1, size // count)
        first, last = rows[0][0], next(reversed(self._ahead))
        self._row_messages = max(1, (last - first) // count)
