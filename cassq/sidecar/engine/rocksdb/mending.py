"""Mending: a table with a damaged block leaves the database, and what can be read of it stays.

RocksDB accepts no writes once a merge has met such a block, and the next merge would meet it again.
So the engine notes the table's name, and the next opening mends it, while RocksDB merges nothing:

1. Every replica with frames within the range of the table is written again, to other tables. A
   frame that cannot be read is left out, and the replica is recorded as damaged: it is copied from
   another sidecar. All frames are needed, because this may be the last sidecar that has them.
2. What the table may have hidden stays hidden: the ranges between these replicas are deleted.
3. The table is taken off RocksDB's list of tables.

If the process ends before the last step, the next opening repeats all of it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch

from cassq.errors import CassqError, StorageFullError
from cassq.message.frames import FrameError, pipe_key, verify
from cassq.sidecar.engine.rocksdb.room import space_of
from cassq.sidecar.engine.rocksdb.rows import StoredReplica, is_frame_key, seq_of
from cassq.sidecar.engine.rocksdb.trouble import explained

logger: logging.Logger = logging.getLogger("cassq")

_NAMED = re.compile(r"(\d+)\.sst\b")
_STEP_BYTES = 8 << 20


class Table(NamedTuple):
    """A table with frames. first, last: its keys."""

    number: int
    level: int
    first: bytes
    last: bytes

    def overlaps(self, kept: StoredReplica) -> bool:
        """Whether it may hold, or hide, frames of a replica."""
        return kept.frame_key(0) <= self.last and kept.past_frames() >= self.first


def table_named(db: Rdict, text: str) -> Table | None:
    """The table with frames that an error of RocksDB names; None if it names none."""
    match = _NAMED.search(text)
    return _table(db, int(match[1])) if match else None


def _table(db: Rdict, number: int) -> Table | None:
    files: list[dict[str, Any]] = db.live_files()
    for each in files:
        first, last = each["start_key"], each["end_key"]
        if each["name"] == f"/{number:06d}.sst" and is_frame_key(first):
            return Table(number, each["level"], first, last)
    return None


def mend(
    db: Rdict, place: Path, kept: Mapping[str, StoredReplica], number: int, free_min: int
) -> tuple[Table | None, list[StoredReplica]]:
    """Take the first two steps. place: on the disk. free_min: bytes to leave free on it. Returns
    the table, None if it is there no more; and the replicas that are newly known to be damaged,
    which are not recorded yet.

    Raises StorageFullError if there is too little space, BackendError if a write fails. Cost: a
    read and a write of all replicas with frames in the table's range.
    """
    table = _table(db, number)
    if table is None:
        return None, []
    touched = sorted((each for each in kept.values() if table.overlaps(each)), key=_name)
    size_bytes = sum(each.replica.size_bytes for each in touched)
    if space_of(place).free < size_bytes + free_min:
        raise StorageFullError(f"writing {size_bytes} bytes again needs more free space")
    news: list[StoredReplica] = []
    try:
        for each in touched:
            damage = _written_again(db, each)
            if damage and (each.replica.behind or not each.replica.damage):
                each.replica.damage, each.replica.behind = damage, False
                each.version += 1
                news.append(each)
        _hide(db, table, touched)
        db.flush_wal(True)
    except CassqError:
        raise
    except Exception as exc:
        raise explained(exc, f"mending table {number:06d}.sst") from exc
    logger.warning(
        "table %06d.sst is damaged: its %d extents (%d bytes) were written to other tables; %d of"
        " them lack frames, and will be copied from other sidecars",
        *(number, len(touched), size_bytes, sum(1 for each in touched if each.replica.damage)),
    )
    return table, news


def _name(kept: StoredReplica) -> bytes:
    return kept.name


class _Stretch(NamedTuple):
    """What is at `seq .. past` of a replica: a frame, or damage."""

    seq: int
    past: int
    frame: bytes = b""
    damage: str = ""


def _written_again(db: Rdict, kept: StoredReplica) -> str:
    """Write all readable frames of a replica once more; returns what is wrong with it."""
    damage, size = "", 0
    stretches: list[_Stretch] = []
    for each in _stretches(db, kept):
        damage = damage or each.damage
        stretches.append(each)
        size += len(each.frame)
        if size >= _STEP_BYTES:
            _write(db, kept, stretches)
            stretches, size = [], 0
    if stretches:
        _write(db, kept, stretches)
    return damage


def _write(db: Rdict, kept: StoredReplica, stretches: list[_Stretch]) -> None:
    batch = WriteBatch(raw_mode=True)
    # Whatever the damaged table had hidden here stays hidden.
    batch.delete_range(kept.frame_key(stretches[0].seq), kept.frame_key(stretches[-1].past))
    for each in stretches:
        if not each.damage:
            batch.put(kept.frame_key(each.seq), each.frame)
    db.write(batch)


def _stretches(db: Rdict, kept: StoredReplica) -> Iterator[_Stretch]:
    """All of a replica, in order."""
    replica, seq = kept.replica, 0
    key = pipe_key(replica.pipe_id)
    while seq < replica.end:
        try:
            frame = _frame(db, kept, seq)
            base_seq, count, _ = verify(frame, pipe_key=key)
            if base_seq != seq:
                raise FrameError(f"the frame at seq {seq} says that it is at {base_seq}")
        except FrameError as exc:
            found = _Stretch(seq, _next_readable(db, kept, seq + 1), damage=exc.message)
        else:
            found = _Stretch(seq, seq + count, frame)
        yield found
        seq = found.past


def _frame(db: Rdict, kept: StoredReplica, seq: int) -> bytes:
    """Raises FrameError if it is missing or cannot be read."""
    try:
        frame: bytes | None = db.get(kept.frame_key(seq))
    except Exception as exc:
        raise explained(exc, f"reading {kept.replica.pipe_id}") from exc
    if frame is None:
        raise FrameError(f"the frame at seq {seq} is missing")
    return frame


def _next_readable(db: Rdict, kept: StoredReplica, seq: int) -> int:
    """Where the next frame that can be read begins, from `seq` on; the replica's end if there is
    none. Cost: a read of a block for each doubling of the distance, and for each halving of it."""
    low, high, found, step = seq, kept.replica.end, kept.replica.end, 1
    # First in growing steps, so that a damaged block further on does not matter.
    while low + step < high:
        at = _first_from(db, kept, low + step)
        if at is not None:
            found, high = at, low + step
            break
        low, step = low + step, 2 * step
    while low < high:
        middle = (low + high) // 2
        at = _first_from(db, kept, middle)
        if at is None:
            low = middle + 1
        else:
            found, high = min(found, at), middle
    return found


def _first_from(db: Rdict, kept: StoredReplica, seq: int) -> int | None:
    """The first frame's seq from `seq` on, or the replica's end; None if its block cannot be
    read."""
    bounds = ReadOptions()
    bounds.set_iterate_upper_bound(kept.frame_key(kept.replica.end))
    frames: RdictIter = db.iter(bounds)
    try:
        frames.seek(kept.frame_key(seq))
        if frames.valid():
            return seq_of(frames.key())
        frames.status()
    except Exception as exc:
        error = explained(exc, f"reading {kept.replica.pipe_id}")
        if isinstance(error, FrameError):
            return None
        raise error from exc
    return kept.replica.end


def _hide(db: Rdict, table: Table, touched: list[StoredReplica]) -> None:
    """Delete everything in the table's range but the frames of its replicas."""
    batch = WriteBatch(raw_mode=True)
    at = table.first
    for each in touched:
        if at < each.frame_key(0):
            batch.delete_range(at, each.frame_key(0))
        batch.delete_range(each.frame_key(each.replica.end), each.past_frames())
        at = each.past_frames()
    if at <= table.last:
        batch.delete_range(at, table.last + b"\0")
    db.write(batch)
