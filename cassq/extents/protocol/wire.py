"""Messages between sidecars and their clients as bytes.

A message is a u32 (little-endian) with the length of what follows, and a msgpack array:
`[op, id, *fields]` from the client, `[code, id, *fields]` from the sidecar, with the id of the
request it answers. Code 0 is followed by the fields of the request's reply; any other code is a
refusal, with a message and a map of details. Requests on one connection are begun in order and
answered in any order. A request with the id 0 gets no answer. `docs/sidecar_protocol.md` specifies
the protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from msgspec import DecodeError, ValidationError, convert
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import astuple

from cassq.errors import CorruptionError
from cassq.extents.protocol.messages import (
    OPS,
    REPLIES,
    REQUESTS,
    Append,
    Code,
    Frames,
    RefusedError,
    Reply,
    Request,
)
from cassq.message.frames import BODY_BYTES_MAX, HEADER_SIZE

# The size of a message without its frames.
ENVELOPE_BYTES_MAX = 64 * 1024
MESSAGE_BYTES_MAX = BODY_BYTES_MAX + HEADER_SIZE + ENVELOPE_BYTES_MAX
# Larger requests are frames; nothing else is unpacked from them.
REQUEST_BYTES_MAX = 1024 * 1024
HELLO_BYTES_MAX = 16 * 1024  # before the client is known

_LENGTH = struct.Struct("<I")
_BIN = struct.Struct(">BI")  # msgpack's `bin 32`: a byte and the length, big-endian
_BIN_32 = 0xC6

_packed = Encoder().encode
_unpacked = Decoder().decode
# Ends at the first value of another type, so a large request cannot become millions of objects.
_append = Decoder(tuple[int, int, str, int, int, int, int, bytes]).decode


class ProtocolError(CorruptionError):
    """The received bytes are not a message of the sidecar protocol."""

    default_hint = "check that the server is a sidecar, and the client cassq"


def request_parts(request: Request, number: int) -> list[bytes]:
    """A request as parts to send one after another; frames are not copied. number: its id."""
    array = (OPS[type(request)], number, *astuple(request))
    if isinstance(request, Append):
        frame = request.frame
        return _with_bytes(array[:-1], [frame] if isinstance(frame, bytes) else frame)
    return _whole(array)


def reply_parts(reply: Reply, number: int) -> list[bytes]:
    """A reply as parts to send one after another. number: the id of the request it answers."""
    if isinstance(reply, Frames):
        return _with_bytes((Code.OK, number, reply.end), [reply.frames])
    return _whole((Code.OK, number, *astuple(reply)))


def refusal_parts(refusal: RefusedError, number: int) -> list[bytes]:
    """A refusal as parts to send. number: the id of the request that is refused; 0 for the
    connection."""
    fields = {key: value for key, value in refusal.fields.items() if value is not None}
    return _whole((refusal.code, number, refusal.message, fields))


def _whole(array: Sequence[Any]) -> list[bytes]:
    body = _packed(array)
    return [_LENGTH.pack(len(body)) + body]


def _with_bytes(array: Sequence[Any], parts: Sequence[bytes]) -> list[bytes]:
    """An array whose last element is bytes, given in parts."""
    size = sum(map(len, parts))
    head = _packed((*array, None))[:-1] + _BIN.pack(_BIN_32, size)  # nil is one byte
    return [_LENGTH.pack(len(head) + size) + head, *parts]


def body_length(prefix: bytes | bytearray, at: int = 0, *, limit: int = MESSAGE_BYTES_MAX) -> int:
    """How many bytes of a message follow its first four. Raises ProtocolError over the limit."""
    length: int = _LENGTH.unpack_from(prefix, at)[0]
    if not 0 < length <= limit:
        raise ProtocolError(f"a message claims {length} bytes; the limit is {limit}")
    return length


def read_request(body: bytes | memoryview) -> tuple[int, Request]:
    """The id and the request of a message. Raises ProtocolError, with the id in its field `number`
    if that could be read."""
    if len(body) > REQUEST_BYTES_MAX:
        _check_large(body)
    array = _array(body)
    kind = REQUESTS.get(array[0])
    if kind is None:
        raise ProtocolError(f"there is no operation {array[0]!r}", number=array[1])
    request = _filled(kind, array[2:], array[1])
    if kind is Append and type(request.frame) is not bytes:
        raise ProtocolError("a frame is split into parts", number=array[1])  # they are the sender's
    return array[1], request


def read_reply(body: bytes | memoryview) -> tuple[int, list[Any] | RefusedError]:
    """The id of the request that a message answers, and the reply's fields or the refusal;
    `reply_of` turns the fields into the reply. Raises ProtocolError."""
    array = _array(body)
    if array[0] == Code.OK:
        return array[1], array[2:]
    try:
        code, message, fields = Code(array[0]), str(array[2]), dict(array[3])
        refusal = RefusedError(code, message, **{str(key): fields[key] for key in fields})
    except (ValueError, TypeError, IndexError) as exc:
        raise ProtocolError(f"a refusal could not be read: {exc}") from exc
    return array[1], refusal


def reply_of(request: Request, fields: list[Any]) -> Any:
    """The reply to a request. Raises ProtocolError."""
    return _filled(REPLIES[type(request)], fields)


def _check_large(body: bytes | memoryview) -> None:
    try:
        _append(body)
    except (DecodeError, ValueError) as exc:
        raise ProtocolError(f"a message of {len(body)} bytes is not an Append: {exc}") from exc


def _array(body: bytes | memoryview) -> list[Any]:
    try:
        array = _unpacked(body)
    except (DecodeError, ValueError, TypeError, RecursionError) as exc:
        raise ProtocolError(f"a message is not msgpack: {exc}") from exc
    if isinstance(array, list) and len(array) >= 2 and type(array[0]) is type(array[1]) is int:
        return array
    raise ProtocolError("a message is not an array that begins with two numbers")


def _filled(kind: type[Any], fields: list[Any], number: int = 0) -> Any:
    try:
        return convert(fields, kind, builtin_types=(bytes,))  # bytes are not encoded as a str
    except ValidationError as exc:
        raise ProtocolError(f"{kind.__name__}: {exc}", number=number) from exc
