"""Opening a data directory: compares the data in RocksDB with the marks of what was synced.

The row of a replica must not be older than its mark, nor end before it; a mark without a row of
its own belongs to a replica that is lost. A replica that lacks anything is recorded as damaged,
durably, before another mark can overwrite the evidence.

A damaged table that a merge met is mended, and so is one that RocksDB needs to open the database
(`cassq.sidecar.engine.rocksdb.mending`). A log that it cannot use is removed: the marks show what
was lost with it.

If RocksDB refuses to open for another reason, or there is no room to mend, the directory is opened
only for reading, without its checks: what can be read is served and copied elsewhere, each frame is
verified, and nothing on the disk changes.
"""

from __future__ import annotations

import gc
import logging
import shutil
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path

from rocksdict import AccessType, ColumnFamily, Options, Rdict, WriteBatch

from cassq.errors import CassqError, CorruptionError, StorageFullError
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.rocksdb.directory import Directory
from cassq.sidecar.engine.rocksdb.manifest import remove_table
from cassq.sidecar.engine.rocksdb.marks import HINT, SyncMark, SyncMarks, UnreadableMarkError
from cassq.sidecar.engine.rocksdb.mending import (
    Table,
    damaged_table,
    filled_in,
    mend,
    remove_aside,
    set_aside,
    tables_aside,
)
from cassq.sidecar.engine.rocksdb.options import Tuning, options, takes_direct_io
from cassq.sidecar.engine.rocksdb.rows import ROWS, StoredReplica, kept_of, pipe_id_of
from cassq.sidecar.engine.rocksdb.trouble import explained

logger: logging.Logger = logging.getLogger("cassq")

REAPPEARED = "it was removed, but has reappeared"
# How many tables are mended at one opening at most.
MENDED_MAX = 100
# RocksDB's message for a damaged log that ends before a table.
_AHEAD = "SST file is ahead of WALs"


@dataclass(slots=True)
class Opened:
    """An opened directory. options: of RocksDB. rows: their column family. free: free slots of
    marks. serial: the next one. failure: why it is open only for reading; "" if it is not."""

    db: Rdict
    options: Options
    rows: ColumnFamily
    marks: SyncMarks
    kept: dict[str, StoredReplica]
    free: list[int]
    serial: int
    failure: str = ""


def opened(directory: Directory, tuning: Tuning, free_min: int) -> Opened:
    """Open a data directory, or initialise it. free_min: bytes to leave free on its disk.

    Raises CorruptionError if RocksDB cannot even read it. Cost: reads all rows, and all of the log;
    if a table is damaged, see `mend` and `filled_in`.
    """
    mended: set[Table] = set()
    while not directory.new and len(mended) < MENDED_MAX:
        try:
            return _opened(directory, tuning, free_min)
        except CorruptionError as exc:
            # Its traceback would keep RocksDB's objects, and so its directory open.
            error = CorruptionError(exc.message, hint=exc.hint)
        gc.collect()
        if not _is_remedied(directory, tuning, free_min, error, mended):
            return _opened(directory, tuning, free_min, error)
    return _opened(directory, tuning, free_min)


def _is_remedied(
    directory: Directory,
    tuning: Tuning,
    free_min: int,
    error: CorruptionError,
    mended: set[Table],
) -> bool:
    """Remove what keeps RocksDB from opening a directory, if it is a table that is not in `mended`
    yet, or the log; returns whether it was."""
    place = directory.path / "rocksdb"
    if _AHEAD in error.message:
        logs = sorted(place.glob("*.log"))
        for log in logs:
            log.unlink()
        logger.error("the log is removed, because it is damaged: %s", error.message)
        return bool(logs)
    db = _only_read(place, tuning, error)
    try:
        table = damaged_table(db, error.message)
    finally:
        db.close()
    del db
    gc.collect()
    if table is None or table in mended:
        return False
    logger.error("table %06d.sst is taken off the list: %s", table.number, error.message)
    try:
        set_aside(directory.path, place, table, free_min)
    except StorageFullError as exc:
        logger.error("table %06d.sst cannot be mended: %s", table.number, exc.message)
        return False
    mended.add(table)
    return True


