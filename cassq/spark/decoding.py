"""From frames to Arrow: messages as record batches of the requested columns.

Except for headers, keys and stored ids, Python's values are converted without `pa.array` and
`pa.scalar`: those load pandas if it is installed, which takes half a second, once per process.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from cassq.errors import ConfigError
from cassq.extents.port import Slice
from cassq.spark.options import SCHEMA, SCHEMA_OF_SEVERAL


def arrow_schema(schema: StructType, *, several: bool = False) -> pa.Schema:
    """The Arrow schema of the requested columns of `SCHEMA`; several: of `SCHEMA_OF_SEVERAL`.

    Raises ConfigError for a column that is not among them, or has another type.
    """
    known = SCHEMA_OF_SEVERAL if several else SCHEMA
    types = dict(each.strip().split(" ", 1) for each in known.split(", "))
    for field in schema.fields:
        given, wanted = field.dataType.simpleString(), types.get(field.name)
        if wanted is None:
            raise ConfigError(f"messages have no column {field.name!r}", hint=f"they have {known}")
        if given != wanted:
            raise ConfigError(f"column {field.name!r} is {wanted}, not {given}")
    return to_arrow_schema(schema, timezone="UTC")


def record_batch(
    pipe_id: str,
    piece: Slice,
    schema: pa.Schema,
    attempts: int,
    priority: int = 0,
    queue: str = "",
) -> pa.RecordBatch:
    """Some messages of a frame as a record batch. priority, queue: those of their pipe."""
    makers: dict[str, Callable[[], pa.Array]] = {
        "payload": lambda: _payloads(piece),
        "headers": lambda: _headers(piece),
        "key": lambda: _optional(piece.frame.keys, piece, pa.binary()),
        "id": lambda: _ids(pipe_id, piece),
        "pipe": lambda: pa.repeat(_text(pipe_id), piece.last - piece.first),
        "seq": lambda: _seqs(piece),
        "pushed_at": lambda: _times(piece),
        "attempts": lambda: pa.repeat(_number(attempts), piece.last - piece.first),
        "priority": lambda: pa.repeat(_number(priority), piece.last - piece.first),
        "queue": lambda: pa.repeat(_text(queue), piece.last - piece.first),
    }
    columns = [makers[field.name]().cast(field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def within(batch: pa.RecordBatch, piece: Slice, since_ms: int, until_ms: int) -> pa.RecordBatch:
    """The rows pushed from `since_ms` on and before `until_ms`. Cost: none for a frame with a
    single push time."""
    times = piece.frame.times_ms()
    if isinstance(times, int):
        return batch if since_ms <= times < until_ms else batch.slice(0, 0)
    ms = _int64s(array("q", times[piece.first : piece.last]))
    mask = pc.and_(pc.greater_equal(ms, _number(since_ms)), pc.less(ms, _number(until_ms)))
    return batch.filter(mask)


def is_outside(piece: Slice, since_ms: int, until_ms: int) -> bool:
    """Whether all messages of a frame have the same push time, and it is before `since_ms`, or not
    before `until_ms`. Cost: none."""
    times = piece.frame.times_ms()
    return isinstance(times, int) and not since_ms <= times < until_ms


def _payloads(piece: Slice) -> pa.Array:
    view, lengths = piece.frame.payload_run(piece.first, piece.last)
    count = piece.last - piece.first
    if isinstance(lengths, int):
        offsets = pc.multiply(_numbers(count + 1), _number(lengths))
    else:
        each = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(lengths)])
        ends = pc.cumulative_sum(each.cast(pa.int64()))
        offsets = pa.concat_arrays([_numbers(1), ends])
    buffers = [None, offsets.cast(pa.int32()).buffers()[1], pa.py_buffer(view)]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _numbers(count: int) -> pa.Array:
    """The numbers from 0 to `count` - 1."""
    return _many_numbers(1 << count.bit_length()).slice(0, count)


@cache
def _many_numbers(count: int) -> pa.Array:
    """Cached for all frames: Python makes the numbers one by one."""
    return _int64s(array("q", range(count)))


def _int64s(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _number(value: int) -> pa.Scalar:
    return _int64s(array("q", [value]))[0]


def _text(value: str) -> pa.Scalar:
    data = value.encode()
    buffers = [None, pa.py_buffer(array("i", [0, len(data)])), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), 1, buffers)[0]


def _seqs(piece: Slice) -> pa.Array:
    return pc.add(_numbers(piece.last - piece.first), _number(piece.frame.base_seq + piece.first))


def _ids(pipe_id: str, piece: Slice) -> pa.Array:
    here = pc.binary_join_element_wise(_text(pipe_id), _seqs(piece).cast(pa.string()), _text(":"))
    if piece.frame.ids is None:
        return here
    first = _optional(piece.frame.ids, piece, pa.binary()).cast(pa.string())
    return pc.coalesce(first, here)


def _times(piece: Slice) -> pa.Array:
    kind = pa.timestamp("us", "UTC")
    times = piece.frame.times_ms()
    if isinstance(times, int):
        return pa.repeat(_number(1000 * times), piece.last - piece.first).cast(kind)
    ms = _int64s(array("q", times[piece.first : piece.last]))
    return pc.multiply(ms, _number(1000)).cast(kind)


def _optional(column: list[bytes | None] | None, piece: Slice, kind: Any) -> pa.Array:
    if column is None:
        return pa.nulls(piece.last - piece.first, kind)
    return pa.array(column[piece.first : piece.last], kind)


def _headers(piece: Slice) -> pa.Array:
    """Equal headers are parsed once."""
    kind = pa.map_(pa.string(), pa.string())
    stored = _optional(piece.frame.headers, piece, pa.binary())
    if stored.null_count == len(stored):
        return pa.nulls(len(stored), kind)
    distinct = stored.dictionary_encode()
    parsed = [list(json.loads(each).items()) for each in distinct.dictionary.to_pylist()]
    return pa.array(parsed, kind).take(distinct.indices)
