"""Frames: immutable runs of messages, the unit of storage, network and checksum.

A frame is a 32-byte header and a body; `docs/frame_format.md` specifies both with test vectors. It
is encoded and decoded by bulk operations only, so that a frame of thousands of messages costs well
under a microsecond per message. The checksum (xxh3-64 over header and body, seeded with the key of
the pipe) is verified whenever a frame is read: a frame that is damaged, cut short or belongs to
another pipe is never handed out.

Invariants: a frame holds at least one message; its seqs are `base_seq .. base_seq + count - 1`;
once acknowledged its bytes never change.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, pairwise
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from cassq.errors import BrokenInvariantError, CorruptionError, MessageTooLargeError
from cassq.message.bundles import Bundle
from cassq.message.columns import decode_column, encode_column, from_little, to_little
from cassq.message.compression import COMPRESSIONS, compress, decompress
from cassq.message.ranges import RangeSet

MAGIC = b"CQF1"
VERSION = 1
HEADER_SIZE = 32
BODY_BYTES_MAX = 64 * 1024 * 1024
MESSAGE_BYTES_MAX = 16 * 1024 * 1024
COUNT_MAX = 1_000_000

UNIFORM = 1  # all payloads have the same length, stored once
TIME_ONE = 2  # one push time for the whole frame
TIMES = 4  # a push time a message
HEADERS = 8
KEYS = 16
IDS = 32
DUE_ONE = 64  # one due time for the whole frame
DUES = 128  # a due time a message
_KNOWN_FLAGS = UNIFORM | TIME_ONE | TIMES | HEADERS | KEYS | IDS | DUE_ONE | DUES

_HEADER = struct.Struct("<4sBBHIIQQ")
_SUMMED = HEADER_SIZE - 8  # the checksum covers the header up to itself, then the body
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FEW = 16  # payloads that are not worth preparing for
_SMALL_BODY = 4096  # copying this much is cheaper than a second call


class FrameError(CorruptionError):
    """A frame is damaged or cut short."""

    default_hint = (
        "keep a copy of the data; `cassq pipe show PIPE` shows what cannot be read, "
        "and `cassq pipe skip PIPE` continues past it"
    )


class Place(NamedTuple):
    """The position of a message in a pipe.

    seq: its number. pos: the store's own cursor of the frame that holds it, or of an earlier
    frame of the same pipe: a reader skips forward to `seq`.
    """

    seq: int
    pos: int


def pipe_key(pipe_id: str) -> int:
    """The seed that binds a frame's checksum to its pipe: xxh3-64 of the pipe's id."""
    return xxh3_64_intdigest(pipe_id.encode())


class Extras:
    """The optional columns of a run of messages; an absent column is `None`.

    headers: encoded with `encode_headers`; keys, ids: bytes; each entry may be None.
    times_ms: wall milliseconds, one for all or one a message. dues_ms: due times in catalog
    milliseconds, likewise; None: due at once.
    """

    __slots__ = ("dues_ms", "headers", "ids", "keys", "times_ms")

    def __init__(
        self,
        times_ms: int | Sequence[int],
        headers: Sequence[bytes | None] | None = None,
        keys: Sequence[bytes | None] | None = None,
        ids: Sequence[bytes | None] | None = None,
        dues_ms: int | Sequence[int] | None = None,
    ) -> None:
        self.times_ms: int | Sequence[int] = times_ms
        self.dues_ms: int | Sequence[int] | None = dues_ms
        self.headers: Sequence[bytes | None] | None = headers
        self.keys: Sequence[bytes | None] | None = keys
        self.ids: Sequence[bytes | None] | None = ids


def encode(
    base_seq: int,
    payloads: Sequence[bytes],
    extras: Extras,
    *,
    pipe_key: int = 0,
    compression: str = "none",
    length: int | None = None,
) -> tuple[bytes, bytes]:
    """The frame of `payloads` as (header, body), to be written one after the other.

    length: of each payload, if the caller knows that all have the same.

    Raises MessageTooLargeError if a payload or the whole is over its limit.
    Cost: one join and one checksum of the body.
    """
    count = len(payloads)
    if not 0 < count <= COUNT_MAX:
        raise MessageTooLargeError(f"a frame takes 1 to {COUNT_MAX} messages, not {count}")
    flags, columns = _encode_lengths(payloads, length)
    flags |= _encode_times(columns, extras.times_ms, count, TIME_ONE, TIMES)
    if extras.dues_ms is not None:
        flags |= _encode_times(columns, extras.dues_ms, count, DUE_ONE, DUES)
    for flag, column in ((HEADERS, extras.headers), (KEYS, extras.keys), (IDS, extras.ids)):
        if column is not None and any(entry is not None for entry in column):
            _check_length(column, count)
            flags |= flag
            columns.append(encode_column(column))
    return framed(base_seq, count, flags, b"".join((*columns, *payloads)), pipe_key, compression)


def framed(
    base_seq: int, count: int, flags: int, body: bytes, pipe_key: int, compression: str
) -> tuple[bytes, bytes]:
    """The frame of a body with the columns that `flags` name, as `encode` returns it."""
    if len(body) > BODY_BYTES_MAX:
        raise MessageTooLargeError(
            f"a frame of {count} messages has {len(body)} bytes, the limit is {BODY_BYTES_MAX}",
            hint="push fewer messages at a time",
        )
    if compression != "none":
        packed = compress(compression, body)
        if len(packed) + 4 < len(body):
            body = _U32.pack(len(body)) + packed
        else:
            compression = "none"  # it would only grow
    code = COMPRESSIONS[compression]
    header = _HEADER.pack(MAGIC, VERSION, code, flags, count, len(body), base_seq, 0)
    return header[:_SUMMED] + _U64.pack(_checksum(header[:_SUMMED], body, pipe_key)), body


def _checksum(summed: bytes, body: bytes, seed: int) -> int:
    if len(body) < _SMALL_BODY:
        return xxh3_64_intdigest(summed + body, seed=seed)
    digest = xxh3_64(summed, seed=seed)
    digest.update(body)
    return digest.intdigest()


class Frame(Bundle):
    """A verified frame: its messages are sliced out on demand.

    base_seq, count: which seqs it holds. size: its bytes in the store, header included.
    """

    __slots__ = (
        "_data",
        "_dues",
        "_lengths",
        "_offsets",
        "_payload_at",
        "_uniform",
        "count",
        "size",
    )

    count: int
    size: int
    headers: list[bytes | None] | None
    keys: list[bytes | None] | None
    ids: list[bytes | None] | None
    _data: bytes
    _dues: int | array[int] | None
    _lengths: array[int]
    _offsets: list[int] | None
    _payload_at: int
    _times: int | array[int]
    _uniform: int

    @property
    def end_seq(self) -> int:
        return self.base_seq + self.count

    def payloads(self, first: int, last: int) -> list[bytes]:
        """The payloads of messages `first .. last` (indexes in the frame, last excluded)."""
        return list(self._sliced(first, last))

    def _sliced(self, first: int, last: int) -> Iterable[bytes]:
        """`payloads`; if their lengths differ, each is created when it is requested."""
        data = self._data
        if self._uniform >= 0:
            size = self._uniform
            at = self._payload_at + first * size
            return _splitter(size, last - first).unpack_from(data, at)
        at, offsets = self._payload_at, self._offsets
        if first or last - first < _FEW:
            if offsets is None:
                offsets = self._offsets = [*accumulate(self._lengths, initial=at)]
            if last - first < _FEW:
                return [data[a:b] for a, b in pairwise(offsets[first : last + 1])]
            at = offsets[first]
        # Half the cost of slices by their offsets. It copies none of `data`.
        source = BytesIO(data)
        source.seek(at)
        return map(source.read, self._lengths[first:last])

    def payloads_of(self, seqs: RangeSet) -> list[bytes]:
        """The payloads of these seqs of the frame, in order."""
        base = self.base_seq
        if len(seqs.ranges) == 1:
            ((start, end),) = seqs.ranges
            return self.payloads(start - base, end - base)
        if self._uniform >= 0:
            data, size = self._data, self._uniform
            at = self._payload_at - base * size
            return [data[at + seq * size : at + seq * size + size] for seq in seqs]
        return [
            payload
            for start, end in seqs.ranges
            for payload in self.payloads(start - base, end - base)
        ]

    def each_payload_of(self, seqs: RangeSet) -> Iterable[bytes]:
        if len(seqs.ranges) != 1:
            return self.payloads_of(seqs)
        ((start, end),) = seqs.ranges
        return self._sliced(start - self.base_seq, end - self.base_seq)

    def payload_run(self, first: int, last: int) -> tuple[memoryview, int | array[int]]:
        """The payloads of messages `first .. last` as stored, one after another, and their
        lengths: one number if all have the same."""
        at = self._payload_at
        if self._uniform >= 0:
            size = self._uniform
            view = memoryview(self._data)[at + first * size : at + last * size]
            return view, size
        at += sum(self._lengths[:first])
        lengths = self._lengths[first:last]
        return memoryview(self._data)[at : at + sum(lengths)], lengths

    def due_ms(self, index: int) -> int | None:
        """The due time of message `index` in catalog time; None if it has none."""
        dues = self._dues
        return dues if dues is None or isinstance(dues, int) else dues[index]

    @property
    def has_due_times(self) -> bool:
        """Whether each message has its own due time."""
        return isinstance(self._dues, array)

    def times_ms(self) -> int | Sequence[int]:
        """One push time for all, or one a message."""
        return self._times


class FrameSpan(NamedTuple):
    """What a frame's header says. size: of the whole frame, in bytes."""

    base_seq: int
    messages: int
    size: int


