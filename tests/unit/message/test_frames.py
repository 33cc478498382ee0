"""The frame codec: whatever goes in comes out, and nothing that was damaged ever does."""

from __future__ import annotations

import json
import os
import random
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64

from cassq.base.clock import ManualClock
from cassq.errors import (
    BrokenInvariantError,
    ConfigError,
    CorruptionError,
    InvalidPayloadError,
    MessageTooLargeError,
    MissingExtraError,
)
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.message import frames
from cassq.message.columns import encode_headers
from cassq.message.compression import COMPRESSIONS, check_compression
from cassq.message.frames import Extras, Frame, FrameError, Place, decode, encode
from cassq.message.ranges import RangeSet

SEQ_MAX = (1 << 63) - 1
PIPE = "0123456789abcdef01234567"
KEY = frames.pipe_key(PIPE)

thorough = settings(max_examples=200)
quick = settings(max_examples=50)


class Case(NamedTuple):
    """What goes into one frame."""

    base_seq: int
    payloads: list[bytes]
    times_ms: int | list[int]
    headers: list[bytes | None] | None
    keys: list[bytes | None] | None
    ids: list[bytes | None] | None
    pipe_key: int
    compression: str

    def encoded(self) -> bytes:
        extras = Extras(self.times_ms, self.headers, self.keys, self.ids)
        header, body = encode(
            self.base_seq,
            self.payloads,
            extras,
            pipe_key=self.pipe_key,
            compression=self.compression,
        )
        return header + body


seqs = st.integers(0, SEQ_MAX)
times = st.integers(0, SEQ_MAX)
small_bytes = st.binary(max_size=40)
header_maps = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=3)


def columns(entries: st.SearchStrategy[bytes | None], count: int) -> st.SearchStrategy:
    return st.none() | st.lists(st.none() | entries, min_size=count, max_size=count)


@st.composite
def cases(draw: st.DrawFn, compressions: Sequence[str] = ("none", "zstd", "lz4")) -> Case:
    uniform = draw(st.booleans())
    if uniform:
        size = draw(st.integers(0, 60))
        payloads = draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=8))
    else:
        payloads = draw(st.lists(st.binary(max_size=60), min_size=1, max_size=8))
    count = len(payloads)
    return Case(
        draw(seqs),
        payloads,
        draw(times | st.lists(times, min_size=count, max_size=count)),
        draw(columns(header_maps.map(encode_headers), count)),
        draw(columns(small_bytes, count)),
        draw(columns(small_bytes, count)),
        draw(st.integers(0, (1 << 64) - 1)),
        draw(st.sampled_from(compressions)),
    )


def column_or_none(column: list[bytes | None] | None) -> list[bytes | None] | None:
    """A column without a single entry is not stored."""
    return column if column and any(entry is not None for entry in column) else None


def assert_holds(frame: Frame, case: Case) -> None:
    count = len(case.payloads)
    assert (frame.base_seq, frame.count) == (case.base_seq, count)
    assert frame.end_seq == case.base_seq + count
    assert frame.payloads(0, count) == case.payloads
    times_ms = [case.times_ms] * count if isinstance(case.times_ms, int) else case.times_ms
    assert [frame.time_ms(index) for index in range(count)] == times_ms
    assert frame.headers == column_or_none(case.headers)
    assert frame.keys == column_or_none(case.keys)
    assert frame.ids == column_or_none(case.ids)


# --- what goes in comes out ------------------------------------------------------------------


@thorough
@given(cases())
def test_a_frame_gives_back_what_was_put_in(case: Case) -> None:
    data = case.encoded()
    frame = decode(data, pipe_key=case.pipe_key)
    assert_holds(frame, case)
    assert frames.frame_span(data) == (frame.base_seq, frame.count, len(data))
    assert frame.size == len(data)


@quick
@given(cases(), small_bytes, small_bytes)
def test_a_frame_is_read_wherever_it_stands(case: Case, before: bytes, after: bytes) -> None:
    data = before + case.encoded() + after
    frame = decode(data, len(before), pipe_key=case.pipe_key)
    assert_holds(frame, case)
    assert frame.size == len(data) - len(before) - len(after)