def _opened(
    directory: Directory, tuning: Tuning, free_min: int, error: CorruptionError | None = None
) -> Opened:
    """As `opened`. error: why it can only be read; None if it can be written, too."""
    place, new = directory.path / "rocksdb", directory.new
    if new:
        # An earlier initialisation was interrupted; nothing was stored.
        shutil.rmtree(place, ignore_errors=True)
    direct, table = takes_direct_io(directory.path), directory.to_mend
    chosen = options(tuning, create=new, direct=direct, merges=table is None)
    failure = "" if error is None else error.message
    if error is None:
        db = _database(place, chosen, new)
    else:
        db = _only_read(place, tuning, error)
    try:
        marks = SyncMarks(directory.path / "marks", directory.identity.generation, create=new)
    except BaseException:
        db.close()
        raise
    try:
        directory.begun()
        found = Opened(db, chosen, db.get_column_family_handle(ROWS), marks, {}, [], 1, failure)
        _compare(found, _rows(db))
        if not failure:
            for aside in tables_aside(directory.path):
                _note(found, filled_in(db, directory.path, found.kept, aside))
                remove_aside(directory.path, aside)
    except BaseException:
        marks.close()
        db.close()
        raise
    if table is None or failure:
        return found
    del db
    try:
        if _is_mended(found, place, table, free_min):
            found.options = options(tuning, create=False, direct=direct)
            found.db = _database(place, found.options, new=False)
            found.rows = found.db.get_column_family_handle(ROWS)
            directory.mended()
        return found
    except BaseException:
        marks.close()
        raise


def _is_mended(found: Opened, place: Path, number: int, free_min: int) -> bool:
    """Mend a table and close the database, without the table. If that is not possible, all stays
    as it is, the directory is only read, and the answer is False."""
    try:
        table, news = mend(found.db, place, found.kept, number, free_min)
        _note(found, news)
    except CassqError as exc:
        found.failure = f"table {number:06d}.sst is damaged, and cannot be mended: {exc.message}"
        logger.error("%s", found.failure)
        return False
    del found.rows
    try:
        found.db.close()
    except Exception as exc:
        # All of it is in the log, and is read from there.
        logger.warning("RocksDB could not flush its tables: %s", exc)
    gc.collect()  # its directory stays open while any object of it exists, such as an iterator
    if table is not None:
        remove_table(place, table.level, number)
    return True


def _database(place: Path, chosen: Options, new: bool) -> Rdict:
    if not new and not (place / "CURRENT").exists():
        raise CorruptionError(f"the database in {place} is missing", hint=HINT)
    try:
        return Rdict(str(place), chosen, column_families={ROWS: chosen})
    except Exception as exc:
        error = explained(exc, f"opening the database in {place}")
        if isinstance(error, CorruptionError):
            raise CorruptionError(error.message, hint=HINT) from exc
        raise error from exc


def _only_read(place: Path, tuning: Tuning, error: CorruptionError) -> Rdict:
    """The damaged database, open for reading. Raises the error if that is not possible either."""
    chosen = options(tuning, create=False)
    chosen.set_paranoid_checks(False)
    access = AccessType.read_only(False)
    try:
        return Rdict(str(place), chosen, column_families={ROWS: chosen}, access_type=access)
    except Exception:
        raise error from None


def _rows(db: Rdict) -> dict[str, StoredReplica]:
    rows = db.get_column_family(ROWS).iter()
    kept: dict[str, StoredReplica] = {}
    try:
        rows.seek_to_first()
        while rows.valid():
            each = kept_of(rows.key(), rows.value())
            kept[each.replica.pipe_id] = each
            rows.next()
        rows.status()
    except CorruptionError as exc:
        raise CorruptionError(exc.message, hint=HINT) from exc
    except Exception as exc:
        error = explained(exc, "reading the rows of replicas")
        if isinstance(error, CorruptionError):
            raise CorruptionError(error.message, hint=HINT) from exc
        raise error from exc
    return kept