def frame_span(data: bytes, at: int = 0) -> FrameSpan:
    """What the header at `at` says, unverified.

    Raises FrameError if there is no header.
    """
    if len(data) - at < HEADER_SIZE:
        raise FrameError("a frame's header is cut short")
    magic, version, code, flags, count, body_length, base_seq, _ = _HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise FrameError("no frame starts here")
    if version != VERSION or code > 2 or flags & ~_KNOWN_FLAGS:
        raise FrameError(f"a frame of version {version}, flags {flags:#x} cannot be read")
    if not 0 < count <= COUNT_MAX or body_length > BODY_BYTES_MAX:
        raise FrameError(f"a frame claims {count} messages in {body_length} bytes")
    return FrameSpan(base_seq, count, HEADER_SIZE + body_length)


def frame_seqs(header: bytes) -> tuple[int, int]:
    """The base seq and the count of the frame that begins with a `header` from `encode`."""
    _, _, _, _, count, _, base_seq, _ = _HEADER.unpack_from(header)
    return base_seq, count


def verify(data: bytes, at: int = 0, *, pipe_key: int = 0) -> FrameSpan:
    """Verify the checksum of the frame at `at`, without reading its columns.

    Raises FrameError if it is damaged or cut short. Cost: one checksum pass.
    """
    span = frame_span(data, at)
    if len(data) - at < span.size:
        raise FrameError("a frame is cut short")
    view = memoryview(data)
    digest = xxh3_64(view[at : at + _SUMMED], seed=pipe_key)
    digest.update(view[at + HEADER_SIZE : at + span.size])
    (checksum,) = _U64.unpack_from(data, at + _SUMMED)
    if digest.intdigest() != checksum:
        raise FrameError(f"the checksum of the frame at seq {span.base_seq} does not match")
    return span


