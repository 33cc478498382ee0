"""Keys and rows of replicas as bytes.

Frames are in the default column family, under a name and the base seq as a big-endian u64; rows
are in the family "rows", under the name alone. They are separate so that a flipped bit among
frames cannot make a row unreadable. They are flushed together: with a damaged log, RocksDB cannot
open the families if one was flushed later than the other ("SST file is ahead of WALs").

A name is 0 and the 12 bytes of an id of 24 hex digits; or 1, a length as a big-endian u16, and any
other id in UTF-8. IDs made by cassq begin with the time, so extents of one time lie together, and
are mostly dropped together.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from cassq.errors import CorruptionError
from cassq.sidecar.engine.port import Replica

ROWS = "rows"

_HEX_ID = re.compile(r"[0-9a-f]{24}")
_SEQ = struct.Struct(">Q")
_LENGTH = struct.Struct(">H")
_VERSION = 1
# version, flags; serial, slot; version, cut_version, cut_end; created_ms, epoch;
# end, acked, final, size_bytes, frames; lengths of queue name and damage.
_ROW = struct.Struct("<BBQIQQQqQQQqQQHI")
# Rows of earlier versions never have the last one.
_STRICT, _FENCED, _COPYING, _BEHIND = 1, 2, 4, 8
_DAMAGE_LENGTH_MAX = 1000


def name_of(pipe_id: str) -> bytes:
    """The name of an extent in keys; no name is a prefix of another."""
    if _HEX_ID.fullmatch(pipe_id):
        return b"\0" + bytes.fromhex(pipe_id)
    raw = pipe_id.encode("utf-8", "surrogatepass")
    return b"\1" + _LENGTH.pack(len(raw)) + raw


def pipe_id_of(name: bytes) -> str:
    """The inverse of `name_of`. Raises CorruptionError for an invalid name."""
    if name[:1] == b"\0" and len(name) == 13:
        return name[1:].hex()
    if name[:1] == b"\1" and len(name) == 3 + int.from_bytes(name[1:3], "big"):
        return name[3:].decode("utf-8", "surrogatepass")
    raise CorruptionError(f"{name!r} is not a valid extent name")


def is_frame_key(key: bytes) -> bool:
    """Whether a key is that of a frame; it is that of a row otherwise."""
    size = 13 if key[:1] == b"\0" else 3 + int.from_bytes(key[1:3], "big")
    return len(key) == size + _SEQ.size


def seq_bytes(seq: int) -> bytes:
    """A seq at the end of a key."""
    return _SEQ.pack(seq)


def seq_of(key: bytes) -> int:
    """The base seq at the end of a frame's key."""
    seq: int = _SEQ.unpack_from(key, len(key) - 8)[0]
    return seq


@dataclass(slots=True)
class StoredReplica:
    """A replica, with the engine's own data about it.

    serial: a number unique in this directory for ever. slot: of its synced mark. version: raised by
    every change but an append. cut_version, cut_end: of the last cut.
    """

    replica: Replica
    serial: int
    slot: int
    version: int = 0
    cut_version: int = 0
    cut_end: int = 0
    name: bytes = b""

    def __post_init__(self) -> None:
        self.name = name_of(self.replica.pipe_id)

    def frame_key(self, base_seq: int) -> bytes:
        """The key of a frame."""
        return self.name + _SEQ.pack(base_seq)

    def past_frames(self) -> bytes:
        """A key past all of its frames."""
        return self.name + b"\xff" * 8

    def found(self, damage: str) -> bool:
        """Note damage, unless it is "" or worse damage than being behind is known already; returns
        whether it was noted."""
        replica = self.replica
        if not damage or (replica.damage and not replica.behind):
            return False
        replica.damage, replica.behind = damage, False
        self.version += 1
        return True

    def row(self) -> bytes:
        """Its row as bytes."""
        replica = self.replica
        flags = replica.strict * _STRICT | replica.fenced * _FENCED
        flags |= replica.copying * _COPYING | replica.behind * _BEHIND
        queue = replica.queue_name.encode("utf-8", "surrogatepass")
        damage = replica.damage[:_DAMAGE_LENGTH_MAX].encode("utf-8", "surrogatepass")
        fixed = _ROW.pack(
            *(_VERSION, flags, self.serial, self.slot),
            *(self.version, self.cut_version, self.cut_end, replica.created_ms, replica.epoch),
            *(replica.end, replica.acked, -1 if replica.final is None else replica.final),
            *(replica.size_bytes, replica.frames, len(queue), len(damage)),
        )
        return fixed + queue + damage


def kept_of(name: bytes, row: bytes) -> StoredReplica:
    """The inverse of `StoredReplica.row`. Raises CorruptionError for an invalid row."""
    try:
        layout, flags, serial, slot, *rest = _ROW.unpack_from(row)
    except struct.error as exc:
        raise CorruptionError(f"the row of a replica at {name!r} is cut short") from exc
    version, cut_version, cut_end, created_ms, epoch, end, acked, final, *rest = rest
    size_bytes, frames, queue_size, damage_size = rest
    at = _ROW.size
    if layout != _VERSION or len(row) != at + queue_size + damage_size:
        raise CorruptionError(f"the row of a replica at {name!r} cannot be read")
    queue = row[at : at + queue_size].decode("utf-8", "surrogatepass")
    damage = row[at + queue_size :].decode("utf-8", "surrogatepass")
    replica = Replica(
        *(pipe_id_of(name), queue, bool(flags & _STRICT), created_ms, epoch),
        *(end, acked, size_bytes, frames, bool(flags & _FENCED)),
        *(None if final < 0 else final, damage, bool(flags & _COPYING), bool(flags & _BEHIND)),
    )
    return StoredReplica(replica, serial, slot, version, cut_version, cut_end)
