"""From Arrow to frames and back, without Spark: what was put in is what comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import MapType, StringType, StructType

from cassq.errors import ConfigError, InvalidPayloadError, MessageTooLargeError
from cassq.extents.port import Slice
from cassq.message.columns import encode_headers
from cassq.message.frames import Frame, decode
from cassq.model.lanes import LANE_MS, lane_of
from cassq.spark.decoding import arrow_schema, record_batch, within
from cassq.spark.encoding import INTERVALS, Columns, Now, chosen, headers_of, run_of, runs
from cassq.spark.options import SCHEMA, WriteOptions

TIME_MS = 1_700_000_000_123
COLUMNS = Columns("payload", "headers", "key")
HEADERS: list[list[tuple[str, str]] | None] = [
    None,
    [],
    [("x", "1")],
    [("x", "1"), ('quo"te', "back\\slash"), ("tab", "\t\x01"), ("ü", "\U0001f600")],
    [("x", "1")],
]
MAP = pa.map_(pa.string(), pa.string())


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def frame_of(batches: list[pa.RecordBatch], columns: Columns = COLUMNS) -> Frame:
    """The frame of all messages of some batches."""
    run = run_of(batches, columns, TIME_MS, "row {}", 0)
    return decode(b"".join(run.frame(0, 0, run.count, 7, "none")), pipe_key=7)


def schema(columns: str = SCHEMA) -> pa.Schema:
    fields = StructType()
    for each in columns.split(", "):
        name, kind = each.split(" ", 1)
        is_map = kind.startswith("map")
        named = {"bigint": "long", "int": "integer"}.get(kind, kind)
        fields = fields.add(name, MapType(StringType(), StringType()) if is_map else named)
    return arrow_schema(fields)


def columns_of(frame: Frame, first: int, last: int) -> dict[str, list[Any]]:
    return record_batch("pipe", Slice(frame, first, last), schema(), 3).to_pydict()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("offset", [0, 2])
def test_all_columns_come_out_as_they_went_in(kind: Any, offset: int) -> None:
    payloads = [b"a", b"", b"ccc", b"dd", b"e" * 100]
    keys = [b"k", None, b"", None, b"long key"]
    whole = batch(
        payload=pa.array(payloads, kind), headers=pa.array(HEADERS, MAP), key=pa.array(keys, kind)
    )
    frame = frame_of([whole.slice(offset)])
    assert frame.count == 5 - offset
    found = columns_of(frame, 0, frame.count)
    assert found["payload"] == payloads[offset:]
    assert found["key"] == keys[offset:]
    assert found["headers"] == [each or None for each in HEADERS][offset:]
    assert found["seq"] == list(range(5 - offset))
    assert found["id"] == [f"pipe:{n}" for n in range(5 - offset)]
    assert {at.timestamp() for at in found["pushed_at"]} == {TIME_MS / 1000}
    assert found["attempts"] == [3] * (5 - offset)
    assert columns_of(frame, 1, 3)["payload"] == payloads[offset:][1:3]


def test_batches_become_one_run_and_text_is_utf_8() -> None:
    some = [batch(payload=pa.array([text])) for text in ("one", "zwölf", "")]
    frame = frame_of(some, Columns("payload", None, None))
    assert frame.payloads(0, 3) == [b"one", "zwölf".encode(), b""]


def test_payloads_of_one_length_take_no_column_of_lengths() -> None:
    numbers = [b"%05d" % n for n in range(1000)]
    frame = frame_of([batch(payload=pa.array(numbers))], Columns("payload", None, None))
    assert frame.size < 5 * 1000 + 60
    assert columns_of(frame, 10, 20)["payload"] == numbers[10:20]


def test_headers_are_stored_as_others_store_them() -> None:
    found = headers_of(pa.array(HEADERS, MAP), "row {}", 0).to_pylist()
    expected = [encode_headers(dict(each or [])) for each in HEADERS]
    assert [each if each is None else each.encode() for each in found] == expected
    assert json.loads(found[3])["tab"] == "\t\x01"


def test_a_row_that_cannot_be_pushed_is_named_by_its_number() -> None:
    good = batch(payload=pa.array([b"a"] * 10))
    bad = batch(payload=pa.array([b"a", None]))
    columns = Columns("payload", None, None)
    with pytest.raises(InvalidPayloadError, match="partition 3, row 11: the payload is null"):
        list(runs(iter([good, bad]), columns, lambda: Now(7, 7), "partition 3"))
    large = batch(payload=pa.array([b"a", b"x" * 17_000_000]))
    with pytest.raises(MessageTooLargeError, match="row 11: the payload of 17000000 bytes"):
        list(runs(iter([good, large]), columns, lambda: Now(7, 7), "partition 3"))
    nothing = batch(
        payload=pa.array([b"a", b"b"]), headers=pa.array([[("x", "1")], [("y", None)]], MAP)
    )
    with pytest.raises(InvalidPayloadError, match="row 1: the header y is null"):
        list(runs(iter([nothing]), Columns("payload", "headers", None), lambda: Now(7, 7), "here"))


TIMED = Columns("payload", None, None, "delay", "due")


def test_messages_are_apart_by_lane_and_keep_their_due_times() -> None:
    waits_ms = [0, 1, LANE_MS - 1, LANE_MS, 5, 40 * LANE_MS, 0]
    whole = batch(
        payload=pa.array([b"%d" % ms for ms in waits_ms]),
        delay=pa.array([ms / 1000 if ms % 2 else None for ms in waits_ms]),
        due=pa.array(
            [None if ms % 2 else 1000 * (TIME_MS + ms) for ms in waits_ms],
            pa.timestamp("us", "UTC"),
        ),
    )
    found: dict[int | None, list[tuple[bytes, int | None]]] = {}
    for run in runs(iter([whole]), TIMED, lambda: Now(TIME_MS, TIME_MS + 77), "here"):
        frame = decode(b"".join(run.messages.frame(0, 0, run.messages.count, 0, "none")))
        payloads = frame.payloads(0, frame.count)
        found[run.lane] = [(each, frame.due_ms(n)) for n, each in enumerate(payloads)]
    wanted: dict[int | None, list[tuple[bytes, int | None]]] = {}
    for ms in waits_ms:
        due_ms = TIME_MS + 77 + ms if ms else None
        wanted.setdefault(lane_of(ms) if ms else None, []).append((b"%d" % ms, due_ms))
    assert found == wanted


LEVELED = Columns("payload", None, None, "delay", None, "priority")


def test_messages_are_apart_by_priority_and_lane() -> None:
    whole = batch(
        payload=pa.array([b"%d" % n for n in range(6)]),
        delay=pa.array([None, None, 5.0, None, 5.0, None], pa.float64()),
        priority=pa.array([0, 9, 9, None, 0, 9], pa.int8()),
    )
    found = {
        (run.lane, run.level.priority): decode(
            b"".join(run.messages.frame(0, 0, run.messages.count, 0, "none"))
        ).payloads(0, run.messages.count)
        for run in runs(iter([whole]), LEVELED, lambda: Now(TIME_MS, TIME_MS), "here")
    }
    assert found == {
        (None, 0): [b"0", b"3"],
        (None, 9): [b"1", b"5"],
        (0, 9): [b"2"],
        (0, 0): [b"4"],
    }


@pytest.mark.parametrize("wrong", [-1, 10, 2**40])
def test_what_is_not_a_priority_is_refused_with_its_row(wrong: int) -> None:
    bad = batch(
        payload=pa.array([b"a", b"b"]),
        delay=pa.nulls(2, pa.float64()),
        priority=pa.array([1, wrong], pa.int64()),
    )
    with pytest.raises(InvalidPayloadError, match=f"row 1: the priority is {wrong}, but must be"):
        list(runs(iter([bad]), LEVELED, lambda: Now(TIME_MS, 0), "here"))


@pytest.mark.parametrize(
    ("delay", "due_ms", "message"),
    [
        (-1.0, None, "row 1: the delay is not between"),
        (float("nan"), None, "row 1: the delay is not between"),
        (4e8, None, "row 1: the delay is not between"),
        (None, TIME_MS + 10**12, "row 1: the due time is over ten years away"),
        (1.0, TIME_MS, "row 1: it has both"),
    ],
)
def test_a_row_with_a_time_that_no_push_takes_is_named(
    delay: float | None, due_ms: int | None, message: str
) -> None:
    due_us = None if due_ms is None else 1000 * due_ms
    bad = batch(
        payload=pa.array([b"good", b"bad"]),
        delay=pa.array([None, delay], pa.float64()),
        due=pa.array([None, due_us], pa.timestamp("us", "UTC")),
    )
    with pytest.raises(InvalidPayloadError, match=message):
        list(runs(iter([bad]), TIMED, lambda: Now(TIME_MS, 0), "here"))


def test_runs_are_bounded() -> None:
    megabyte = batch(payload=pa.array([b"x" * 1000] * 1000))
    found = list(
        runs(iter([megabyte] * 20), Columns("payload", None, None), lambda: Now(7, 7), "here")
    )
    assert [run.messages.count for run in found] == [9000, 9000, 2000]


def test_a_time_range_is_cut_out() -> None:
    frame = frame_of([batch(payload=pa.array([b"a", b"b"]))], Columns("payload", None, None))
    piece = Slice(frame, 0, 2)
    whole = record_batch("pipe", piece, schema("payload binary"), 0)
    assert within(whole, piece, TIME_MS, TIME_MS + 1).num_rows == 2
    assert within(whole, piece, TIME_MS + 1, TIME_MS + 2).num_rows == 0
    assert within(whole, piece, 0, TIME_MS).num_rows == 0


def test_columns_are_chosen_by_name_and_checked_by_type() -> None:
    options = WriteOptions("file:///x", "q")
    types = {"payload": "binary", "key": "string", "seq": "bigint"}
    assert chosen(options, types) == Columns("payload", None, "key")
    with pytest.raises(ConfigError, match="'payload' is double, but must be binary or string"):
        chosen(options, {"payload": "double"})
    for kind in ("double", "int", *INTERVALS):
        timed = {"payload": "binary", "delay": kind, "due": "timestamp"}
        assert chosen(options, timed) == Columns("payload", None, None, "delay", "due")
    with pytest.raises(ConfigError, match="'delay' is interval month, .* or interval day to sec"):
        chosen(options, {"payload": "binary", "delay": "interval month"})
    with pytest.raises(ConfigError, match="'due' is timestamp_ntz, but must be timestamp"):
        chosen(options, {"payload": "binary", "due": "timestamp_ntz"})
    with pytest.raises(ConfigError, match="'dedup_id' cannot be written"):
        chosen(options, {"payload": "binary", "dedup_id": "string"})
