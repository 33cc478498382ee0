"""Runs: frames of columns as they lie in memory are those of the same messages one by one."""

from __future__ import annotations

from array import array
from itertools import accumulate

import pytest

from cassq.message.batches import FRAME_BYTES_TARGET, FRAME_MESSAGES_MAX
from cassq.message.column_batch import ColumnBatch, Strings
from cassq.message.columns import ABSENT
from cassq.message.frames import Extras, decode, encode

TIME_MS = 1_700_000_000_000


def strings(entries: list[bytes | None]) -> Strings:
    lengths = array("I", (ABSENT if e is None else len(e) for e in entries))
    offsets = array("i", accumulate((len(e or b"") for e in entries), initial=0))
    data = b"".join(e or b"" for e in entries)
    return Strings(memoryview(offsets), memoryview(lengths).cast("B"), memoryview(data))


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize(
    ("payloads", "headers", "keys"),
    [
        ([b"a", b"bcd", b"", b"efgh"], None, None),
        ([b"a", b"bcd", b"", b"efgh"], [None, b'{"x":"1"}', None, b'{"y":"2"}'], None),
        ([b"a", b"bcd", b"x" * 900, b"efgh"], None, [b"k", None, b"", b"key"]),
    ],
)
def test_a_frame_of_a_run_is_that_of_its_messages(
    payloads: list[bytes],
    headers: list[bytes | None] | None,
    keys: list[bytes | None] | None,
    compression: str,
) -> None:
    run = ColumnBatch(
        strings(list(payloads)),
        TIME_MS,
        headers and strings(headers),
        keys and strings(keys),
    )
    assert run.count == len(payloads)
    for first, last in [(0, 4), (1, 3)]:
        extras = Extras(TIME_MS, headers and headers[first:last], keys and keys[first:last])
        expected = encode(7, payloads[first:last], extras, pipe_key=9, compression=compression)
        assert run.frame(7, first, last, 9, compression) == expected


def test_a_frame_of_a_run_has_the_due_time_of_each_message() -> None:
    dues = [TIME_MS + n for n in (5, 1, 9)]
    run = ColumnBatch(
        strings([b"a", b"bc", b""]),
        TIME_MS,
        keys=strings([b"k", None, b""]),
        dues=memoryview(array("Q", dues)).cast("B"),
    )
    for first, last in [(0, 3), (1, 3)]:
        frame = decode(b"".join(run.frame(0, first, last, 0, "none")))
        assert [frame.due_ms(n) for n in range(last - first)] == dues[first:last]
        assert frame.payloads(0, last - first) == [b"a", b"bc", b""][first:last]


def test_payloads_of_one_length_have_one_stored_length() -> None:
    payloads = [b"%04d" % n for n in range(100)]
    run = ColumnBatch(strings(list(payloads)), TIME_MS, length=4)
    expected = encode(0, payloads[10:90], Extras(TIME_MS))
    assert run.frame(0, 10, 90, 0, "none") == expected
    frame = decode(b"".join(expected))
    assert frame.payloads(0, 80) == payloads[10:90]


def test_frames_end_at_their_target_of_bytes_or_messages() -> None:
    large = ColumnBatch(strings([b"x" * 300_000] * 9), TIME_MS)
    assert large.frame_end(0, 9) == FRAME_BYTES_TARGET // 300_000
    assert large.frame_end(0, 2) == 2
    assert large.frame_end(8, 9) == 9
    huge = ColumnBatch(strings([b"x" * (2 * FRAME_BYTES_TARGET)] * 2), TIME_MS)
    assert huge.frame_end(0, 2) == 1, "one message is in each, however large"
    small = ColumnBatch(strings([b"x"] * (FRAME_MESSAGES_MAX + 5)), TIME_MS)
    assert small.frame_end(0, small.count) == FRAME_MESSAGES_MAX
    assert small.frame_end(FRAME_MESSAGES_MAX, small.count) == small.count
    keyed = ColumnBatch(strings([b"x"] * 9), TIME_MS, keys=strings([b"k" * 300_000] * 9))
    assert keyed.frame_end(0, 9) == FRAME_BYTES_TARGET // 300_000
