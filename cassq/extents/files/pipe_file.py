"""The two files of a pipe: the identity page before its frames, and the page of shared words.

`ID.pipe` begins with a page that says whose frames follow; it never changes. `ID.page` holds
words that every process shares through `mmap`: the published end (kept twice, on cache lines of
their own, each copy with a check word), the seal flag, and hints. They are two files because a
sync of the frames would write a changed page of the same file too, at twice the cost.
`docs/pipe_file.md` lists every field.
"""

from __future__ import annotations

import struct

from xxhash import xxh3_64_intdigest

from cassq.errors import ConfigError, CorruptionError
from cassq.extents.files.disk import PAGE, Words
from cassq.message.frames import Place

MAGIC = b"CASSQPIP"
VERSION = 1

_IDENTITY = struct.Struct("<8sII32s448s")  # magic, version, page size, pipe id, queue name
_IDENTITY_SUM_AT = 504
# Indexes of shared words; what is written together shares a cache line of eight words.
END_A, END_B = 0, 8  # seq, position, check
SEALED = 16
TURN_WANTED = 24
LAST_APPEND_MS = 32
BOOT = 40
UNSYNCED = 41  # 1 when the writer does not sync (durability "os")
FAILED = 48  # 1 when a write or sync failed: nothing past the published end counts

_CHECK = 0x9E37_79B9_7F4A_7C15


def identity_page(pipe_id: str, queue_name: str) -> bytes:
    """The first page of a new pipe file."""
    identity = _IDENTITY.pack(MAGIC, VERSION, PAGE, pipe_id.encode(), queue_name.encode())
    page = bytearray(PAGE)
    page[: len(identity)] = identity
    struct.pack_into("<Q", page, _IDENTITY_SUM_AT, xxh3_64_intdigest(identity))
    return bytes(page)


def read_identity(page: bytes, pipe_id: str) -> str:
    """The queue's name in a header page; CorruptionError when the page is not this pipe's."""
    if len(page) < PAGE:
        raise CorruptionError(f"the header of pipe {pipe_id} is cut short")
    magic, version, _, named, queue_name = _IDENTITY.unpack_from(page)
    (checksum,) = struct.unpack_from("<Q", page, _IDENTITY_SUM_AT)
    if magic != MAGIC or checksum != xxh3_64_intdigest(page[: _IDENTITY.size]):
        raise CorruptionError(f"the header of pipe {pipe_id} is damaged")
    if version != VERSION:
        raise ConfigError(
            f"pipe {pipe_id} has file version {version}, this cassq reads {VERSION}",
            hint="use a newer cassq",
        )
    if named.rstrip(b"\0").decode() != pipe_id:
        raise CorruptionError(f"the file of pipe {pipe_id} is another pipe's")
    return str(queue_name.rstrip(b"\0").decode())


def publish(words: Words, end: Place) -> None:
    check = end.seq ^ (end.pos * _CHECK & 0xFFFF_FFFF_FFFF_FFFF)
    for at in (END_A, END_B):
        words[at], words[at + 1], words[at + 2] = end.seq, end.pos, check


def published_end(words: Words) -> Place | None:
    """The end if either copy is whole; a writer is between two stores for nanoseconds only."""
    for at in (END_B, END_A):
        seq, pos, check = words[at], words[at + 1], words[at + 2]
        if check == seq ^ (pos * _CHECK & 0xFFFF_FFFF_FFFF_FFFF) and pos >= PAGE:
            return Place(seq, pos)
    return None
