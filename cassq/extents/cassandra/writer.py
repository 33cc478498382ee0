"""Writing an extent to Cassandra: shared by plain (ap) and conditional (cp) writers."""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cassq.base.clock import Clock
from cassq.cassandra.session import Cql, Row, Statement
from cassq.errors import PipeSealedError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head, Heads, head_of
from cassq.extents.cassandra.marks import MarkWriter, RepeatedRead, marks_of
from cassq.extents.cassandra.places import end_place
from cassq.extents.server_writer import ServerWriter
from cassq.message.frames import Place, frame_seqs

# A writer keeps its last frames, up to this size, for poppers of its own process.
RECENT_BYTES_MAX = 64 * 1024

# How often a writer checks in the background for a seal, or for another pusher that wants a turn.
SEAL_SECONDS, TURN_SECONDS = 0.25, 0.01


class Sizes(NamedTuple):
    """Bounds of an extent's partitions and rows, and of what is in flight to them."""

    bucket_bytes: int = 32 * 1024 * 1024
    bucket_frames: int = 20_000
    part_bytes: int = 1024 * 1024  # a mutation must fit in half a commit log segment
    flight_bytes: int = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PendingFrame:
    """A frame about to be written. first: it is the first frame of its bucket."""

    base_seq: int
    count: int
    data: bytes
    first: bool

    @property
    def end_seq(self) -> int:
        return self.base_seq + self.count


class WriterContext(NamedTuple):
    """The context of a writer. closed: called with the pipe's id when it stops."""

    cql: Cql
    heads: Heads
    clock: Clock
    sizes: Sizes
    closed: Callable[[str], object]


class CassandraWriter(ServerWriter):
    """The writer of an extent in rows of Cassandra."""

    def __init__(self, means: WriterContext, head: Head) -> None:
        cql, self._heads, clock, self._sizes, closed = means
        super().__init__(head.pipe_id, clock, closed)
        self._cql = cql
        self._head = head
        self._bucket = 0
        self._bucket_start = 0
        self._bucket_bytes = 0
        self._bucket_frames = 0
        self._recent: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        self._recent_bytes = 0
        self._mark_writer = MarkWriter(cql, head.extent)
        self._seal_look = RepeatedRead(cql, statements.READ_HEAD, (head.pipe_id,), self._note_head)
        self._turn_look = RepeatedRead(cql, statements.READ_MARKS, (head.extent,), self._note_marks)

    def _write(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        for frame in frames:
            base_seq, count = frame_seqs(frame[0])
            data = b"".join(frame)
            if (
                self._bucket_bytes >= self._sizes.bucket_bytes
                or self._bucket_frames >= self._sizes.bucket_frames
            ):
                self._next_bucket(base_seq)
            piece = PendingFrame(base_seq, count, data, self._bucket_frames == 0)
            self._bucket_bytes += len(data)
            self._bucket_frames += 1
            self._put(piece)
            self._keep(base_seq, data)
        self._settle()
        return end_place(self._bucket, end_seq)

    def sealed(self) -> bool:
        if not self._dead:
            self._mark_writer.again()
            if self._seal_look.age() >= SEAL_SECONDS:
                self._seal_look.soon()
        return self._dead or self._sealed

    def wrote(self, base_seq: int) -> tuple[int, bytes] | None:
        """The bucket and the bytes of a frame, if it was written lately: the store has no other
        frame there, because an extent has one writer. Callers ask only for frames below the end,
        and verify them. Cost: a memory read. Safe in any thread."""
        return self._recent.get(base_seq)

    def _keep(self, base_seq: int, data: bytes) -> None:
        if len(data) > RECENT_BYTES_MAX:
            return
        self._recent[base_seq] = self._bucket, data
        self._recent_bytes += len(data)
        while self._recent_bytes > RECENT_BYTES_MAX:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1][1])

    def turn_wanted(self) -> bool:
        if not self._turn_wanted and self._turn_look.age() >= TURN_SECONDS:
            self._turn_look.soon()
        return super().turn_wanted()

    def _publish(self) -> None:
        self._mark_writer.tell(self._end, closed=self._closed)

    @abc.abstractmethod
    def _put(self, piece: PendingFrame) -> None:
        """Write a frame, or start to."""

    @abc.abstractmethod
    def _settle(self) -> None:
        """Return when everything that was put may be acknowledged; raises PipeSealedError if it
        must not be."""

    @abc.abstractmethod
    def _drain(self) -> None:
        """Return when everything that was put is written."""

    def _next_bucket(self, base_seq: int) -> None:
        """Move on to the next bucket, once this one is complete without a gap."""
        self._drain()
        if not self._heads.begin_bucket(self._head, self._bucket + 1):
            raise self._told_sealed()
        self._bucket += 1
        self._bucket_start = base_seq
        self._bucket_bytes = self._bucket_frames = 0

    def _put_parts(self, piece: PendingFrame) -> list[bytes]:
        """Write all parts of a frame but the first, and return all of them: a frame exists once
        its first part does."""
        step = self._sizes.part_bytes
        if len(piece.data) <= step:
            return [piece.data]
        parts = [piece.data[at : at + step] for at in range(0, len(piece.data), step)]
        stamp = piece.end_seq + 1
        where = (self._head.extent, self._bucket, piece.base_seq)
        writes: list[Statement] = [
            (statements.PUT_PART, (*where, number, part, stamp))
            for number, part in enumerate(parts[1:], 1)
        ]
        at_once = max(1, self._sizes.flight_bytes // step)
        for at in range(0, len(writes), at_once):
            self._cql.write_many(writes[at : at + at_once])
        return parts

    def _look_for_seal(self) -> None:
        """Raise PipeSealedError when the extent is sealed or gone. Cost: one read."""
        self._seal_look.now()
        if self._sealed:
            raise self._told_sealed()

    def _told_sealed(self) -> PipeSealedError:
        self._sealed = True
        return PipeSealedError(f"pipe {self.pipe_id} was sealed")

    def _note_head(self, rows: list[Row]) -> None:
        head = head_of(rows[0]) if rows else None
        if head is None or head.sealed or head.extent != self._head.extent:
            self._sealed = True

    def _note_marks(self, rows: list[Any]) -> None:
        if marks_of(rows).turn:
            self._turn_wanted = True
