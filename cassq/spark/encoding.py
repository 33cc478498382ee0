"""From Arrow to frames: encodes messages to push, by column, without running Python per row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from cassq.errors import ConfigError, InvalidPayloadError, MessageTooLargeError
from cassq.message.column_batch import ColumnBatch, Strings
from cassq.message.columns import ABSENT, COLUMN_BYTES_MAX
from cassq.message.frames import MESSAGE_BYTES_MAX
from cassq.spark.options import WriteOptions

APPEND_BYTES = 8 * 1024 * 1024
# Columns of a frame that was read from a queue, which a write does not use.
_READ_ONLY = {"id", "pipe", "seq", "pushed_at", "attempts"}


class Columns(NamedTuple):
    """The names of the columns to push; None where there is none."""

    payload: str
    headers: str | None
    key: str | None


def chosen(options: WriteOptions, types: dict[str, str]) -> Columns:
    """The columns to push, of a frame with these columns and Spark types.

    Raises ConfigError for a column that is missing, has a wrong type, or would not be used.
    """
    if options.payload not in types:
        raise ConfigError(
            f"there is no column {options.payload!r} to push",
            hint="name one with the option payloadColumn, or make one: cassq.spark.json_rows(df)",
        )
    found = Columns(
        options.payload,
        options.headers if options.headers in types else None,
        options.key if options.key in types else None,
    )
    wanted = {
        found.payload: ("binary", "string"),
        found.headers: ("map<string,string>",),
        found.key: ("binary", "string"),
    }
    for name, allowed in wanted.items():
        if name is not None and types[name] not in allowed:
            raise ConfigError(
                f"column {name!r} is {types[name]}, but must be {' or '.join(allowed)}"
            )
    rest = [name for name in types if name not in wanted and name not in _READ_ONLY]
    if rest:
        raise ConfigError(
            f"column {rest[0]!r} cannot be pushed: a message has a payload, headers and a key",
            hint="drop it, or push whole rows as JSON: cassq.spark.json_rows(df)",
        )
    return found


def runs(
    batches: Iterator[pa.RecordBatch], columns: Columns, time_ms: Any, where: str
) -> Iterator[ColumnBatch]:
    """The messages of record batches, in runs of about `APPEND_BYTES`.

    time_ms: returns the push time, called for each run. where: what rows are counted in, for
    errors. Raises InvalidPayloadError and MessageTooLargeError, which name the row. Cost: memory
    for two runs.
    """
    row, size, some = 0, 0, list[pa.RecordBatch]()
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        size += batch.nbytes
        if size >= APPEND_BYTES:
            yield run_of(some, columns, time_ms(), f"{where}, row {{}}", row)
            row, size, some = row + sum(b.num_rows for b in some), 0, []
    if some:
        yield run_of(some, columns, time_ms(), f"{where}, row {{}}", row)


def run_of(
    batches: list[pa.RecordBatch], columns: Columns, time_ms: int, where: str, first: int
) -> ColumnBatch:
    """The messages of some record batches. where: has a placeholder for a row number, counted from
    `first`."""
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
    """A column in one piece. It is never over 2 GiB, which would not fit."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def strings_of(
    array: pa.Array, most: int, what: str, where: str, first: int
) -> tuple[Strings, int, int]:
    """A column's memory, and the shortest and longest length in it."""
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
    """The headers of rows as frames store them: compact JSON, null for none."""
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
