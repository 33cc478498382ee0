"""Frames that a writer on Cassandra keeps for readers of its own process."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import CorruptionError
from cassq.message.batches import Extras
from cassq.message.frames import Place, encode, pipe_key

pytest.importorskip("cassandra")

from cassq.extents.cassandra import statements
from cassq.extents.cassandra.heads import Head, Heads
from cassq.extents.cassandra.places import end_place, position
from cassq.extents.cassandra.plain_writer import PlainWriter
from cassq.extents.cassandra.published import PolledEnds
from cassq.extents.cassandra.reader import CassandraReader, TurnRequests
from cassq.extents.cassandra.writer import RECENT_BYTES_MAX, Sizes, WriterContext
from cassq.extents.frame_cache import FrameCache

PIPE = "p"
HEAD = Head(PIPE, "p.1", "q", False, "", 1, sealed=False)
MUCH = 1 << 30


class Servers:
    """A session with servers that take every write. texts: what was read."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def prepare(self, text: str) -> None:
        """Nothing needs it."""

    def tries(self) -> object:
        return object()

    def bound(self, text: str, values: Sequence[Any]) -> Any:
        return SimpleNamespace(text=text, values=values)

    def send(self, _statement: Any) -> Any:
        return SimpleNamespace(warnings=(), add_callbacks=lambda *_callbacks: None)

    def result(self, _future: Any) -> list[Any]:
        return []

    def apply_until(self, *_arguments: Any) -> None:
        """Applied."""

    def read(self, text: str, _values: Sequence[Any] = ()) -> list[Any]:
        self.texts.append(text)
        return [tuple(HEAD)] if text == statements.READ_HEAD else []


def frame(base: int, size: int = 10) -> tuple[bytes, bytes]:
    return encode(base, [b"%d" % base, b"x" * size], Extras(1000), pipe_key=pipe_key(PIPE))


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def writer(servers: Any) -> PlainWriter:
    sizes = Sizes(bucket_frames=3)
    context = WriterContext(servers, Heads(servers), ManualClock(), sizes, lambda _pipe_id: None)
    return PlainWriter(context, HEAD)


def reader_beside(writer: PlainWriter, servers: Any) -> CassandraReader:
    shared = TurnRequests(servers, ManualClock()), FrameCache(), PolledEnds(servers)
    return CassandraReader(servers, Heads(servers), HEAD, *shared, lambda _pipe_id: writer)


def test_what_was_written_lately_is_read_from_memory(writer: PlainWriter, servers: Servers) -> None:
    reader = reader_beside(writer, servers)
    place = Place(0, 0)
    for base in range(0, 14, 2):
        end = writer.append([frame(base)], base + 2)
        servers.texts.clear()
        (piece,) = reader.read(place, end.seq, 9, MUCH)
        assert piece[0].payloads(0, 1) == [b"%d" % base]
        place = reader.place_after(place, [piece])
        assert place == end == end_place(base // 6, base + 2)
    assert servers.texts == []
    within = Place(5, position(0, 4))
    pieces = reader_beside(writer, servers).read(within, 8, 9, MUCH)
    assert [(piece[0].base_seq, *piece[1:]) for piece in pieces] == [(4, 1, 2), (6, 0, 2)]
    assert servers.texts == []


def test_what_is_kept_has_a_bound(writer: PlainWriter) -> None:
    size = RECENT_BYTES_MAX // 4
    for base in range(0, 12, 2):
        writer.append([frame(base, size)], base + 2)
    assert [writer.wrote(base) is not None for base in range(0, 12, 2)] == [False] * 3 + [True] * 3
    writer.append([frame(12, RECENT_BYTES_MAX)], 14)
    assert writer.wrote(12) is None
    assert writer.wrote(10) is not None


def test_what_is_kept_is_verified_as_what_is_read(writer: PlainWriter, servers: Servers) -> None:
    header, body = frame(0)
    damaged = body[:-1] + bytes([body[-1] ^ 1])
    writer.append([(header, damaged)], 2)
    with pytest.raises(CorruptionError, match=PIPE):
        reader_beside(writer, servers).read(Place(0, 0), 2, 9, MUCH)
