"""The driver's connection to a node, with large buffers and few copies of each message.

The driver was made for small requests: it sends and receives 4 KB at a time, and copies a frame of
1 MB some ten times on its way. Here a message is copied twice on its way out, and on its way in
once after what the driver's event loop does. What goes over the wire is the same: segments of the
native protocol, version 5, with their checksums (CRC-24 of the header, CRC-32 of the payload).
Anything else, such as the first messages of a connection, is left to the driver.

This relies on undocumented parts of the driver, so it is used only with the driver versions that it
was tested with; otherwise the driver's own connection is used.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple
from zlib import crc32

import cassandra
from cassandra.cluster import DefaultConnection
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown
from cassandra.protocol import ProtocolHandler
from cassandra.segment import CRC32_INITIAL, compute_crc24

DRIVER_VERSIONS = ("3.29", "3.30")
PAYLOAD_MAX = 128 * 1024 - 1  # bytes of a segment
BUFFER_BYTES = 256 * 1024  # a read or write of the socket
QUEUED_MAX = 64  # pieces of that size or less, which wait for the socket to take them
_HEADER, _CRC24, _CRC32 = 3, 3, 4  # bytes of a segment's header, and of the checksums
_AROUND = _HEADER + _CRC24 + _CRC32
_ALONE = 1 << 17  # in a segment's header: it holds whole messages, not a part of a larger one
_MESSAGE = struct.Struct(">BBhBi")  # version, flags, stream, opcode, length of the body
_VERSION = 0x7F  # the bit above it marks an answer


class MessageHeader(NamedTuple):
    """The header of a message, as the driver's `process_msg` takes it."""

    version: int
    flags: int
    stream: int
    opcode: int


def segments(message: bytes) -> bytes:
    """A message as it is sent: cut into segments with their checksums. Cost: a copy."""
    view = memoryview(message)
    alone = _ALONE if len(view) <= PAYLOAD_MAX else 0
    pieces: list[bytes | memoryview] = []
    for at in range(0, len(view), PAYLOAD_MAX):
        payload = view[at : at + PAYLOAD_MAX]
        header = len(payload) | alone
        pieces += (
            header.to_bytes(_HEADER, "little"),
            _header_checksum(header).to_bytes(_CRC24, "little"),
            payload,
            crc32(payload, CRC32_INITIAL).to_bytes(_CRC32, "little"),
        )
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def _header_checksum(header: int) -> int:
    """The checksum of a segment's header, which the driver computes bit by bit: few lengths are
    frequent."""
    return int(compute_crc24(header, _HEADER))


class Pieces(list[bytes]):
    """A message in the making: the driver writes its values one by one. Cost: no copy."""

    write = list.append


class Encoder(ProtocolHandler):  # type: ignore[misc]  # the driver has no types
    """Encodes requests as the driver does, but joins a request's values once."""

    @classmethod
    def encode_message(
        cls,
        msg: Any,
        stream_id: int,
        protocol_version: int,
        compressor: Any,
        allow_beta_protocol_version: bool,
    ) -> bytes:
        """The driver's call for each request."""
        args = (stream_id, protocol_version, compressor, allow_beta_protocol_version)
        if compressor or msg.custom_payload or msg.tracing or allow_beta_protocol_version:
            return bytes(super().encode_message(msg, *args))
        body = Pieces()
        msg.send_body(body, protocol_version)
        size = sum(map(len, body))
        return b"".join((_MESSAGE.pack(protocol_version, 0, stream_id, msg.opcode, size), *body))


