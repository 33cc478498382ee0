"""RocksDB's manifest, the log of its list of tables: takes one table off that list.

RocksDB can do it (its tool calls it `unsafe_remove_sst_file`), but rocksdict offers no call for it:
`delete_file_in_range` spares the newest level, where most tables are, and `repair` reads all
tables, and puts them all into that level. So this module appends the same record as that tool. The
formats are those of LevelDB's logs and version edits, which RocksDB has kept since its beginning.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from cassq.base.os_errors import translated
from cassq.errors import CorruptionError

# Masked CRC-32C of the rest, length of the payload, type.
_HEADER = struct.Struct("<IHB")
_BLOCK = 32768  # no piece of a record crosses a boundary of blocks
# The type of a piece, by whether it is the first, and the last.
_KINDS = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
_DELETED_FILE = 6  # level, number: in the default column family if none is named
_COLUMN_FAMILY = 200  # number
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed


def remove_table(database: Path, level: int, number: int, family: int = 0) -> None:
    """Take a table off the list, durably. The database must be closed; RocksDB removes the file
    when it is opened next, and ignores a record that is not whole. family: the number of its column
    family.

    Raises CorruptionError if there is no manifest.
    """
    place = manifest_of(database)
    edit = bytes([_DELETED_FILE]) + varint(level) + varint(number)
    if family:
        edit += varint(_COLUMN_FAMILY) + varint(family)
    with translated(f"writing {place}"), place.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.write(record(edit, size))
        file.flush()
        os.fsync(file.fileno())


def record(payload: bytes, at: int) -> bytes:
    """A record of the log at a position: in pieces, where blocks end within it."""
    found, first = b"", True
    while True:
        room = _BLOCK - (at + len(found)) % _BLOCK - _HEADER.size
        if room < 0:
            found += bytes(room + _HEADER.size)
            continue
        piece, payload = payload[:room], payload[room:]
        kind = _KINDS[first, not payload]
        found += _HEADER.pack(masked(crc32c(bytes([kind]) + piece)), len(piece), kind) + piece
        if not payload:
            return found
        first = False


def manifest_of(database: Path) -> Path:
    """The manifest in use. Raises CorruptionError if there is none."""
    try:
        name = (database / "CURRENT").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        raise CorruptionError(f"{database / 'CURRENT'} cannot be read: {exc}") from exc
    place = database / name
    if not name.startswith("MANIFEST-") or not place.is_file():
        raise CorruptionError(f"{database / 'CURRENT'} names {name!r}, which is not a manifest")
    return place


def varint(number: int) -> bytes:
    """A number, seven bits to a byte, the lowest first."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def crc32c(data: bytes) -> int:
    """The checksum of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A checksum as RocksDB stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
