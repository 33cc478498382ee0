"""The test vectors of docs/frame_format.md, both ways: by cassq and by the page's own reader."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cassq.message import frames
from cassq.message.columns import encode_headers
from cassq.message.compression import COMPRESSIONS
from cassq.message.frames import Extras, FrameError, decode, encode

PAGE = Path(__file__).resolve().parents[3] / "docs" / "frame_format.md"
Vector = dict[str, Any]


def block(language: str) -> str:
    """The one fenced block of the page in that language."""
    fences = re.compile(rf"^```{language}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    (found,) = fences.findall(PAGE.read_text())
    return str(found)


VECTORS = json.loads(block("json"))
to_read = pytest.mark.parametrize("vector", VECTORS["read"], ids=lambda v: v["name"])
to_refuse = pytest.mark.parametrize("vector", VECTORS["refuse"], ids=lambda v: v["name"])


@pytest.fixture(scope="module")
def read_frame() -> Callable[[bytes, int], dict[str, Any]]:
    """The reader that the page gives."""
    names: dict[str, Any] = {}
    exec(compile(block("python"), str(PAGE), "exec"), names)
    reader: Callable[[bytes, int], dict[str, Any]] = names["read_frame"]
    return reader


def frame_bytes(vector: Vector) -> bytes:
    return bytes.fromhex("".join(vector["frame"]))


def key(vector: Vector) -> int:
    return int(vector["pipe_key"], 16)


def payloads(vector: Vector) -> list[bytes]:
    return [bytes.fromhex(payload) for payload in vector["payloads"]]


def times_ms(vector: Vector) -> list[int]:
    times: int | list[int] = vector["times_ms"]
    return [times] * len(vector["payloads"]) if isinstance(times, int) else times


def dues_ms(vector: Vector) -> list[int | None]:
    dues: int | list[int | None] | None = vector.get("dues_ms")
    return dues if isinstance(dues, list) else [dues] * len(vector["payloads"])


def columns(vector: Vector) -> dict[str, list[bytes | None] | None]:
    """The optional columns as a frame stores them; None for one that is not there."""
    headers, keys, ids = (vector.get(name) for name in ("headers", "keys", "ids"))
    return {
        "headers": headers and [encode_headers(entry) for entry in headers],
        "keys": keys and [None if entry is None else bytes.fromhex(entry) for entry in keys],
        "ids": ids and [None if entry is None else entry.encode() for entry in ids],
    }


def encoded(vector: Vector, compression: str) -> bytes:
    extras = Extras(vector["times_ms"], dues_ms=vector.get("dues_ms"), **columns(vector))
    return b"".join(
        encode(
            vector["base_seq"],
            payloads(vector),
            extras,
            pipe_key=key(vector),
            compression=compression,
        )
    )


@to_read
def test_cassq_reads_the_messages_of_a_vector(vector: Vector) -> None:
    data = frame_bytes(vector)
    frame = decode(data, pipe_key=key(vector))
    assert frame.base_seq == vector["base_seq"]
    assert frame.size == len(data)
    assert frame.payloads(0, frame.count) == payloads(vector)
    assert [frame.time_ms(index) for index in range(frame.count)] == times_ms(vector)
    assert [frame.due_ms(index) for index in range(frame.count)] == dues_ms(vector)
    assert {"headers": frame.headers, "keys": frame.keys, "ids": frame.ids} == columns(vector)


@to_read
def test_cassq_writes_the_bytes_of_a_vector(vector: Vector) -> None:
    """Of a compressed one the header but for its length and checksum, which hang on the packing."""
    data, wanted = encoded(vector, vector["compression"]), frame_bytes(vector)
    if vector["compression"] == "none":
        assert data.hex(" ") == wanted.hex(" ")
    else:
        assert (data[:12], data[16:24]) == (wanted[:12], wanted[16:24])
        assert decode(data, pipe_key=key(vector)).payloads(0, 4) == payloads(vector)


@to_read
def test_the_page_s_reader_reads_a_vector(
    vector: Vector, read_frame: Callable[[bytes, int], dict[str, Any]]
) -> None:
    found = read_frame(frame_bytes(vector), key(vector))
    first, count = vector["base_seq"], len(vector["payloads"])
    assert found == {
        "seqs": range(first, first + count),
        "payloads": payloads(vector),
        "times_ms": times_ms(vector),
        "dues_ms": dues_ms(vector),
        **{name: column or [None] * count for name, column in columns(vector).items()},
    }


@to_refuse
def test_a_vector_to_be_refused_is(
    vector: Vector, read_frame: Callable[[bytes, int], dict[str, Any]]
) -> None:
    with pytest.raises(FrameError):
        decode(frame_bytes(vector), pipe_key=key(vector))
    with pytest.raises(ValueError):
        read_frame(frame_bytes(vector), key(vector))


@to_read
def test_the_key_of_a_vector_is_that_of_its_pipe(vector: Vector) -> None:
    pipe = vector["pipe"]
    assert key(vector) == (frames.pipe_key(pipe) if pipe else 0)


def test_the_vectors_show_every_flag_and_compression() -> None:
    headers = [struct.unpack_from("<4sBBH", frame_bytes(vector)) for vector in VECTORS["read"]]
    flags = {1 << bit for _, _, _, flags in headers for bit in range(16) if flags & 1 << bit}
    named = re.findall(r"^\| (\d+) \| [A-Z_]+ \|", PAGE.read_text(), re.MULTILINE)
    assert flags == {int(flag) for flag in named}
    assert sum(flags) == frames._KNOWN_FLAGS
    assert any(not flags & frames.UNIFORM for _, _, _, flags in headers)
    assert {code for _, _, code, _ in headers} == set(COMPRESSIONS.values())
    assert {key(vector) == 0 for vector in VECTORS["read"]} == {True, False}


def test_the_page_names_the_limits_that_hold() -> None:
    text = PAGE.read_text()
    limits = (frames.MESSAGE_BYTES_MAX, frames.BODY_BYTES_MAX, frames.COUNT_MAX)
    for limit in limits:
        assert f"{limit:,}" in text
