"""The Cassandra store: an extent is a head row and partitions of frames, one partition per bucket.

Frames are immutable rows, clustered by their first seq. Buckets are bounded by bytes and frames.
The head notes the next bucket before its first frame is written, once everything before it exists
without a gap. A position is a bucket and the first seq of a frame in it, where a reader can begin.
Large frames are cut into parts; the first part is written last.

An extent has one writer in all its life. The extent and its partitions have a name that is never
reused, so a writer needs no epoch to differ from a later one, and late writes of a dropped extent's
writer belong to no extent. The timestamp of a write is its seq, not a time: a repeated or late
write changes nothing, and a drop also removes writes that arrive later.

How a seal decides for every append whether it counts:

- cp: every frame is one conditional write, refused once its bucket is sealed. The sealer seals
  the head first, so that no newer bucket can begin. Then it seals the newest bucket, and its count
  is the end: each frame was applied before, or never will be. If the extent was dropped long ago,
  nothing refuses the first frame of a bucket, so the writer checks the head after it.
- ap: frames are plain writes, which nothing can refuse. So, as in the files store, the writer looks
  at the seal mark after each write and before it acknowledges, and the sealer sets the mark
  before it looks for frames. Writes and reads both use a quorum. If the writer did not see the
  mark, the mark was not yet set when its read began; the frame was on a quorum before that, and
  the sealer's scan began after: it finds the frame, however long either was stopped in between and
  whatever their clocks say. If the writer saw the mark, it acknowledges nothing. So no lease is
  involved.
  Frames past the end (after a missing one, or late) were never acknowledged: they are never read,
  and are removed with their partition. There is nothing to rescue.

This holds where all quorums meet: consistency LOCAL_QUORUM within one data centre, or QUORUM.
An extent written with LOCAL_QUORUM is sealed from its own data centre only; elsewhere `seal`
refuses, and the pipe stays unsealed, until that data centre is back. A quorum of replicas must
keep what it acknowledged: with `commitlog_sync: periodic`, nodes that lose power at the same time
may not.

Readers of an unsealed pipe stop at the acknowledged end, which the writer publishes after each
append without waiting; its own process knows it at once, and has the writer's last small frames in
memory. The published end may lag, and never leads.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from cassq.base.clock import Clock
from cassq.cassandra.contact import Contact
from cassq.cassandra.session import Cql, Statement
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.extents.cassandra import statements
from cassq.extents.cassandra.ends import plain_end, strict_end
from cassq.extents.cassandra.heads import Head, Heads
from cassq.extents.cassandra.marks import marks_of
from cassq.extents.cassandra.plain_writer import PlainWriter
from cassq.extents.cassandra.published import PolledEnds
from cassq.extents.cassandra.reader import CassandraReader, TurnRequests
from cassq.extents.cassandra.strict_writer import StrictWriter
from cassq.extents.cassandra.writer import CassandraWriter, Sizes, WriterContext
from cassq.extents.frame_cache import FrameCache
from cassq.extents.port import ExtentInfo, ExtentMissingError, ExtentReader, ExtentStore
from cassq.message.frames import Place


class CassandraStore(ExtentStore):
    """Extents in a keyspace. Thread-safe. The caller closes `cql`.

    Raises ConfigError for a consistency whose reads may miss acknowledged writes.
    """

    leaves_strays = True
    networked = True

    def __init__(self, cql: Cql, clock: Clock, sizes: Sizes | None = None) -> None:
        self._home = _home(cql.contact)
        self._cql = cql
        self._clock = clock
        self._heads = Heads(cql)
        self._turns = TurnRequests(cql, clock)
        self._kept = FrameCache()
        self._ends = PolledEnds(cql)
        self._writers: dict[str, CassandraWriter] = {}
        # So that publishing an end never waits, even in an outage.
        cql.prepare(statements.TELL_ACKED)
        cql.prepare(statements.TELL_CLOSED)
        self._means = WriterContext(cql, self._heads, clock, sizes or Sizes(), self._writer_closed)

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> CassandraWriter:
        """Cost: one conditional write."""
        extent = f"{pipe_id}.{secrets.token_hex(6)}"
        head = Head(pipe_id, extent, queue_name, strict, self._home, 1, sealed=False)
        self._heads.create(head)
        writer = (StrictWriter if strict else PlainWriter)(self._means, head)
        self._writers[pipe_id] = writer
        return writer

    def reader(self, pipe_id: str) -> CassandraReader:
        """Cost: one read."""
        return self._reader(self._heads.get(pipe_id))

    def readers(self, pipe_ids: Sequence[str]) -> list[ExtentReader | None]:
        """Cost: one read each, concurrently."""
        heads = self._heads.find_many(pipe_ids)
        return [None if head is None else self._reader(head) for head in heads]

    def _reader(self, head: Head) -> CassandraReader:
        shared = self._turns, self._kept, self._ends
        return CassandraReader(self._cql, self._heads, head, *shared, self._writers.get)

    def seal(self, pipe_id: str) -> Place:
        """Raises BackendUnavailableError for an extent of another data centre.
        Cost: a read and a conditional write; then two reads (ap), or a conditional write and a
        read (cp)."""
        head = self._heads.get(pipe_id)
        if head.home != self._home:
            raise BackendUnavailableError(
                f"pipe {pipe_id} is written in data centre {head.home or 'any'!r}, and cannot be "
                f"sealed from {self._home or 'any'!r}",
                hint="run `cassq reap` there too, with the same consistency in the URL",
                retryable=False,
            )
        head = self._heads.seal(head, pipe_id)
        self._turns.forget(head.extent)
        return (strict_end if head.strict else plain_end)(self._cql, head)

    def abandoned(self, pipe_id: str) -> bool:
        """Only a closed writer is known to be gone. Cost: two reads."""
        return bool(self.all_abandoned([pipe_id]))

    def all_abandoned(self, pipe_ids: Sequence[str]) -> set[str]:
        """Cost: two rounds of reads."""
        others = [pipe_id for pipe_id in pipe_ids if pipe_id not in self._writers]
        heads = self._heads.find_many(others)
        gone = {pipe_id for pipe_id, head in zip(others, heads, strict=True) if head is None}
        closed = self._closed([head for head in heads if head is not None])
        return gone | {head.pipe_id for head in closed}

    def drop(self, pipe_ids: Sequence[str]) -> None:
        """Cost: for each a read and a conditional write, another if it is not sealed, and a plain
        write for each of its buckets, concurrently."""
        fenced: list[Head] = []
        removals: list[Statement] = []
        for pipe_id, head in zip(pipe_ids, self._heads.find_many(pipe_ids), strict=True):
            with suppress(ExtentMissingError):
                fenced.append(self._heads.seal(head, pipe_id))
        for head in fenced:
            self._turns.forget(head.extent)
            removals += [
                (statements.DROP_BUCKET, (head.extent, bucket)) for bucket in range(head.buckets)
            ]
            removals.append((statements.DROP_MARKS, (head.extent,)))
        self._cql.write_many(removals)
        for head in fenced:
            self._heads.drop(head)

    def extents(self, known: Collection[str] = ()) -> Iterator[ExtentInfo]:
        mine = [h for h in self._heads.all() if h.pipe_id not in known and h.home == self._home]
        closed = {head.pipe_id for head in self._closed(mine)}
        for head in mine:
            yield ExtentInfo(head.pipe_id, head.queue_name, head.pipe_id in closed)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _closed(self, heads: Sequence[Head]) -> list[Head]:
        """The extents that their writers have closed. Cost: a round of reads."""
        asked = [(statements.READ_MARKS, (head.extent,)) for head in heads]
        answers = self._cql.read_many(asked)
        return [h for h, rows in zip(heads, answers, strict=True) if marks_of(rows).closed]

    def _writer_closed(self, pipe_id: str) -> None:
        self._writers.pop(pipe_id, None)


def _home(contact: Contact) -> str:
    """The data centre whose quorum writes and reads use; "" for a quorum of all replicas."""
    match contact.consistency:
        case "quorum":
            return ""
        case "local_quorum":
            return contact.data_centre
    raise ConfigError(
        f"consistency {contact.consistency!r} could lose acknowledged messages",
        hint="use local_quorum or quorum",
    )
