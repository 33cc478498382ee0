"""One CQL query without a driver: how a Cassandra node is asked whether it answers clients."""

from __future__ import annotations

import socket
import struct

SUPERUSER = "cassandra"
ONE, QUORUM, ALL = 1, 4, 5
_VERSION = 4
_ERROR, _STARTUP, _READY, _AUTHENTICATE, _QUERY, _RESULT = 0x00, 0x01, 0x02, 0x03, 0x07, 0x08
_AUTH_RESPONSE, _AUTH_SUCCESS = 0x0F, 0x10


class CqlError(Exception):
    """The node answered with an error, or not in a way that it should."""


def query(address: str, port: int, text: str, *, consistency: int = ONE, seconds: float) -> bytes:
    """The body of a query's result, undecoded: equal bodies are equal results.

    Raises OSError when there is no answer, CqlError when the answer is no result.
    """
    with socket.create_connection((address, port), seconds) as wire:
        wire.settimeout(seconds)
        opcode, _ = _exchange(wire, _STARTUP, _string_map({"CQL_VERSION": "3.0.0"}))
        if opcode == _AUTHENTICATE:
            token = f"\0{SUPERUSER}\0{SUPERUSER}".encode()
            opcode, body = _exchange(wire, _AUTH_RESPONSE, _long_bytes(token))
            if opcode != _AUTH_SUCCESS:
                raise CqlError(f"the superuser is refused: {body!r}")
        elif opcode != _READY:
            raise CqlError(f"the node is not ready for clients: {opcode}")
        options = struct.pack(">HB", consistency, 0)
        opcode, body = _exchange(wire, _QUERY, _long_bytes(text.encode()) + options)
        if opcode != _RESULT:
            raise CqlError(f"{text}: {body!r}")
        return body


def _exchange(wire: socket.socket, opcode: int, body: bytes) -> tuple[int, bytes]:
    """One request and its answer."""
    wire.sendall(struct.pack(">BBhBi", _VERSION, 0, 0, opcode, len(body)) + body)
    head = _read(wire, 9)
    return head[4], _read(wire, struct.unpack(">i", head[5:])[0])


def _read(wire: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = wire.recv(count - len(found))
        if not more:
            raise ConnectionError("the node closed the connection")
        found += more
    return found


def _long_bytes(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def _string_map(pairs: dict[str, str]) -> bytes:
    packed = struct.pack(">H", len(pairs))
    for pair in pairs.items():
        for word in pair:
            packed += struct.pack(">H", len(word)) + word.encode()
    return packed