@quick
@given(cases(), st.data())
def test_any_run_of_payloads_can_be_taken_out(case: Case, data: st.DataObject) -> None:
    frame = decode(case.encoded(), pipe_key=case.pipe_key)
    first = data.draw(st.integers(0, frame.count))
    last = data.draw(st.integers(first, frame.count))
    assert frame.payloads(first, last) == case.payloads[first:last]


@quick
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=80), st.data())
def test_payloads_of_many_lengths_come_one_by_one_as_they_do_together(
    payloads: list[bytes], data: st.DataObject
) -> None:
    frame = decode(b"".join(encode(7, payloads, Extras(0))))
    chosen = data.draw(st.sets(st.integers(0, len(payloads) - 1), min_size=1))
    first = data.draw(st.integers(0, len(payloads) - 1))
    for indexes in (sorted(chosen), range(first, len(payloads))):
        seqs = RangeSet.of(index + 7 for index in indexes)
        wanted = [payloads[index] for index in indexes]
        assert [*frame.each_payload_of(seqs)] == frame.payloads_of(seqs) == wanted


@quick
@given(header_maps)
def test_headers_are_json_and_none_are_none(headers: dict[str, str]) -> None:
    encoded = encode_headers(headers)
    assert (encoded is None) == (not headers)
    assert json.loads(encoded or b"{}") == headers


def test_headers_are_compact_and_keep_their_order() -> None:
    assert encode_headers({"b": "x: y", "a": "\u00fc"}) == b'{"b":"x: y","a":"\xc3\xbc"}'
    assert encode_headers(None) is None


def test_one_message_costs_tens_of_bytes() -> None:
    header, body = encode(0, [b"x"], Extras(0))
    assert len(header) == frames.HEADER_SIZE
    assert len(header) + len(body) - 1 < 48


def test_a_frame_of_many_messages_is_read_to_the_last() -> None:
    payloads = [b"%d" % number for number in range(20_000)]
    frame = decode(b"".join(encode(7, payloads, Extras(5))))
    assert frame.payloads(19_990, 20_000) == payloads[19_990:]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compression_makes_a_frame_smaller_and_is_left_out_when_it_does_not(
    compression: str,
) -> None:
    plain = b"".join(encode(0, [b"a" * 1000] * 5, Extras(0)))
    packed = b"".join(encode(0, [b"a" * 1000] * 5, Extras(0), compression=compression))
    assert len(packed) < len(plain) / 10
    noise = [random.Random(1).randbytes(1000)]
    assert encode(0, noise, Extras(0), compression=compression) == encode(0, noise, Extras(0))


# --- limits -----------------------------------------------------------------------------------


def test_a_message_of_the_largest_size_fits() -> None:
    payload = bytes(frames.MESSAGE_BYTES_MAX)
    frame = decode(b"".join(encode(0, [payload], Extras(0))))
    assert frame.payloads(0, 1) == [payload]


def test_one_byte_more_is_refused_and_the_message_named() -> None:
    payloads = [b"", b"a", bytes(frames.MESSAGE_BYTES_MAX + 1)]
    with pytest.raises(MessageTooLargeError, match=r"message 2 has 16777217 bytes") as caught:
        encode(0, payloads, Extras(0))
    assert "reference" in caught.value.hint


@pytest.mark.parametrize("count", [0, frames.COUNT_MAX + 1])
def test_too_few_or_too_many_messages_are_refused(count: int) -> None:
    with pytest.raises(MessageTooLargeError, match=f"not {count}"):
        encode(0, [b""] * count, Extras(0))


def test_as_many_messages_as_allowed_fit() -> None:
    frame = decode(b"".join(encode(0, [b""] * frames.COUNT_MAX, Extras(0))))
    assert frame.count == frames.COUNT_MAX


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_frame_over_its_limit_is_refused_whatever_it_compresses_to(compression: str) -> None:
    payloads = [bytes(frames.MESSAGE_BYTES_MAX)] * 17  # compresses to nothing; 4 would be enough
    with pytest.raises(MessageTooLargeError, match="fewer messages"):
        encode(0, payloads, Extras(0), compression=compression)


@pytest.mark.parametrize(
    "extras",
    [
        Extras([1]),
        Extras([1, 2, 3]),
        Extras(0, headers=[b"{}"]),
        Extras(0, keys=[b"k"] * 3),
        Extras(0, ids=[b"i"]),
    ],
)
def test_a_column_of_another_length_is_never_written(extras: Extras) -> None:
    with pytest.raises(BrokenInvariantError, match="2 messages"):
        encode(0, [b"a", b"b"], extras)


