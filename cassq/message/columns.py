"""Columns of a frame's body: fixed-width numbers, and optional byte strings.

Numbers are little-endian. A column of byte strings is one length an entry, then the entries; an
absent entry has the length `ABSENT`.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from sys import byteorder

from cassq.errors import InvalidPayloadError, MessageTooLargeError

ABSENT = 0xFFFF_FFFF
COLUMN_BYTES_MAX = 1024 * 1024  # a message's key, or its headers
_quoted = json.encoder.encode_basestring


def encode_headers(headers: Mapping[str, str] | None, *, room: int = 0) -> bytes | None:
    """A message's headers as stored: compact JSON; None for none."""
    if not headers:
        return None
    if type(headers) is not dict and not isinstance(headers, Mapping):  # which is much slower
        raise InvalidPayloadError(f"headers must be a dict, not {type(headers).__name__}")
    pairs: list[str] = []
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidPayloadError(f"header {name!r} = {value!r} is not a pair of str")
        # `json.dumps` would make an encoder for each message.
        pairs.append(f"{_quoted(name)}:{_quoted(value)}")
    try:
        encoded = f"{{{','.join(pairs)}}}".encode()
    except UnicodeEncodeError as exc:
        raise InvalidPayloadError("a header holds half a surrogate pair") from exc
    if len(encoded) > COLUMN_BYTES_MAX + room:
        raise MessageTooLargeError(
            f"headers of {len(encoded)} bytes are over the limit of {COLUMN_BYTES_MAX}"
        )
    return encoded


def encode_column(entries: Sequence[bytes | None]) -> bytes:
    lengths = array("I", (ABSENT if e is None else len(e) for e in entries))
    return b"".join((to_little(lengths), *(e for e in entries if e)))


def decode_column(body: bytes, at: int, count: int) -> tuple[list[bytes | None], int]:
    lengths = from_little("I", body[at : at + 4 * count], count)
    at += 4 * count
    length = lengths[0] if count else ABSENT
    end = at + length * count
    if length != ABSENT and end <= len(body) and lengths.count(length) == count:
        return _even(body, at, end, length, count), end
    entries: list[bytes | None] = []
    for length in lengths:
        if length == ABSENT:
            entries.append(None)
        else:
            entries.append(body[at : at + length])
            at += length
    return entries, at


def _even(body: bytes, at: int, end: int, length: int, count: int) -> list[bytes | None]:
    """Entries that are all of one length."""
    first = body[at : at + length]
    if body[at:end] == first * count:
        return [first] * count
    return [body[i : i + length] for i in range(at, end, length)]


def to_little(column: array[int]) -> bytes:
    if byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_little(typecode: str, raw: bytes, count: int) -> array[int]:
    column = array(typecode)
    column.frombytes(raw)
    if len(column) != count:
        raise ValueError("a column is cut short")
    if byteorder == "big":
        column.byteswap()
    return column
