"""Mending: a damaged table leaves the database, and what can be read of it stays.

RocksDB accepts no writes once a merge has met a damaged block, and the next merge would meet it
again. So the engine notes the table's number, and the next opening mends it, while RocksDB merges
nothing:

1. Every replica with frames within the range of the table is written again, to other tables. A
   frame that cannot be read is left out, and the replica is recorded as damaged: it is copied from
   another sidecar. All frames are needed, because this may be the last sidecar that has them.
2. What the table may have hidden stays hidden: the ranges between these replicas are deleted.
3. The table is taken off RocksDB's list of tables.

If the process ends before the last step, the next opening repeats all of it.

RocksDB does not even open a database if a table is missing, or its index is damaged, and it cannot
read a frame that such a table may hide. So the table leaves first, and its content is filled in
afterwards:

1. Its file gets a second name, aside, with its range of keys. Then it is taken off the list.
2. Frames are found in the file without its index: each is verified by its own checksum. Those that
   the database lacks are written to it. The replicas that then still lack a frame are recorded as
   damaged. What the table hid is deleted. If it hid frames of a replica, it had the same ones: a
   frame below a replica's end never changes.
3. The file is removed.

If the process ends before the last step, the next opening does the last two again. A damaged table
of rows just leaves: the marks show which replicas lost their rows.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocksdict import Rdict, RdictIter, ReadOptions, WriteBatch

from cassq.base.os_errors import translated
from cassq.errors import CassqError, StorageFullError
from cassq.extents.files.disk import Disk
from cassq.message.frames import MAGIC, FrameError, pipe_key, verify
from cassq.sidecar.engine.rocksdb.manifest import remove_table
from cassq.sidecar.engine.rocksdb.room import space_of
from cassq.sidecar.engine.rocksdb.rows import (
    ROWS,
    StoredReplica,
    is_frame_key,
    seq_bytes,
    seq_of,
)
from cassq.sidecar.engine.rocksdb.trouble import explained

logger: logging.Logger = logging.getLogger("cassq")

_NAMED = re.compile(r"(\d+)\.sst\b")
_STEP_BYTES = 8 << 20
_ASIDE = "aside"  # the folder of tables that were taken off the list
_ROWS_FAMILY = 1  # made with the database, after the default one
_TRAILER = 8  # bytes after a key in a table
# How many replicas, in the order of keys, are tried for a frame in a table without an index.
_TRIED = 64


class Table(NamedTuple):
    """A table. first, last: its keys."""

    number: int
    level: int
    first: bytes
    last: bytes

    @property
    def has_frames(self) -> bool:
        """Whether it holds frames; it holds rows otherwise."""
        return is_frame_key(self.first)

    def overlaps(self, kept: StoredReplica) -> bool:
        """Whether it may hold, or hide, frames of a replica."""
        return kept.frame_key(0) <= self.last and kept.past_frames() >= self.first


def table_named(db: Rdict, text: str) -> Table | None:
    """The table with frames that an error of RocksDB names; None if it names none."""
    table = any_table_named(db, text)
    return table if table is not None and table.has_frames else None


def any_table_named(db: Rdict, text: str) -> Table | None:
    """The table that an error of RocksDB names; None if it names none that is in the list."""
    match = _NAMED.search(text)
    return _table(db, int(match[1])) if match else None


def damaged_table(db: Rdict, text: str) -> Table | None:
    """The table that keeps RocksDB from opening a database, which is open only for reading. text:
    RocksDB's error. Cost: if the error does not name the table, a read from each table."""
    table = any_table_named(db, text)
    if table is not None:
        return table
    # The newest that cannot be read: to read from one, RocksDB may look into newer ones first.
    for each in sorted(_tables(db), reverse=True):
        family = db if each.has_frames else db.get_column_family(ROWS)
        try:
            family.get(each.first)
        except Exception as exc:
            if isinstance(explained(exc, f"reading table {each.number:06d}.sst"), FrameError):
                return each
    return None


def _table(db: Rdict, number: int) -> Table | None:
    return next((each for each in _tables(db) if each.number == number), None)


def _tables(db: Rdict) -> list[Table]:
    files: list[dict[str, Any]] = db.live_files()
    return [
        Table(int(match[1]), each["level"], each["start_key"], each["end_key"])
        for each in files
        if (match := _NAMED.search(each["name"]))
    ]


def mend(
    db: Rdict, place: Path, kept: Mapping[str, StoredReplica], number: int, free_min: int
) -> tuple[Table | None, list[StoredReplica]]:
    """Take the first two steps. place: on the disk. free_min: bytes to leave free on it. Returns
    the table, None if it no longer exists; and the replicas that are newly known to be damaged,
    which are not recorded yet.

    Raises StorageFullError if there is too little space, BackendError if a write fails. Cost: a
    read and a write of all replicas with frames in the table's range.
    """
    table = _table(db, number)
    if table is None or not table.has_frames:
        return None, []
    touched = sorted((each for each in kept.values() if table.overlaps(each)), key=_name)
    size_bytes = sum(each.replica.size_bytes for each in touched)
    if space_of(place).free < size_bytes + free_min:
        raise StorageFullError(f"writing {size_bytes} bytes again needs more free space")
    try:
        news = _without(db, table, touched, partial(_written_again, db))
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


def _without(
    db: Rdict, table: Table, touched: list[StoredReplica], damage_of: Callable[[StoredReplica], str]
) -> list[StoredReplica]:
    """Make the database as it is without a table, durably; returns the replicas that are newly
    known to be damaged. touched: those in the table's range. damage_of: called with each of them;
    returns what is wrong with it."""
    news = [each for each in touched if each.found(damage_of(each))]
    _hide(db, table, touched)
    db.flush_wal(True)
    return news