def decode(data: bytes, at: int = 0, *, pipe_key: int = 0) -> Frame:
    """Verify and open the frame at `at` of `data`.

    Raises FrameError if anything is wrong with it. Cost: one checksum pass; payloads are not
    copied until they are requested.
    """
    base_seq, count, size = verify(data, at, pipe_key=pipe_key)
    _, _, code, flags, _, _, _, _ = _HEADER.unpack_from(data, at)
    body, start, end = data, at + HEADER_SIZE, at + size
    if code:
        body = _unpacked(code, data[start:end])
        start, end = 0, len(body)
    frame = Frame()
    frame.base_seq, frame.count, frame.size = base_seq, count, size
    try:
        _parse_columns(frame, flags, body, start, end)
    except (struct.error, ValueError, IndexError) as exc:
        raise FrameError(f"the columns of the frame at seq {base_seq} do not fit") from exc
    return frame


def _unpacked(code: int, stored: bytes) -> bytes:
    try:
        return decompress(code, stored, BODY_BYTES_MAX)
    except ValueError as exc:
        raise FrameError(str(exc)) from exc


def _parse_columns(frame: Frame, flags: int, body: bytes, at: int, end: int) -> None:
    count = frame.count
    if flags & UNIFORM:
        (frame._uniform,) = _U32.unpack_from(body, at)
        total = frame._uniform * count
        at += 4
    else:
        frame._uniform = -1
        frame._lengths = from_little("I", body[at : at + 4 * count], count)
        total = sum(frame._lengths)
        at += 4 * count
    frame._offsets = None
    if flags & TIMES:
        frame._times = from_little("Q", body[at : at + 8 * count], count)
        at += 8 * count
    else:
        (frame._times,) = _U64.unpack_from(body, at)
        at += 8
    frame._dues = None
    if flags & DUES:
        frame._dues = from_little("Q", body[at : at + 8 * count], count)
        at += 8 * count
    elif flags & DUE_ONE:
        (frame._dues,) = _U64.unpack_from(body, at)
        at += 8
    frame.headers = frame.keys = frame.ids = None
    if flags & HEADERS:
        frame.headers, at = decode_column(body, at, count)
    if flags & KEYS:
        frame.keys, at = decode_column(body, at, count)
    if flags & IDS:
        frame.ids, at = decode_column(body, at, count)
    if at + total != end:
        raise FrameError(f"the lengths of the frame at seq {frame.base_seq} do not add up")
    frame._data = body
    frame._payload_at = at


