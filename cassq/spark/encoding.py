"""From Arrow to frames: encodes messages to push, by column, without running Python per row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cassq.base.arguments import DELAY_MAX_SECONDS
from cassq.errors import ConfigError, InvalidPayloadError, MessageTooLargeError
from cassq.message.column_batch import ColumnBatch, Strings
from cassq.message.columns import ABSENT, COLUMN_BYTES_MAX
from cassq.message.frames import MESSAGE_BYTES_MAX
from cassq.model.lanes import LANE_WAITS_MS
from cassq.model.priorities import PLAIN, PRIORITIES, PRIORITY_MAX, Level
from cassq.model.queues import KEY_LANES_MAX
from cassq.model.scaling import key_lane_of
from cassq.spark.options import WriteOptions

_UNITS = ("day", "hour", "minute", "second")
INTERVALS: tuple[str, ...] = (
    *(f"interval {unit}" for unit in _UNITS),
    *(f"interval {unit} to {other}" for unit, other in combinations(_UNITS, 2)),
)
_SHORTER = {*INTERVALS} - {"interval day to second"}
WHOLE_NUMBERS = ("bigint", "int", "smallint", "tinyint")
SECONDS = ("double", "float", *WHOLE_NUMBERS)
AT_ONCE = -1  # the lane of messages that are not delayed
APPEND_BYTES = 8 * 1024 * 1024
# Columns of frames read from a queue that a write ignores.
_READ_ONLY = {"id", "pipe", "seq", "pushed_at", "attempts"}


class Columns(NamedTuple):
    """The names of the columns to push; None for those that the frame does not have."""

    payload: str
    headers: str | None
    key: str | None
    delay: str | None = None
    due: str | None = None
    priority: str | None = None
    queue: str | None = None


def chosen(options: WriteOptions, types: dict[str, str]) -> Columns:
    """The columns to push. types: the frame's columns with their Spark types.

    Raises ConfigError for a column that is missing, has a wrong type, or would not be used.
    """
    if options.payload not in types:
        raise ConfigError(
            f"there is no column {options.payload!r} to push",
            hint="name one with the option payloadColumn, or create one: cassq.spark.json_rows(df)",
        )
    found = Columns(
        options.payload,
        options.headers if options.headers in types else None,
        *(
            name if name in types else None
            for name in (options.key, options.delay, options.due, options.priority)
        ),
    )
    found = found._replace(queue=_queue_column(options, types, found))
    wanted = {
        found.payload: ("binary", "string"),
        found.headers: ("map<string,string>",),
        found.key: ("binary", "string"),
        found.delay: (*SECONDS, *INTERVALS),
        found.due: ("timestamp",),
        found.priority: WHOLE_NUMBERS,
        found.queue: ("string",),
    }
    for name, allowed in wanted.items():
        if name is not None and types[name] not in allowed:
            listed = " or ".join(each for each in allowed if each not in _SHORTER)
            raise ConfigError(f"column {name!r} is {types[name]}, but must be {listed}")
    rest = [name for name in types if name not in wanted and name not in _READ_ONLY]
    if "dedup_id" in rest:
        raise ConfigError(
            "column 'dedup_id' cannot be written: duplicates in a frame would have to be found"
            " before its messages are published",
            hint="give the write a writeId, so that it happens once; or drop the column, after"
            " dropDuplicates()",
        )
    if rest:
        raise ConfigError(
            f"column {rest[0]!r} cannot be pushed: a message has a payload, headers, a key, a"
            " priority and a delay or due time",
            hint="drop it, or push whole rows as JSON: cassq.spark.json_rows(df)",
        )
    return found


def _queue_column(options: WriteOptions, types: dict[str, str], found: Columns) -> str | None:
    """The column that names each row's queue; None if the option `queue` names one for all rows.
    Raises ConfigError if neither or both do."""
    name = options.queue_column
    if options.queue and (name not in types or name in found):
        return None
    if not options.queue and name not in types:
        raise ConfigError(
            f"the option `queue` is missing, and there is no column {options.queue_column!r}",
            hint='name the queue: .option("queue", "jobs"), or name each row\'s queue in that'
            " column; with the option queueColumn the column can have another name",
        )
    if options.queue:
        raise ConfigError(
            f"the option `queue` and column {name!r} both name queues",
            hint="leave out the option, to write each row to its own queue, or drop the column",
        )
    return name


class Now(NamedTuple):
    """One moment, by the wall clock and in catalog time."""

    wall_ms: int
    catalog_ms: int


class EncodedRun(NamedTuple):
    """Messages to append together. lane, level: as for `Stage.append`. queue: the one that their
    rows name; empty without such a column."""

    messages: ColumnBatch
    lane: int | None
    level: Level = PLAIN
    queue: str = ""


def runs(
    batches: Iterator[pa.RecordBatch],
    columns: Columns,
    now: Callable[[], Now],
    where: str,
    key_lanes: Callable[[str], int] = lambda _queue: 1,
) -> Iterator[EncodedRun]:
    """The messages of record batches, about `APPEND_BYTES` at a time, in a run for each queue, lane
    and level among them.

    now: called each time. key_lanes: returns how many key lanes a queue has, by the name that
    `EncodedRun` has. where: says in errors what the rows are counted in, such as a partition.
    Raises InvalidPayloadError and MessageTooLargeError, which name the row. Cost: memory for two
    runs, and a copy of the messages if they differ in queue, lane or level.
    """
    row, size, some = 0, 0, list[pa.RecordBatch]()
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= APPEND_BYTES:
            yield from _by_lane(some, columns, now(), f"{where}, row {{}}", row, key_lanes)
            row, size, some = row + sum(b.num_rows for b in some), 0, []
    if some:
        yield from _by_lane(some, columns, now(), f"{where}, row {{}}", row, key_lanes)


def _by_lane(
    batches: list[pa.RecordBatch],
    columns: Columns,
    now: Now,
    where: str,
    first: int,
    key_lanes: Callable[[str], int],
) -> Iterator[EncodedRun]:
    """The messages of some record batches, checked, in a run for each queue, lane and level."""
    whole = run_of(batches, columns, now.wall_ms, where, first)
    plain = (columns.delay, columns.due, columns.priority, columns.queue) == (None,) * 4
    if plain and key_lanes("") == 1:
        yield EncodedRun(whole, None)
        return
    table = pa.Table.from_batches(batches)
    delays_ms = delays_of(table, columns, now.wall_ms, where, first)
    names, queues = queues_of(table, columns, where, first)
    levels, lanes = len(PRIORITIES), len(LANE_WAITS_MS) + 2
    kinds = pc.add(pc.multiply(queues, lanes), pc.subtract(lanes_of(delays_ms), AT_ONCE))
    kinds = pc.add(pc.multiply(kinds, levels), priorities_of(table, columns, where, first))
    of_keys = key_lanes_of(table, columns, queues, [key_lanes(name) for name in names], where)
    kinds = pc.add(pc.multiply(kinds, KEY_LANES_MAX), of_keys)
    for number in pc.unique(kinds).to_pylist():
        kind, key_lane = divmod(number, KEY_LANES_MAX)
        lane, level = kind // levels % lanes + AT_ONCE, Level(kind % levels, key_lane)
        mine = pc.equal(kinds, number)
        messages = whole
        if not pc.all(mine).as_py():
            messages = run_of(table.filter(mine).to_batches(), columns, now.wall_ms, where, first)
        if lane != AT_ONCE:
            dues = pc.add(delays_ms.filter(mine), now.catalog_ms)
            view = memoryview(dues.buffers()[1])[8 * dues.offset :][: 8 * len(dues)]
            messages = replace(messages, dues=view)
        queue = names[kind // levels // lanes]
        yield EncodedRun(messages, None if lane == AT_ONCE else lane, level, queue)


def key_lanes_of(
    table: pa.Table, columns: Columns, queues: pa.Array, key_lanes: list[int], where: str
) -> pa.Array:
    """The key lane of each message; the messages of a partition that have no key share one.
    key_lanes: how many each of the queues has."""
    if max(key_lanes) == 1:
        return pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
    none = where.encode()
    keys = [none] * table.num_rows
    if columns.key is not None:
        found = _whole(table.column(columns.key)).cast(pa.large_binary()).to_pylist()
        keys = [none if key is None else key for key in found]
    counts = map(key_lanes.__getitem__, queues.to_pylist())
    return pa.array(map(key_lane_of, keys, counts), pa.int64())


def queues_of(
    table: pa.Table, columns: Columns, where: str, first: int
) -> tuple[list[str], pa.Array]:
    """The names of queues, and for each row the index of the name that it has. Raises
    InvalidPayloadError for null."""
    if columns.queue is None:
        return [""], pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
    found = _whole(table.column(columns.queue))
    if found.null_count:
        row = first + pc.index(found.is_null(), True).as_py()
        raise InvalidPayloadError(f"{where.format(row)}: the queue is null")
    distinct = found.dictionary_encode()
    return distinct.dictionary.to_pylist(), distinct.indices.cast(pa.int64())


def priorities_of(table: pa.Table, columns: Columns, where: str, first: int) -> pa.Array:
    """The priority of each message; 0 for null. Raises InvalidPayloadError for a number that is
    not a priority."""
    if columns.priority is None:
        return pa.repeat(pa.scalar(0, pa.int64()), table.num_rows)
    found = pc.fill_null(_whole(table.column(columns.priority)).cast(pa.int64()), 0)
    bad = pc.or_(pc.less(found, 0), pc.greater(found, PRIORITY_MAX))
    if pc.any(bad).as_py():
        at = pc.index(bad, True).as_py()
        raise InvalidPayloadError(
            f"{where.format(first + at)}: the priority is {found[at].as_py()}, but must be a whole"
            f" number from 0 to {PRIORITY_MAX}"
        )
    return found


def lanes_of(delays_ms: pa.Array) -> pa.Array:
    """The lane of each message; `AT_ONCE` where there is no delay. Pure."""
    lanes = pc.if_else(pc.greater(delays_ms, 0), 0, AT_ONCE)
    for wait_ms in LANE_WAITS_MS:
        lanes = pc.add(lanes, pc.greater_equal(delays_ms, wait_ms).cast(pa.int64()))
    return lanes


def delays_of(table: pa.Table, columns: Columns, wall_ms: int, where: str, first: int) -> pa.Array:
    """How long each message is delayed, in milliseconds. Raises InvalidPayloadError for a delay or
    due time that a push would not accept, and for a row that has both."""
    nothing = pa.nulls(table.num_rows, pa.int64())
    delays = dues = nothing

    def check(bad: pa.Array, what: str) -> None:
        if pc.any(bad).as_py():
            raise InvalidPayloadError(
                f"{where.format(first + pc.index(bad, True).as_py())}: {what}"
            )

    if columns.delay is not None:
        found = _whole(table.column(columns.delay))
        if pa.types.is_duration(found.type):
            found = pc.divide(found.cast(pa.duration("us")).cast(pa.int64()), 1e6)
        found = found.cast(pa.float64())
        fits = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, DELAY_MAX_SECONDS))
        check(pc.invert(fits), f"the delay is not between 0 and {DELAY_MAX_SECONDS:.0f} seconds")
        delays = pc.ceil(pc.multiply(found, 1000)).cast(pa.int64())
    if columns.due is not None:
        found = _whole(table.column(columns.due)).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        wait_us = pc.subtract(found, 1000 * wall_ms)
        dues = pc.ceil(pc.divide(pc.max_element_wise(wait_us, 0, skip_nulls=False), 1e3))
        dues = dues.cast(pa.int64())
        check(
            pc.greater(dues, round(DELAY_MAX_SECONDS * 1000)), "the due time is over ten years away"
        )
    check(pc.and_(delays.is_valid(), dues.is_valid()), "it has both a delay and a due time")
    return pc.fill_null(pc.coalesce(delays, dues), 0)


def run_of(
    batches: list[pa.RecordBatch], columns: Columns, time_ms: int, where: str, first: int
) -> ColumnBatch:
    """The messages of some record batches, without due times. where: has a placeholder for a row
    number, counted from `first`."""
    table = pa.Table.from_batches(batches)
    payload = _whole(table.column(columns.payload))
    if payload.null_count:
        row = first + pc.index(payload.is_null(), True).as_py()
        raise InvalidPayloadError(f"{where.format(row)}: the payload is null")
    payloads, shortest, longest = strings_of(payload, MESSAGE_BYTES_MAX, "payload", where, first)
    headers = keys = None
    if columns.headers is not None:
        found = headers_of(_whole(table.column(columns.headers)), where, first)
        if found.null_count < len(found):
            headers = strings_of(found, COLUMN_BYTES_MAX, "headers", where, first)[0]
    if columns.key is not None:
        found = _whole(table.column(columns.key))
        if found.null_count < len(found):
            keys = strings_of(found, COLUMN_BYTES_MAX, "key", where, first)[0]
    return ColumnBatch(payloads, time_ms, headers, keys, longest if shortest == longest else None)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one chunk. It never has over 2 GiB, which one chunk could not hold."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def strings_of(
    array: pa.Array, most: int, what: str, where: str, first: int
) -> tuple[Strings, int, int]:
    """A column's memory, and the shortest and longest length in it. Raises MessageTooLargeError for
    more than `most` bytes."""
    lengths = pc.binary_length(array).cast(pa.uint32())
    extremes = pc.min_max(lengths).as_py()
    shortest, longest = extremes["min"] or 0, extremes["max"] or 0
    if longest > most:
        row = first + pc.index(pc.greater(lengths, most), True).as_py()
        size = lengths[row - first].as_py()
        raise MessageTooLargeError(
            f"{where.format(row)}: the {what} of {size} bytes is over the limit of {most}"
        )
    if array.null_count:
        lengths = pc.fill_null(lengths, pa.scalar(ABSENT, pa.uint32()))
        array = pc.fill_null(array, pa.scalar("" if _is_text(array) else b"", array.type))
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    at, end = array.offset, array.offset + len(array) + 1
    return (
        Strings(
            memoryview(offsets).cast("B").cast("q" if large else "i")[at:end],
            memoryview(lengths.buffers()[1]).cast("B")[4 * lengths.offset :][: 4 * len(lengths)],
            memoryview(data).cast("B") if data is not None else memoryview(b""),
        ),
        shortest,
        longest,
    )


def _is_text(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


def headers_of(array: pa.MapArray, where: str, first: int) -> pa.Array:
    """The headers of rows as frames store them: compact JSON, null for none. Raises
    InvalidPayloadError for a header that is null."""
    if array.null_count:
        array = pc.if_else(array.is_valid(), array, pa.scalar([], array.type))
    starts = array.offsets
    begin, end = starts[0].as_py(), starts[-1].as_py()
    names, values = array.keys[begin:end], array.items[begin:end]
    if values.null_count:
        at = begin + pc.index(values.is_null(), True).as_py()
        row = first + pc.sum(pc.less_equal(starts[1:], at)).as_py()
        raise InvalidPayloadError(f"{where.format(row)}: the header {names[at - begin]} is null")
    pairs = pc.binary_join_element_wise('"', _escaped(names), '":"', _escaped(values), '"', "")
    offsets = pc.subtract(starts, pa.scalar(begin, starts.type))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pairs), ",")
    whole = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(pc.equal(starts[1:], starts[:-1]), pa.scalar(None, whole.type), whole)


def _escaped(text: pa.Array) -> pa.Array:
    """Strings as they stand between the quotes of JSON."""
    text = text.cast(pa.string())
    if pc.any(pc.match_substring_regex(text, "[\\x00-\\x1f]")).as_py():
        distinct = text.dictionary_encode()
        encoded = [
            json.dumps(each, ensure_ascii=False)[1:-1] for each in distinct.dictionary.to_pylist()
        ]
        return pa.array(encoded, pa.string()).take(distinct.indices)
    return pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
