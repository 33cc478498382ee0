"""The connection to a node: what goes over the wire is what the driver sends and takes."""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import DefaultConnection
from cassandra.connection import Connection, ConnectionBusy, ConnectionShutdown
from cassandra.protocol import BatchMessage, ExecuteMessage, ProtocolHandler, QueryMessage
from cassandra.query import BatchType
from cassandra.segment import SegmentCodec

from cassq.cassandra.connection import (
    PAYLOAD_MAX,
    QUEUED_MAX,
    ChecksumError,
    Encoder,
    MessageHeader,
    NodeConnection,
    SegmentReader,
    connection_class,
    segments,
)

VERSION, ANSWER = 5, 0x80
HEADER_BYTES = 9
SIZES = [1, 1_000, PAYLOAD_MAX - 1, PAYLOAD_MAX, PAYLOAD_MAX + 1, 2 * PAYLOAD_MAX, 1_000_000]


def driver_segments(message: bytes) -> bytes:
    buffer = io.BytesIO()
    SegmentCodec().encode(buffer, message)
    return buffer.getvalue()


def answer(stream: int, body: bytes) -> bytes:
    head = bytes([VERSION | ANSWER, 0]) + stream.to_bytes(2) + b"\x08" + len(body).to_bytes(4)
    return head + body


class Loose(NodeConnection):
    """A connection without a socket. sent: what was pushed; taken: the messages that came."""

    def __init__(self) -> None:
        self._inbox = SegmentReader()
        Connection.__init__(self, compression=False, protocol_version=VERSION)
        self._enable_checksumming()
        self.sent: list[bytes] = []
        self.taken: list[tuple[int, bytes]] = []

    def push(self, data: Any) -> None:
        self.sent.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def process_msg(self, header: MessageHeader, body: bytes) -> None:
        self.taken.append((header.stream, body))

    def come(self, data: bytes) -> None:
        self._iobuf.write(data)
        self.process_io_buffer()


def execute(*values: bytes | None) -> ExecuteMessage:
    return ExecuteMessage(
        b"id", list(values), ConsistencyLevel.QUORUM, result_metadata_id=b"meta", timestamp=7
    )


def query() -> QueryMessage:
    return QueryMessage("SELECT key FROM system.local", ConsistencyLevel.ONE)


def batch() -> BatchMessage:
    queries = [(True, b"id", [b"a", None]), (False, "INSERT", [])]
    return BatchMessage(BatchType.UNLOGGED, queries, ConsistencyLevel.QUORUM)


@pytest.mark.parametrize("size", SIZES)
def test_a_message_is_cut_into_the_segments_that_the_driver_makes(size: int) -> None:
    message = random.Random(size).randbytes(size)
    assert segments(message) == driver_segments(message)


@pytest.mark.parametrize(
    "make", [lambda: execute(b"a", None, bytes(300_000)), execute, query, batch]
)
def test_a_request_is_encoded_as_the_driver_does(make: Callable[[], Any]) -> None:
    expected = ProtocolHandler.encode_message(make(), 3, VERSION, None, False)
    assert Encoder.encode_message(make(), 3, VERSION, None, False) == expected


def test_a_request_with_a_payload_of_its_own_keeps_it() -> None:
    def make() -> Any:
        message = execute(b"a")
        message.custom_payload = {"key": b"value"}
        return message

    expected = ProtocolHandler.encode_message(make(), 3, VERSION, None, False)
    assert Encoder.encode_message(make(), 3, VERSION, None, False) == expected


def test_a_request_is_pushed_as_one() -> None:
    connection = Loose()
    connection.send_msg(execute(bytes(300_000)), 3, print, encoder=Encoder.encode_message)
    message = ProtocolHandler.encode_message(execute(bytes(300_000)), 3, VERSION, None, False)
    assert connection.sent == [driver_segments(message)]
    assert connection._requests[3][0] is print


@pytest.mark.parametrize("seed", range(8))
def test_messages_come_whole_and_in_order_however_they_are_cut(seed: int) -> None:
    dice = random.Random(seed)
    bodies = [dice.randbytes(dice.choice([0, 1, 5_000, *SIZES])) for _ in range(12)]
    stream, at = b"", 0
    while at < len(bodies):
        # The server puts small messages into one segment.
        small = [answer(at, bodies[at])]
        while at + len(small) < len(bodies) and dice.random() < 0.5:
            small.append(answer(at + len(small), bodies[at + len(small)]))
        if len(b"".join(small)) > PAYLOAD_MAX:
            small = small[:1]
        stream += driver_segments(b"".join(small))
        at += len(small)
    connection = Loose()
    while stream:
        size = dice.choice([1, 7, 3_000, 100_000, 600_000])
        connection.come(stream[:size])
        stream = stream[size:]
    assert connection.taken == list(enumerate(bodies))
    assert connection._iobuf.tell() == 0


@pytest.mark.parametrize("at", [0, 2, 4, 6, 1_000, -1])
def test_a_damaged_segment_ends_the_connection(at: int) -> None:
    data = bytearray(driver_segments(answer(1, bytes(3_000))))
    data[at] ^= 1
    connection = Loose()
    connection.come(bytes(data))
    assert connection.taken == []
    assert isinstance(connection.last_error, ChecksumError)
    assert connection.is_closed
    with pytest.raises(ConnectionShutdown):
        connection.send_msg(query(), 1, print)


def test_a_full_socket_lets_some_requests_wait_and_refuses_more() -> None:
    connection = Loose()
    connection._socket_writable = False
    connection.deque = deque([b""] * (QUEUED_MAX - 1))
    connection.send_msg(query(), 1, print)
    assert len(connection.sent) == 1
    connection.deque.append(b"")
    with pytest.raises(ConnectionBusy):
        connection.send_msg(query(), 2, print)


def test_what_the_driver_has_begun_to_read_it_ends_itself() -> None:
    connection = Loose()
    data = answer(1, bytes(10))
    connection._io_buffer.cql_frame_buffer.write(data[:HEADER_BYTES])
    SegmentCodec().encode(connection._iobuf, data[HEADER_BYTES:])
    connection.process_io_buffer()
    assert connection.taken == [(1, bytes(10))]


def test_a_driver_that_it_was_not_tested_with_uses_its_own_connection() -> None:
    assert connection_class("3.30.1") is NodeConnection
    assert connection_class("3.29.3") is NodeConnection
    assert connection_class("3.31.0") is DefaultConnection
    assert connection_class("4.0") is DefaultConnection


def test_the_installed_driver_is_one_that_it_was_tested_with() -> None:
    assert connection_class() is NodeConnection