@pytest.mark.parametrize(
    "headers", [{"a": 1}, {1: "a"}, {"a": b"b"}, ["a"], "text", {"a": "half a pair \ud800"}]
)
def test_headers_that_are_not_text_are_refused(headers: object) -> None:
    with pytest.raises(InvalidPayloadError, match="header"):
        encode_headers(headers)  # type: ignore[arg-type]


# --- compression that is not there ------------------------------------------------------------


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(ConfigError, match="'gzip' is unknown"):
        check_compression("gzip")


@pytest.mark.parametrize(("name", "module"), [("zstd", "zstandard"), ("lz4", "lz4.block")])
def test_a_missing_package_is_named_and_is_not_damage(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_compression(name) == name
    data = b"".join(encode(0, [b"a" * 1000], Extras(0), compression=name))
    monkeypatch.setitem(sys.modules, module, None)
    for attempt in (lambda: check_compression(name), lambda: decode(data)):
        with pytest.raises(MissingExtraError, match=module.partition(".")[0]) as caught:
            attempt()
        assert "cassq[compression]" in caught.value.hint
    assert check_compression("none") == "none"


# --- damage -----------------------------------------------------------------------------------

SAMPLES = {
    "one": Case(0, [b"payload"], 1_700_000_000_000, None, None, None, KEY, "none"),
    "uniform": Case(41, [b"abcd"] * 4, 12, None, None, None, KEY, "none"),
    "all columns": Case(
        1 << 40, [b"", b"one", b"three"], [1, 2, 3], [None, b'{"a":"b"}', None],
        [b"k", None, b""], [b"first:1", None, None], KEY, "none",
    ),
    "zstd": Case(3, [b"zz" * 40] * 3, 9, None, [b"k"] * 3, None, KEY, "zstd"),
    "lz4": Case(3, [b"zz" * 40] * 3, 9, None, [b"k"] * 3, None, KEY, "lz4"),
}  # fmt: skip
samples = pytest.mark.parametrize("case", SAMPLES.values(), ids=SAMPLES.keys())


@samples
def test_every_truncation_is_seen(case: Case) -> None:
    data = case.encoded()
    for size in range(len(data)):
        with pytest.raises(FrameError):
            decode(data[:size], pipe_key=KEY)


@samples
def test_every_flipped_bit_is_seen(case: Case) -> None:
    data = case.encoded()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        # Room behind it: a length that grew must not pass for a frame cut short.
        with pytest.raises(FrameError):
            decode(bytes(damaged) + bytes(4096), pipe_key=KEY)


@samples
@pytest.mark.parametrize("stored", [0, 1, (1 << 64) - 1])
def test_no_stored_checksum_is_taken_on_trust(case: Case, stored: int) -> None:
    """None that is stored stands for one that was not computed."""
    data = bytearray(case.encoded())
    struct.pack_into("<Q", data, frames.HEADER_SIZE - 8, stored)
    with pytest.raises(FrameError):
        decode(bytes(data), pipe_key=KEY)
    data[-1] ^= 1
    with pytest.raises(FrameError):
        decode(bytes(data), pipe_key=KEY)


@pytest.mark.parametrize("missing", [-3, -1, 1, 3])
def test_lengths_that_do_not_add_up_are_refused_under_a_right_checksum(missing: int) -> None:
    columns = struct.pack("<I", 10) + struct.pack("<Q", 1_700)
    flags = frames.UNIFORM | frames.TIME_ONE
    for length in (20, 20 - missing):
        body = columns + bytes(length)
        data = b"".join(frames.framed(0, 2, flags, body, KEY, "none"))
        if length == 20:
            assert decode(data, pipe_key=KEY).payloads(0, 2) == [bytes(10)] * 2
        else:
            with pytest.raises(FrameError, match="add up"):
                decode(data, pipe_key=KEY)


@samples
def test_a_frame_of_another_pipe_is_refused(case: Case) -> None:
    data = case.encoded()
    assert_holds(decode(data, pipe_key=KEY), case)
    for other in (0, KEY ^ 1, frames.pipe_key(PIPE[:-1] + "8")):
        with pytest.raises(FrameError, match="checksum"):
            decode(data, pipe_key=other)


@thorough
@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        decode(data)


@thorough
@given(st.binary(max_size=200), st.binary(min_size=28, max_size=28))
def test_garbage_with_a_frame_s_beginning_is_refused(body: bytes, rest: bytes) -> None:
    with pytest.raises(FrameError):
        decode(frames.MAGIC + rest + body)


@settings(max_examples=300)
@given(
    code=st.integers(0, 2),
    flags=st.integers(0, 63),
    count=st.integers(1, 6),
    body=st.lists(st.sampled_from([b"\0", b"\x01", b"\x02", b"\0\0\0\0"]) | small_bytes).map(
        b"".join
    ),
)
def test_nonsense_under_a_right_checksum_is_refused_or_read_as_it_stands(
    code: int, flags: int, count: int, body: bytes
) -> None:
    header = struct.pack(
        "<4sBBHIIQ", frames.MAGIC, frames.VERSION, code, flags, count, len(body), 5
    )
    checksum = xxh3_64(header + body).intdigest()
    try:
        frame = decode(header + struct.pack("<Q", checksum) + body)
    except FrameError:
        return
    found = frame.payloads(0, count)
    assert len(found) == count
    if code == COMPRESSIONS["none"]:
        assert body.endswith(b"".join(found))


def test_a_frame_of_a_later_version_is_refused_by_name() -> None:
    data = bytearray(SAMPLES["one"].encoded())
    data[4] = 2
    with pytest.raises(FrameError, match="version 2"):
        decode(bytes(data), pipe_key=KEY)


def test_damage_is_a_corruption_with_advice() -> None:
    assert issubclass(FrameError, CorruptionError)
    with pytest.raises(FrameError) as caught:
        decode(b"")
    assert "cassq pipe show" in caught.value.hint


# --- damage in a file -------------------------------------------------------------------------

PER_FRAME = 4
FRAMES = 5


def payload(seq: int) -> bytes:
    return b"message %d " % seq * 3


@pytest.fixture
def store(tmp_path: Path) -> FilesStore:
    return FilesStore(tmp_path, ManualClock(), durability="os", disk=Disk())


def written_pipe(store: FilesStore) -> list[Place]:
    """A pipe of five frames of four messages, its writer gone; where each frame begins."""
    writer = store.create(PIPE, "queue")
    places = [writer.end]
    for number in range(FRAMES):
        base = number * PER_FRAME
        payloads = [payload(seq) for seq in range(base, base + PER_FRAME)]
        frame = encode(base, payloads, Extras(0), pipe_key=KEY)
        places.append(writer.append([frame], base + PER_FRAME))
    writer.close()
    return places


def flip(path: Path, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, bit // 8)[0]
        os.pwrite(fd, bytes([byte ^ 1 << bit % 8]), bit // 8)
    finally:
        os.close(fd)


def read_until_damage(store: FilesStore) -> list[bytes]:
    """Every payload that a fresh reader hands out before it tells of damage."""
    reader = store.reader(PIPE)
    found: list[bytes] = []
    try:
        place = Place(0, 0)
        while place.seq < FRAMES * PER_FRAME:
            try:
                slices = reader.read(place, FRAMES * PER_FRAME, 1000, 1 << 20)
            except FrameError:
                break
            for frame, first, last in slices:
                found += frame.payloads(first, last)
            place = reader.place_after(place, slices)
    finally:
        reader.close()
    return found


@pytest.mark.parametrize("damaged", range(FRAMES))
def test_a_damaged_frame_in_a_file_is_never_handed_out_and_what_is_before_it_is(
    store: FilesStore, damaged: int
) -> None:
    places = written_pipe(store)
    chance = random.Random(damaged)
    before = [payload(seq) for seq in range(damaged * PER_FRAME)]
    first_bit, last_bit = 8 * places[damaged].pos, 8 * places[damaged + 1].pos
    for bit in [first_bit, last_bit - 1, *chance.sample(range(first_bit, last_bit), 60)]:
        flip(store.path(PIPE), bit)
        assert read_until_damage(store) == before, f"bit {bit}"
        flip(store.path(PIPE), bit)
    assert len(read_until_damage(store)) == FRAMES * PER_FRAME