def _encode_lengths(payloads: Sequence[bytes], known: int | None) -> tuple[int, list[bytes]]:
    """The column of lengths (one number if all are equal), and its flag."""
    first = len(payloads[0])
    if (len(payloads) == 1 or known is not None) and first <= MESSAGE_BYTES_MAX:
        return UNIFORM, [_U32.pack(first)]
    lengths = array("I", map(len, payloads))
    _check_sizes(lengths)
    if lengths.count(first) == len(payloads):
        return UNIFORM, [_U32.pack(first)]
    return 0, [to_little(lengths)]


def _encode_times(
    columns: list[bytes], times: int | Sequence[int], count: int, one: int, many: int
) -> int:
    """Add one time for all, or one a message; returns the flag that says which."""
    if isinstance(times, int):
        columns.append(_U64.pack(times))
        return one
    _check_length(times, count)
    columns.append(to_little(array("Q", times)))
    return many


def _check_length(column: Sequence[object], count: int) -> None:
    if len(column) != count:
        raise BrokenInvariantError(f"a column has {len(column)} entries for {count} messages")


def _check_sizes(lengths: array[int]) -> None:
    largest = max(lengths)
    if largest > MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(
            f"message {lengths.index(largest)} has {largest} bytes, "
            f"the limit is {MESSAGE_BYTES_MAX}"
        )


@lru_cache(maxsize=64)
def _splitter(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)
