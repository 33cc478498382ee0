"""Batch reads: the driver plans a snapshot of a queue, and executors read it from frames. The queue
is not changed.

A reader of several queues takes their snapshots one after another. If Spark gives the reader the
filters of a query, these narrow its options: to some of the queues, so that the pipes of the others
are not planned, and to a range of push times. A pipe that was sealed, or last written, before
`since` is not planned, if the catalog or the store knows that time. The time when a pipe was
created does not help: messages that were merged, carried over or staged keep the time of their
first push.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from cassq.errors import GroupNotFoundError
from cassq.extents.port import ExtentMissingError, ExtentReader
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import all_letters
from cassq.lifecycle.sealing import seen_end
from cassq.message.frames import Place
from cassq.model import ledger
from cassq.model.queues import dead_letter_name, is_dead_letter_name
from cassq.model.rows import Cursor, GroupRow, PipeRow, PipeState, QueueRow
from cassq.spark.clients import Location, located, place_at, place_of, queue_of
from cassq.spark.decoding import arrow_schema, is_outside, record_batch, within
from cassq.spark.options import DEAD, STORED, UNFINISHED, ReadOptions
from cassq.spark.wording import in_spark

logger: logging.Logger = logging.getLogger("cassq")

READ_MESSAGES = 65_536
READ_BYTES = 8 * 1024 * 1024
ALWAYS_MS = 1 << 62
CLOCK_STEP_MS = 600_000  # how wrong the clock may be that dates the last write
_EPOCH = datetime.fromtimestamp(0, UTC)


class PipeRange(NamedTuple):
    """Messages `start .. end_seq` (excluded) of a pipe. attempts: how often they were delivered.
    queue: its name, in a read of several queues."""

    pipe_id: str
    start: Place
    end_seq: int
    attempts: int = 0
    queue: str = ""

    @property
    def messages(self) -> int:
        return self.end_seq - self.start.seq


class ScanTask(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: tuple[PipeRange, ...]) -> None:
        super().__init__(None)
        self.pieces = pieces


class BatchReader(DataSourceReader):
    """The reader of one `spark.read`: created on the driver, and pickled to the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._location = located(options.url)
        self._columns = schema
        # Checks the schema here, on the driver, and not only in each task.
        arrow_schema(schema, several=not options.queue)

    @in_spark()
    def partitions(self) -> list[InputPartition]:
        options = self._options
        pieces = snapshot(place_of(options.url).ports, options)
        return list(cut(pieces, options.messages_per_partition, options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        options = self._options
        since_ms = -1 if options.since_ms is None else options.since_ms
        until_ms = ALWAYS_MS if options.until_ms is None else options.until_ms
        pieces = partition.pieces if isinstance(partition, ScanTask) else ()
        ranged = (options.since_ms, options.until_ms) != (None, None)
        with in_spark():
            yield from read_pieces(
                self._location,
                pieces,
                self._columns,
                fail_on_data_loss=options.fail_on_data_loss,
                between=(since_ms, until_ms) if ranged else None,
            )


class FilteredReader(BatchReader):
    """A reader to which Spark gives the filters of the query. Spark refuses it in sessions that do
    not push filters down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Narrow the read by the filters that allow it. Returns all of them, because Spark must
        still apply them to each row."""
        for each in filters:
            self._options = narrowed(self._options, each)
        return filters


# --- planning -----------------------------------------------------------------------------------


def narrowed(options: ReadOptions, condition: Filter) -> ReadOptions:
    """The options, narrowed to what may hold rows that meet a condition. Pure."""
    since_ms = -1 if options.since_ms is None else options.since_ms
    until_ms = ALWAYS_MS if options.until_ms is None else options.until_ms
    match condition:
        case EqualTo(("queue",), str(name)):
            return _only(options, [name])
        case In(("queue",), names):
            return _only(options, names)
        case GreaterThanOrEqual(("pushed_at",), datetime(tzinfo=tzinfo()) as at):
            return options._replace(since_ms=max(since_ms, _ms_from(at)))
        case GreaterThan(("pushed_at",), datetime(tzinfo=tzinfo()) as at):
            return options._replace(since_ms=max(since_ms, _ms_after(at)))
        case LessThan(("pushed_at",), datetime(tzinfo=tzinfo()) as at):
            return options._replace(until_ms=min(until_ms, _ms_from(at)))
        case LessThanOrEqual(("pushed_at",), datetime(tzinfo=tzinfo()) as at):
            return options._replace(until_ms=min(until_ms, _ms_after(at)))
    return options


def _only(options: ReadOptions, names: Iterable[Any]) -> ReadOptions:
    found = frozenset(name for name in names if isinstance(name, str))
    return options._replace(only=found if options.only is None else options.only & found)


def _ms_from(at: datetime) -> int:
    """The first millisecond that is not before a time."""
    return -(-_us(at) // 1000)


def _ms_after(at: datetime) -> int:
    """The first millisecond after a time."""
    return _us(at) // 1000 + 1


def _us(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def snapshot(ports: Ports, options: ReadOptions) -> list[PipeRange]:
    """The ranges that can be read now, for each queue oldest pipe first. Raises QueueNotFoundError
    and GroupNotFoundError. Cost: a read of each live pipe's row; for a group, its cursors and open
    claims; for a pattern, the queues whose names begin with its literal prefix."""
    if options.queue:
        return _snapshot(ports, queue_of(ports, options.queue), options)
    return [
        piece._replace(queue=row.name)
        for row in several(ports, options.queues, options.pattern)
        if options.only is None or row.name in options.only
        for piece in _snapshot(ports, row, options)
    ]


def several(ports: Ports, names: Iterable[str], pattern: str) -> list[QueueRow]:
    """The queues of these names or, with a pattern, those that match it, except queues of dead
    letters. Raises QueueNotFoundError for a name. Cost: a read of each; for a pattern, of the
    queues whose names begin with its literal prefix."""
    if not pattern:
        return [queue_of(ports, name) for name in names]
    prefix = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return [
        row
        for row in ports.catalog.queues.listed(prefix)
        if not is_dead_letter_name(row.name) and fnmatchcase(row.name, pattern)
    ]


def _snapshot(ports: Ports, row: QueueRow, options: ReadOptions) -> list[PipeRange]:
    """The ranges of one queue."""
    if options.state == STORED:
        pipes = ports.catalog.pipes.live(row.id)
        return [
            PipeRange(pipe.id, Place(0, 0), seen_end(ports.store, pipe))
            for pipe in _not_before(ports, pipes, options.since_ms)
        ]
    group = group_of(ports, row.id, row.name, options.group)
    states: Iterable[str] = ledger.UNFINISHED
    if options.state == DEAD:
        letters = all_letters(ports, dead_letter_name(row.name, group.name))
        if letters is None:
            return []
        group = letters.row
    elif options.state != UNFINISHED:
        states = (options.state,)
    cursors = {cursor.pipe_id: cursor for cursor in ports.catalog.claims.cursors(group.id)}
    return [
        piece
        for pipe in _not_before(ports, _for(ports, group), options.since_ms)
        for piece in _left(ports, group, pipe, cursors.get(pipe.id), states)
    ]


def _not_before(ports: Ports, pipes: list[PipeRow], since_ms: int | None) -> list[PipeRow]:
    """The pipes, except those known to have only messages pushed before a time. A message is
    written after its push, and a pipe is sealed after its last message is written."""
    if since_ms is None:
        return pipes
    ids = [pipe.id for pipe in pipes if pipe.state is PipeState.SEALED]
    sealed_ms = ports.catalog.pipes.sealed_ms(ids)
    older = set()
    for pipe_id in ids:
        last_ms = sealed_ms.get(pipe_id) or ports.store.last_write_ms(pipe_id)
        if last_ms is not None and last_ms + CLOCK_STEP_MS < since_ms:
            older.add(pipe_id)
    return [pipe for pipe in pipes if pipe.id not in older]


def group_of(ports: Ports, queue_id: str, queue: str, name: str) -> GroupRow:
    """A group by its name. Raises GroupNotFoundError."""
    for group in ports.catalog.queues.groups(queue_id):
        if group.name == name:
            return group
    raise GroupNotFoundError(f"queue {queue!r} has no group {name!r}")


def _for(ports: Ports, group: GroupRow) -> list[PipeRow]:
    return [pipe for pipe in ports.catalog.pipes.live(group.queue_id) if pipe.is_for(group.id)]


def _left(
    ports: Ports, group: GroupRow, pipe: PipeRow, cursor: Cursor | None, states: Iterable[str]
) -> list[PipeRange]:
    """The messages of a pipe that are in these states for a group. Messages with due times of their
    own count as delayed until a popper of the group has looked at them."""
    catalog = ports.catalog
    rows = catalog.claims.rows(group.id, pipe.id) if cursor else []
    end_seq = seen_end(ports.store, pipe)
    timed = pipe.timer_ms is not None
    return [
        PipeRange(pipe.id, start, end, part.row.deliveries if part.row else 0)
        for part in ledger.unfinished(cursor, rows, end_seq, catalog.now_ms(), timed=timed)
        if part.fate in states
        for start, end in part.runs
    ]


def cut(pieces: Sequence[PipeRange], most: int, least_parts: int) -> Iterator[ScanTask]:
    """Cut pieces into parts of at most `most` messages, and into at least `least_parts` parts if
    there are that many messages. Pure."""
    messages = sum(piece.messages for piece in pieces)
    return parts(pieces, min(most, max(1, messages // least_parts)))


def parts(pieces: Iterable[PipeRange], most: int) -> Iterator[ScanTask]:
    """Cut pieces into parts of at most `most` messages, in order. Pure."""
    some: list[PipeRange] = []
    left = most
    for piece in pieces:
        while piece.messages > 0:
            cut = piece.start.seq + min(left, piece.messages)
            some.append(piece._replace(end_seq=cut))
            left -= some[-1].messages
            # A position is that of the frame, or of an earlier one: this one fits both.
            piece = piece._replace(start=Place(cut, piece.start.pos))
            if left == 0:
                yield ScanTask(tuple(some))
                some, left = [], most
    if some:
        yield ScanTask(tuple(some))


# --- reading ------------------------------------------------------------------------------------


def read_pieces(
    location: Location,
    pieces: Iterable[PipeRange],
    columns: StructType,
    *,
    fail_on_data_loss: bool,
    between: tuple[int, int] | None = None,
) -> Iterator[Any]:
    """The messages as record batches, one for each frame. between: the range of push times to
    read, in wall milliseconds. Raises ExtentMissingError for messages that are gone, unless
    `fail_on_data_loss` is false, and as `place_at`. Cost: reads the frames and, for the column
    `priority`, each pipe's row."""
    schema = arrow_schema(columns, several=True)
    ports = place_at(location).ports
    for piece in pieces:
        pipe = ports.catalog.pipes.by_id(piece.pipe_id) if "priority" in schema.names else None
        priority = pipe.priority if pipe is not None else 0
        try:
            reader = ports.store.reader(piece.pipe_id)
            try:
                for batch in _batches(reader, piece, schema, between, priority):
                    if batch.num_rows:
                        yield batch
            finally:
                reader.close()
        except ExtentMissingError as exc:
            what = f"messages {piece.start.seq} to {piece.end_seq - 1} of pipe {piece.pipe_id}"
            if fail_on_data_loss:
                raise ExtentMissingError(
                    f"{what} were removed before they were read: all groups have committed them,"
                    " or their retention ended",
                    hint='read without them, .option("failOnDataLoss", "false"), or let the'
                    " queue keep messages for longer: retain_consumed",
                    retryable=False,
                ) from exc
            logger.warning("%s are gone, and are left out", what)


def _batches(
    reader: ExtentReader,
    piece: PipeRange,
    schema: Any,
    between: tuple[int, int] | None,
    priority: int,
) -> Iterator[Any]:
    place = piece.start
    while place.seq < piece.end_seq:
        slices = reader.read(place, piece.end_seq, READ_MESSAGES, READ_BYTES)
        for found in slices:
            if between and is_outside(found, *between):
                continue
            batch = record_batch(
                piece.pipe_id, found, schema, piece.attempts, priority, piece.queue
            )
            yield within(batch, found, *between) if between else batch
        place = reader.place_after(place, slices)
