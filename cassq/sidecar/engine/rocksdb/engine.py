"""The engine on RocksDB: one database for all replicas of a data directory.

All replicas share one log, so one sync serves them all. Each change is one batch: a frame is
written with the row that records its replica's end, so that they are consistent after a crash.
Nothing is synced before `sync`, which ends by storing the mark of each changed replica
(`cassq.sidecar.engine.rocksdb.marks`).

rocksdict holds the GIL in `write` and while it iterates, and releases it in `flush_wal` and
`compact_range`, so a syncing thread does not block others. Its `items()`, `keys()` and `values()`
silently end at a damaged block, so this code checks the `status` of iterators.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rocksdict import CompactOptions, Rdict, RdictIter, ReadOptions, WriteBatch

from cassq.errors import (
    BackendUnavailableError,
    BrokenInvariantError,
    CassqError,
    StorageFullError,
)
from cassq.message.frames import FrameError, pipe_key, verify
from cassq.sidecar.engine.port import Engine, Replica, Space, is_report
from cassq.sidecar.engine.rocksdb.directory import Directory, Identity
from cassq.sidecar.engine.rocksdb.marks import SyncMark
from cassq.sidecar.engine.rocksdb.mending import table_named
from cassq.sidecar.engine.rocksdb.opening import opened
from cassq.sidecar.engine.rocksdb.options import Tuning
from cassq.sidecar.engine.rocksdb.reclaim import Reclaim
from cassq.sidecar.engine.rocksdb.room import Room, space_of
from cassq.sidecar.engine.rocksdb.rows import StoredReplica, seq_bytes, seq_of
from cassq.sidecar.engine.rocksdb.trouble import Trouble, explained

logger: logging.Logger = logging.getLogger("cassq")

_CHANGEABLE = {"queue_name", "strict", "epoch", "fenced", "final", "damage", "behind", "copying"}


class RocksEngine(Engine):
    """Replicas in RocksDB. For one process; only one thread at a time may change them.

    catalog, name: the owner of the directory. free_min: bytes of free space below which writes are
    refused; at least a few memtables, since opening may need that. probe: measures the disk.

    Raises ConfigError for a directory that is open already or belongs to another sidecar,
    CorruptionError if RocksDB cannot read it; if it can only be read, `failure` says why. Cost of
    opening: a read of all rows and of the log.
    """

    def __init__(
        self,
        path: Path,
        *,
        catalog: str,
        name: str,
        free_min: int = 0,
        probe: Callable[[], Space] | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        self._directory = Directory(path, catalog=catalog, name=name)
        self._room = Room(probe or (lambda: space_of(path)), free_min)
        try:
            found = opened(self._directory, tuning or Tuning(), free_min)
        except BaseException:
            self._directory.close()
            raise
        self._db: Rdict = found.db
        self._options = found.options
        self._rows = found.rows
        self._marks = found.marks
        self._kept = found.kept
        self._free = found.free
        self._serial = found.serial
        self._replicas = {pipe_id: kept.replica for pipe_id, kept in found.kept.items()}
        self._trouble = Trouble(found.failure, self._can_be_mended)
        self._closed = False
        self._changing = threading.Lock()
        self._syncing = threading.Lock()
        self._unmarked: dict[str, StoredReplica] = {}  # changed since the last sync began
        self._leaving: list[int] = []  # slots of replicas dropped since then
        self._reclaim = Reclaim(self._compact, self._names)
        self._marks.start()
        self._reclaim.start()

    @property
    def identity(self) -> Identity:
        """The owner of the directory."""
        return self._directory.identity

    @property
    def generation(self) -> str:
        return self._directory.identity.generation

    def replicas(self) -> Mapping[str, Replica]:
        return self._replicas

    # --- changes ----------------------------------------------------------------------------------

    def create(self, replica: Replica) -> None:
        with self._changing:
            self._working()
            if replica.pipe_id in self._kept:
                raise BrokenInvariantError(f"{replica.pipe_id} exists already")
            if not self._free:
                slots = self._marks.slots
                self._marks.grow()
                self._free.extend(range(self._marks.slots - 1, slots - 1, -1))
            kept = StoredReplica(replica, self._serial, self._free[-1])
            batch = WriteBatch(raw_mode=True)
            batch.put(kept.name, kept.row(), self._rows)
            self._write(batch, f"creating {replica.pipe_id}")
            self._serial += 1
            self._free.pop()
            self._kept[replica.pipe_id] = self._unmarked[replica.pipe_id] = kept
            self._replicas[replica.pipe_id] = replica

    def append(self, pipe_id: str, base_seq: int, count: int, frame: bytes, acked: int) -> None:
        with self._changing:
            self._working()
            kept = self._kept[pipe_id]
            replica = kept.replica
            if base_seq != replica.end:
                raise BrokenInvariantError(f"{base_seq} is not the end of {pipe_id}")
            if self._room.short():
                space = self._room.space()
                raise StorageFullError(
                    f"only {space.free} bytes are free; {self._room.free_min} are reserved",
                    hint="free some space, or add sidecars",
                )
            was = (replica.end, replica.acked, replica.size_bytes, replica.frames)
            replica.end, replica.acked = base_seq + count, acked
            replica.size_bytes += len(frame)
            replica.frames += 1
            try:
                batch = WriteBatch(raw_mode=True)
                batch.put(kept.frame_key(base_seq), frame)
                batch.put(kept.name, kept.row(), self._rows)
                self._write(batch, f"appending to {pipe_id}")
            except BaseException:
                replica.end, replica.acked, replica.size_bytes, replica.frames = was
                raise
            self._unmarked[pipe_id] = kept

    def note(self, pipe_id: str, **changes: int | bool | str | None) -> None:
        with self._changing:
            kept = self._kept[pipe_id]
            replica = kept.replica
            if changes.keys() == {"acked"}:
                replica.acked = changes["acked"]  # type: ignore[assignment]
                return
            if is_report(changes):
                _set(replica, changes)  # even if it cannot be written
            self._working()
            if not changes.keys() <= _CHANGEABLE | {"acked"}:
                raise BrokenInvariantError(f"no note changes {sorted(changes)}")
            was = {name: getattr(replica, name) for name in changes}
            _set(replica, changes)
            kept.version += 1
            try:
                batch = WriteBatch(raw_mode=True)
                batch.put(kept.name, kept.row(), self._rows)
                self._write(batch, f"noting {sorted(changes)} of {pipe_id}")
            except BaseException:
                _set(replica, was)
                kept.version -= 1
                raise
            self._unmarked[pipe_id] = kept

    def cut(self, pipe_id: str, end: int) -> None:
        with self._changing:
            self._working()
            kept = self._kept[pipe_id]
            replica = kept.replica
            frames, size_bytes = self._tail(kept, end)
            kept.version += 1
            kept.cut_version, kept.cut_end = kept.version, end
            replica.end = end
            replica.frames -= frames
            replica.size_bytes -= size_bytes
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(kept.frame_key(end), kept.past_frames())
            batch.put(kept.name, kept.row(), self._rows)
            # If this fails, memory is ahead of the disk, but no more writes are accepted.
            self._write(batch, f"cutting {pipe_id}")
            self._unmarked[pipe_id] = kept
            self._reclaim.add(kept.name, size_bytes)

    def _tail(self, kept: StoredReplica, end: int) -> tuple[int, int]:
        """The number and bytes of readable frames from `end` on."""
        replica = kept.replica
        if end == replica.end:
            return 0, 0
        if end == 0:
            return replica.frames, replica.size_bytes
        frames, _bounds = self._frames(kept)
        count = size_bytes = 0
        try:
            frames.seek(kept.frame_key(end))
            if not frames.valid() or seq_of(frames.key()) != end:
                frames.status()
                raise BrokenInvariantError(f"{end} is not a boundary between frames")
            while frames.valid():
                count, size_bytes = count + 1, size_bytes + len(frames.value())
                frames.next()
        except BrokenInvariantError:
            raise
        except Exception as exc:
            error = explained(exc, f"cutting {replica.pipe_id}")
            if not isinstance(error, FrameError):
                raise error from exc
        return count, size_bytes

    def drop(self, pipe_ids: Sequence[str]) -> None:
        with self._changing:
            self._working()
            going = [self._kept[each] for each in dict.fromkeys(pipe_ids) if each in self._kept]
            if not going:
                return
            batch = WriteBatch(raw_mode=True)
            for kept in going:
                self._marks.store_going(kept.slot, kept.serial)
                batch.delete_range(kept.frame_key(0), kept.past_frames())
                batch.delete(kept.name, self._rows)
            self._write(batch, f"dropping {len(going)} extents")
            for kept in going:
                pipe_id = kept.replica.pipe_id
                del self._kept[pipe_id], self._replicas[pipe_id]
                self._unmarked.pop(pipe_id, None)
                self._leaving.append(kept.slot)
                self._reclaim.add(kept.name, kept.replica.size_bytes)

    def sync(self) -> None:
        with self._syncing:
            with self._changing:
                self._working()
                unmarked, self._unmarked = self._unmarked, {}
                leaving, self._leaving = self._leaving, []
                marks = [
                    (kept, SyncMark(kept.serial, kept.version, kept.replica.end, kept.name))
                    for kept in unmarked.values()
                ]
            if not marks and not leaving:
                return
            try:
                self._db.flush_wal(True)
            except Exception as exc:
                with self._changing:  # so that a concurrent failed write reports its cause first
                    raise self._failed(exc, "syncing the log") from exc
            with self._changing:
                for kept, mark in marks:
                    if self._kept.get(kept.replica.pipe_id) is kept:
                        self._marks.store(kept.slot, mark)
                for slot in leaving:
                    self._marks.clear(slot)
                    self._free.append(slot)

    def _write(self, batch: WriteBatch, what: str) -> None:
        try:
            self._db.write(batch)
        except Exception as exc:
            raise self._failed(exc, what) from exc

    def _failed(self, exc: Exception, what: str) -> CassqError:
        error = self._trouble.met(exc, what)
        if self._trouble.starved and isinstance(error, StorageFullError):
            self._room.exhausted()
        return error

    def _can_be_mended(self, text: str) -> bool:
        """Whether an error is about a damaged table that the next opening mends; noted if so."""
        try:
            table = table_named(self._db, text)
            if table is not None:
                self._directory.note_to_mend(table.number)
        except Exception as exc:
            logger.error("a damaged table could not be noted: %s", exc)
            return False
        return table is not None

    def _working(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the engine is closed", retryable=False)
        self._trouble.check()

    # --- reads ------------------------------------------------------------------------------------

    def read(
        self, pipe_id: str, seq: int, end_seq: int, bytes_max: int, frames_max: int
    ) -> list[bytes]:
        kept = self._kept.get(pipe_id)
        found: list[bytes] = []
        if kept is None:
            return found  # dropped meanwhile
        size, at, end = 0, seq, min(end_seq, kept.replica.end)
        key = pipe_key(pipe_id)
        try:
            frames, _bounds = self._frames(kept)
            frames.seek(kept.frame_key(seq))
            if not frames.valid() or seq_of(frames.key()) != seq:
                # Only if necessary: stepping back also reads the previous frame.
                frames.status()
                frames.seek_for_prev(kept.frame_key(seq))
            while at < end and len(found) < frames_max:
                if not frames.valid() or not frames.key().startswith(kept.name):
                    frames.status()
                    break
                frame = frames.value()
                if found and size + len(frame) > bytes_max:
                    return found
                base_seq, count, _ = verify(frame, pipe_key=key)
                if base_seq != seq_of(frames.key()) or not base_seq <= at < base_seq + count:
                    break
                found.append(frame)
                size, at = size + len(frame), base_seq + count
                frames.next()
        except FrameError:
            if not found:
                raise
        except Exception as exc:
            error = explained(exc, f"reading {pipe_id}")
            if not isinstance(error, FrameError):
                raise error from exc
            found = found or self._read_singly(kept, seq, end, bytes_max, frames_max)
            if not found:
                raise error from exc
        if not found and at < min(end, kept.replica.end):
            raise FrameError(f"no frame of {pipe_id} holds seq {at}; it ends at {end}")
        return found

    def _read_singly(
        self, kept: StoredReplica, seq: int, end_seq: int, bytes_max: int, frames_max: int
    ) -> list[bytes]:
        """As `read`, if a frame begins at `seq`; otherwise nothing. An iterator also reads what
        other tables have next to the key. The lookup of a single key reads only the tables that may
        have it, the newest first."""
        pipe_id, size = kept.replica.pipe_id, 0
        key = pipe_key(pipe_id)
        found: list[bytes] = []
        try:
            while seq < end_seq and len(found) < frames_max:
                frame = self.frame_at(pipe_id, seq)
                if frame is None:
                    break
                if found and size + len(frame) > bytes_max:
                    break
                first, count, _ = verify(frame, pipe_key=key)
                if first != seq:
                    break
                found.append(frame)
                size, seq = size + len(frame), first + count
        except FrameError:
            if not found:
                raise
        return found

    def frame_at(self, pipe_id: str, base_seq: int) -> bytes | None:
        kept = self._kept.get(pipe_id)
        if kept is None:
            return None
        try:
            frame: bytes | None = self._db.get(kept.frame_key(base_seq))
        except Exception as exc:
            raise explained(exc, f"reading {pipe_id}") from exc
        return frame

    def _frames(self, kept: StoredReplica) -> tuple[RdictIter, ReadOptions]:
        """An iterator over the frames of a replica and anything before them; and its options, which
        must live as long as it does, because it reads its bound from their memory."""
        bounds = ReadOptions()
        bounds.set_iterate_upper_bound(kept.past_frames())
        return self._db.iter(bounds), bounds

    # --- room -------------------------------------------------------------------------------------

    def space(self) -> Space:
        return self._room.space()

    @property
    def read_only(self) -> bool:
        return bool(self._trouble) or self._room.short()

    @property
    def failure(self) -> str:
        return self._trouble.failure

    @property
    def starved(self) -> str:
        return self._trouble.starved

    def has_room(self) -> bool:
        return self._room.is_back(self._directory.path)

    def statistics(self) -> str:
        """RocksDB's statistics, as text; empty unless the tuning enables them."""
        return str(self._options.get_statistics() or "")

    def reclaim(self) -> int:
        """Free the space of dropped extents now; return their number. Otherwise a thread does it
        soon. Cost: compactions."""
        return self._reclaim.pass_now()

    def _compact(self, first: bytes, last: bytes) -> None:
        how = CompactOptions()
        how.set_exclusive_manual_compaction(False)
        self._db.compact_range(first, last + seq_bytes(2**64 - 1), how)

    def _names(self) -> list[bytes]:
        with self._changing:
            return [kept.name for kept in self._kept.values()]

    def close(self) -> None:
        if self._closed:
            return
        try:
            if not self._trouble:
                self.sync()
        finally:
            self._closed = True
            self._reclaim.stop()
            self._reclaim.join()
            try:
                self._marks.close()
            finally:
                # RocksDB keeps its directory open while any object of it exists.
                del self._rows
                try:
                    self._db.close()
                except Exception as exc:
                    # Synced data is in the log, and is read from there when reopened.
                    logger.warning("RocksDB could not flush its tables: %s", exc)
                self._directory.close()


def _set(replica: Replica, changes: Mapping[str, object]) -> None:
    for name, value in changes.items():
        setattr(replica, name, value)