class SegmentReader:
    """Takes segments apart into messages. Raises ChecksumError for a damaged one."""

    def __init__(self) -> None:
        self.wanted: int = 0  # bytes that must be there before anything can be done
        self._parts: list[bytes] = []  # of a message larger than a segment
        self._missing = 0

    def take(self, view: memoryview) -> tuple[list[tuple[MessageHeader, bytes]], int]:
        """The complete messages in the received bytes, and how many bytes they take. Cost: a copy;
        two of a message larger than a segment."""
        found: list[tuple[MessageHeader, bytes]] = []
        at, end = 0, len(view)
        self.wanted = _HEADER + _CRC24
        while end - at >= _HEADER + _CRC24:
            header = int.from_bytes(view[at : at + _HEADER], "little")
            first = at + _HEADER + _CRC24
            _check(_header_checksum(header), view[at + _HEADER : first])
            last = first + (header & PAYLOAD_MAX)
            if last + _CRC32 > end:
                self.wanted = last + _CRC32 - at
                break
            payload = view[first:last]
            at = last + _CRC32
            _check(crc32(payload, CRC32_INITIAL), view[last:at])
            if header & _ALONE:
                found += _messages(payload)
            else:
                found += self._part(payload)
        return found, at

    def _part(self, payload: memoryview) -> list[tuple[MessageHeader, bytes]]:
        """The message that this part completes, if it does."""
        if not self._parts:
            self._missing = _MESSAGE.size + _MESSAGE.unpack_from(payload)[4]
        self._parts.append(bytes(payload))
        self._missing -= len(payload)
        if self._missing > 0:
            return []
        parts, self._parts = self._parts, []
        head, body = _header(parts[0])[0], memoryview(parts[0])[_MESSAGE.size :]
        return [(head, b"".join((body, *parts[1:])))]


class ChecksumError(ConnectionException):  # type: ignore[misc]
    """The received bytes are not those that the node sent."""


def _check(found: int, stated: memoryview) -> None:
    if found != int.from_bytes(stated, "little"):
        raise ChecksumError("a segment from the node does not match its checksum")


def _header(data: bytes | memoryview, at: int = 0) -> tuple[MessageHeader, int]:
    """The header of the message at `at`, and the length of its body."""
    version, flags, stream, opcode, length = _MESSAGE.unpack_from(data, at)
    return MessageHeader(version & _VERSION, flags, stream, opcode), length


def _messages(payload: memoryview) -> list[tuple[MessageHeader, bytes]]:
    """The messages of a segment that holds whole ones."""
    found, at = [], 0
    while at < len(payload):
        header, length = _header(payload, at)
        at += _MESSAGE.size
        found.append((header, bytes(payload[at : at + length])))
        at += length
    return found


class NodeConnection(DefaultConnection):  # type: ignore[misc]
    """A connection; the driver's event loop calls `process_io_buffer` when bytes have come."""

    in_buffer_size = BUFFER_BYTES
    out_buffer_size = BUFFER_BYTES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._inbox = SegmentReader()
        super().__init__(*args, **kwargs)

    def send_msg(
        self,
        msg: Any,
        request_id: int,
        cb: Callable[..., object],
        encoder: Callable[..., bytes] = ProtocolHandler.encode_message,
        decoder: Callable[..., object] = ProtocolHandler.decode_message,
        result_metadata: Any = None,
    ) -> int:
        """Send a request. The driver refuses a request while the socket is full, which happens at
        once with large requests; here some requests wait for their turn."""
        if not self._is_checksumming_enabled or self.compressor:
            sent = super().send_msg(msg, request_id, cb, encoder, decoder, result_metadata)
            return int(sent)
        if self.is_defunct or self.is_closed:
            raise ConnectionShutdown(f"Connection to {self.endpoint} is closed")
        if not self._socket_writable and len(getattr(self, "deque", ())) >= QUEUED_MAX:
            raise ConnectionBusy(f"Connection {self.endpoint} is overloaded")
        self._requests[request_id] = (cb, decoder, result_metadata)
        beta = self.allow_beta_protocol_version
        data = segments(encoder(msg, request_id, self.protocol_version, None, beta))
        self.push(memoryview(data))  # a view, so that the driver cuts it without copies
        return len(data)

    def process_io_buffer(self) -> None:
        """Take the received bytes apart; each complete message goes to `process_msg`."""
        if (
            not self._is_checksumming_enabled
            or self.compressor
            or self._io_buffer.readable_cql_frame_bytes()
        ):
            super().process_io_buffer()
            return
        buffer = self._iobuf
        size = buffer.tell()
        if size < self._inbox.wanted:
            return
        try:
            with buffer.getbuffer() as view:
                found, done = self._inbox.take(view[:size])
                rest = bytes(view[done:size])
        except (ChecksumError, struct.error) as exc:
            self.defunct(exc)
            return
        self._io_buffer._io_buffer = io.BytesIO(rest)
        self._io_buffer._io_buffer.seek(0, io.SEEK_END)
        for header, body in found:
            self.process_msg(header, body)


def connection_class(version: str = cassandra.__version__) -> type[Any]:
    """The class of connections for a version of the driver."""
    known = ".".join(version.split(".")[:2]) in DRIVER_VERSIONS
    return NodeConnection if known else DefaultConnection