def _lacks(db: Rdict, kept: StoredReplica) -> str:
    """What is wrong with a replica. Cost: a read of all of it, as far as it is whole."""
    return next((each.damage for each in _stretches(db, kept) if each.damage), "")


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
    """The seq from `seq` on where the next readable frame begins; the replica's end if there is
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


# --- tables that RocksDB cannot open --------------------------------------------------------------


def set_aside(directory: Path, place: Path, table: Table, free_min: int) -> None:
    """Take a table off the list; keep its file if it has frames. directory: of the sidecar. place:
    the database, which must be closed. free_min: bytes to leave free on the disk.

    Raises StorageFullError if there is too little room for its frames in other tables.
    """
    if not table.has_frames:
        remove_table(place, table.level, table.number, _ROWS_FAMILY)
        return
    file, aside = place / f"{table.number:06d}.sst", directory / _ASIDE
    with translated(f"setting {file} aside"):
        size_bytes = file.stat().st_size if file.exists() else 0
        if space_of(place).free < size_bytes + free_min:
            raise StorageFullError(f"writing {size_bytes} bytes again needs more free space")
        aside.mkdir(exist_ok=True)
        if size_bytes:
            with suppress(FileExistsError):
                os.link(file, aside / file.name)
        note = {"first": table.first.hex(), "last": table.last.hex(), "level": table.level}
        with (aside / f"{table.number}.json").open("w", encoding="ascii") as noted:
            json.dump(note, noted)
            noted.flush()
            os.fsync(noted.fileno())
        Disk().sync_directory(aside)
        Disk().sync_directory(directory)
    remove_table(place, table.level, table.number)


def tables_aside(directory: Path) -> list[Table]:
    """The tables that were set aside and not filled in yet."""
    found = []
    for each in sorted((directory / _ASIDE).glob("*.json")):
        with translated(f"reading {each}"):
            note = json.loads(each.read_text(encoding="ascii"))
        first, last = bytes.fromhex(note["first"]), bytes.fromhex(note["last"])
        found.append(Table(int(each.stem), note["level"], first, last))
    return found


def filled_in(
    db: Rdict, directory: Path, kept: Mapping[str, StoredReplica], table: Table
) -> list[StoredReplica]:
    """Write what can be read of a table that was set aside; returns the replicas that are newly
    known to be damaged, which are not recorded yet.

    Raises BackendError if that fails. Cost: a read of the file, and of all replicas in its range.
    """
    touched = sorted((each for each in kept.values() if table.overlaps(each)), key=_name)
    count = 0
    file = directory / _ASIDE / f"{table.number:06d}.sst"
    try:
        if file.exists():
            with (
                file.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as raw,
            ):
                # A mapping has all methods of bytes used here, and need not fit into memory.
                count = _write_lacking(db, _frames_in(cast("bytes", raw), touched))
        news = _without(db, table, touched, partial(_lacks, db))
    except CassqError:
        raise
    except Exception as exc:
        raise explained(exc, f"mending table {table.number:06d}.sst") from exc
    logger.warning(
        "table %06d.sst was damaged: %d frames of it were written to other tables; %d of its %d"
        " extents lack frames, and will be copied from other sidecars",
        *(table.number, count, sum(1 for each in touched if each.replica.damage), len(touched)),
    )
    return news


def remove_aside(directory: Path, table: Table) -> None:
    """Remove the file of a table that was filled in."""
    aside = directory / _ASIDE
    with translated(f"removing {aside}"):
        (aside / f"{table.number:06d}.sst").unlink(missing_ok=True)
        (aside / f"{table.number}.json").unlink()


def _write_lacking(db: Rdict, frames: Iterator[tuple[StoredReplica, int, bytes]]) -> int:
    """Write the frames that the database lacks; returns their number."""
    batch, count, size = WriteBatch(raw_mode=True), 0, 0
    for kept, base_seq, frame in frames:
        try:
            verify(_frame(db, kept, base_seq), pipe_key=pipe_key(kept.replica.pipe_id))
        except FrameError:
            batch.put(kept.frame_key(base_seq), frame)
            count, size = count + 1, size + len(frame)
        if size >= _STEP_BYTES:
            db.write(batch)
            batch, size = WriteBatch(raw_mode=True), 0
    db.write(batch)
    return count


def _frames_in(
    raw: bytes, touched: list[StoredReplica]
) -> Iterator[tuple[StoredReplica, int, bytes]]:
    """The whole frames of these replicas, with their base seqs, in the file of a table: its values
    are in the order of keys, and not compressed. A key omits what it shares with the one before."""
    named = {each.name: at for at, each in enumerate(touched)}
    keys = [pipe_key(each.replica.pipe_id) for each in touched]
    sizes = sorted({len(each.name) for each in touched})
    at = current = 0
    while (at := raw.find(MAGIC, at)) >= 0:
        tried = list(range(current, min(current + _TRIED, len(touched))))
        past = at - _TRAILER - len(seq_bytes(0))
        tried[:0] = [named[name] for size in sizes if (name := raw[past - size : past]) in named]
        for number in tried:
            try:
                base_seq, messages, size = verify(raw, at, pipe_key=keys[number])
            except FrameError:
                continue
            kept, current = touched[number], number
            if base_seq + messages <= kept.replica.end:
                yield kept, base_seq, raw[at : at + size]
            at += size - 1
            break
        at += 1