def _compare(found: Opened, kept: dict[str, StoredReplica]) -> None:
    """Find damaged replicas, and record them."""
    marks = found.marks
    found.kept = kept
    by_slot: dict[int, StoredReplica] = {}
    news: list[StoredReplica] = []
    without_slot: list[StoredReplica] = []  # another has their slot
    for each in sorted(kept.values(), key=attrgetter("serial")):
        older = by_slot.get(each.slot)
        if older is not None:
            older.found(REAPPEARED)
            without_slot.append(older)
        by_slot[each.slot] = each
    found.serial = 1 + max((each.serial for each in kept.values()), default=0)
    slots = max([marks.slots, *(slot + 1 for slot in by_slot)])
    for slot in range(slots):
        damage, mark = "", None
        try:
            mark = marks.read(slot)
        except UnreadableMarkError as exc:
            damage = exc.message
        if mark is not None:
            found.serial = max(found.serial, mark.serial + 1)
        kept_here = by_slot.get(slot)
        if slot >= marks.slots:
            damage = "its synced mark is missing"
        lost = _lost(mark, slot, kept) if _is_of_another(mark, kept_here) else None
        if kept_here is None:
            if lost is not None:
                news.append(lost)
            elif slot < marks.slots:
                found.free.append(slot)
            continue
        if lost is not None:
            without_slot.append(lost)
        if kept_here.found(damage or _damage(kept_here, mark)):
            news.append(kept_here)
    beyond = count(slots)
    for each in without_slot:
        each.slot = found.free.pop(0) if found.free else next(beyond)
    news += without_slot
    found.free.reverse()  # the first slots are used first
    for each in news:
        if not each.serial:
            each.serial, found.serial = found.serial, found.serial + 1
        kept[each.replica.pipe_id] = each
    _note(found, news)


def _is_of_another(mark: SyncMark | None, each: StoredReplica | None) -> bool:
    """Whether a mark belongs to another replica than the one that has its slot. A replica that was
    removed and has reappeared may have a slot that a later replica got."""
    return mark is not None and (each is None or mark.serial > each.serial)


def _damage(kept: StoredReplica, mark: SyncMark | None) -> str:
    """What a replica lacks according to its mark; "" if nothing."""
    if mark is None or mark.serial < kept.serial:
        return ""  # never synced
    if mark.serial > kept.serial:
        return REAPPEARED
    end = mark.end
    if kept.cut_version > mark.version:
        end = min(end, kept.cut_end)  # it was cut since, so it may end there
    if kept.replica.end < end:
        return f"it ends at {kept.replica.end}, but was synced up to {end}"
    if kept.version < mark.version:
        return "synced changes of it are lost"
    return ""


def _lost(mark: SyncMark | None, slot: int, kept: dict[str, StoredReplica]) -> StoredReplica | None:
    """The replica of a mark without a row, recorded as damaged so that it is copied again."""
    if mark is None or mark.going or not mark.name:
        return None
    pipe_id = pipe_id_of(mark.name)
    if pipe_id in kept:
        return None
    damage = f"all of it is lost; it was synced up to {mark.end}"
    return StoredReplica(Replica(pipe_id, "", False, 0, 1, fenced=True, damage=damage), 0, slot)


def _note(found: Opened, news: list[StoredReplica]) -> None:
    if not news or found.failure:
        return  # without another mark, the evidence stays
    batch = WriteBatch(raw_mode=True)
    for each in news:
        batch.put(each.name, each.row(), found.rows)
    try:
        found.db.write(batch)
        found.db.flush_wal(True)
    except Exception as exc:
        raise explained(exc, "recording damage") from exc
    for each in news:
        while each.slot >= found.marks.slots:
            found.marks.grow()
        replica = each.replica
        found.marks.store(each.slot, SyncMark(each.serial, each.version, replica.end, each.name))
