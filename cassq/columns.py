"""Columns of a frame's body: fixed-width numbers, and optional byte strings.

Numbers are little-endian. A column of byte strings is one length an entry, then the entries; an
absent entry has the length `ABSENT`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from sys import byteorder

ABSENT = 0xFFFF_FFFF


def encode_column(entries: Sequence[bytes | None]) -> bytes:
    lengths = array("I", (ABSENT if e is None else len(e) for e in entries))
    return b"".join((to_little(lengths), *(e for e in entries if e)))


def decode_column(body: bytes, at: int, count: int) -> tuple[list[bytes | None], int]:
    lengths = from_little("I", body[at : at + 4 * count], count)
    at += 4 * count
    entries: list[bytes | None] = []
    for length in lengths:
        if length == ABSENT:
            entries.append(None)
        else:
            entries.append(body[at : at + length])
            at += length
    return entries, at


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
