"""The synced marks: how much of each replica was on disk when a sync last returned.

They have their own file, because at each start they are compared with the data that RocksDB found
in its log. RocksDB does not notice every loss: each of its modes that can open a torn log takes a
log that is cut off, removed, or damaged in its last record for one that ends there.

The file is a page with the generation, followed by a slot per replica. A slot has two halves, each
with a check word. A new mark overwrites the older half, by plain stores into mapped memory, so a
torn mark leaves the other half intact.

What the marks detect:

- If the process ends in any way, every stored mark survives, including that of each sync that
  returned: a replica that lost synced data is found to be damaged.
- After a power cut the file may be as old as its own last sync, `SYNC_MS` at most (longer if the
  disk is slow). If the log lost data that was synced within that time, the marks do not show it.
  The log's own checksums detect all losses but a cut-off tail.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from cassq.base.clock import AutoResetEvent
from cassq.base.os_errors import translated
from cassq.errors import BackendError, CorruptionError

logger: logging.Logger = logging.getLogger("cassq")

HINT = (
    "the data here may be incomplete: move this directory away, and start with the same --name and"
    " an empty directory; repairs then copy the replicas back from other sidecars"
)
SYNC_MS = 100
_PAGE = 65536  # size of the header: a multiple of any machine's page size
_HALF = 64
_SLOT = 2 * _HALF
_SEGMENT_SLOTS = 4096
_SEGMENT = _SEGMENT_SLOTS * _SLOT
_MAGIC = b"cassq marks 1\n"
# check; serial, number of the store, version, end; flags, length of the name, the name
_MARK = struct.Struct("<QQQQQBB22s")
_NAME_BYTES_MAX = 22
_GOING = 1
_NEITHER = 2
_NOTHING = bytes(_HALF)


class SyncMark(NamedTuple):
    """The synced state of a replica.

    serial: identifies the replica; 0 for an empty slot. name: as in keys; empty if it is too long
    for the slot. going: it is being dropped, so it may be gone.
    """

    serial: int
    version: int
    end: int
    name: bytes
    going: bool = False


class UnreadableMarkError(CorruptionError):
    """Neither half of a mark can be read."""


class SyncMarks:
    """The marks of one data directory. The caller holds a lock when storing.

    create: make the file; otherwise it must exist. Raises CorruptionError if it is missing or of
    another generation.
    """

    def __init__(self, path: Path, generation: str, *, create: bool) -> None:
        self._path = path
        self._segments: list[mmap.mmap] = []
        self._newest = bytearray()  # the half with the newest mark, by slot; _NEITHER
        self._number = 0
        self._unsynced = False
        self._closed = False
        self._event = AutoResetEvent()
        self._thread: threading.Thread | None = None
        header = (_MAGIC + generation.encode() + b"\n").ljust(_PAGE, b"\0")
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            self._fd = os.open(path, flags, 0o644)
        except FileNotFoundError as exc:
            raise CorruptionError(f"{path} is missing", hint=HINT) from exc
        try:
            if create:
                os.ftruncate(self._fd, 0)
                with translated(f"writing {path}"):
                    os.pwrite(self._fd, header, 0)
                    os.fsync(self._fd)
            elif os.pread(self._fd, _PAGE, 0) != header:
                raise CorruptionError(
                    f"{path} is damaged, or belongs to another directory", hint=HINT
                )
            size = os.fstat(self._fd).st_size - _PAGE
            for at in range(0, size // _SEGMENT * _SEGMENT, _SEGMENT):
                self._map(at)
        except BaseException:
            self._release()
            raise

    @property
    def slots(self) -> int:
        """The number of slots."""
        return len(self._segments) * _SEGMENT_SLOTS

    def grow(self) -> None:
        """Add slots. Raises StorageFullError if the disk has no room for them."""
        at = len(self._segments) * _SEGMENT
        with translated(f"growing {self._path}"):
            # A store into a page without disk space would kill the process.
            os.posix_fallocate(self._fd, _PAGE + at, _SEGMENT)
            os.fsync(self._fd)
        self._map(at)

    def read(self, slot: int) -> SyncMark | None:
        """The newest mark of a slot; None if none was ever stored. Raises UnreadableMarkError
        if there are marks but all are damaged."""
        if slot >= self.slots:
            return None
        halves = [self._half(slot, half) for half in range(2)]
        found = [(half, _opened(halves[half], slot)) for half in range(2)]
        stored = [(number, half, mark) for half, (number, mark) in found if mark is not None]
        if stored:
            number, self._newest[slot], mark = max(stored)
            self._number = max(self._number, number)
            return mark if mark.serial else None
        if _NOTHING in halves:
            return None  # the first store was torn, so no sync has returned since
        raise UnreadableMarkError("its synced mark cannot be read")

    def store(self, slot: int, mark: SyncMark) -> None:
        """Store a mark; the previous one remains until it is complete."""
        self._number = number = self._number + 1
        name = mark.name if len(mark.name) <= _NAME_BYTES_MAX else b""
        flags = _GOING if mark.going else 0
        fields = (mark.serial, number, mark.version, mark.end, flags, len(name), name)
        raw = _MARK.pack(0, *fields)[8:]
        raw = xxh3_64_intdigest(raw, seed=slot).to_bytes(8, "little") + raw
        newest = self._newest[slot]
        if newest == _NEITHER:
            self._put(slot, 1, raw)
        self._newest[slot] = half = 1 - newest if newest != _NEITHER else 0
        self._put(slot, half, raw)
        self._unsynced = True

    def store_going(self, slot: int, serial: int) -> None:
        """Record that a replica is being dropped: it is not missed if it disappears before its slot
        is cleared. If it does not disappear, its synced state is still known."""
        with suppress(UnreadableMarkError):
            mark = self.read(slot)
            if mark is not None and mark.serial == serial:
                self.store(slot, mark._replace(going=True))

    def clear(self, slot: int) -> None:
        """Empty a slot, for another replica."""
        self.store(slot, SyncMark(0, 0, 0, b""))

    def sync(self) -> None:
        """Make the marks durable. Cost: a sync of the file, if any was stored since the last."""
        if self._unsynced:
            self._unsynced = False
            with translated(f"syncing {self._path}"):
                os.fsync(self._fd)

    def start(self) -> None:
        """Start to sync every SYNC_MS, in a thread."""
        self._thread = threading.Thread(target=self._run, name="cassq-marks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sync for the last time, and close."""
        self._closed = True
        self._event.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.sync()
        finally:
            self._release()

    def _run(self) -> None:
        while not self._closed:
            self._event.wait(SYNC_MS / 1000)
            try:
                self.sync()
            except BackendError:
                # The log is on the same disk: the next write reports the failure.
                logger.warning("the synced marks could not be made durable", exc_info=True)

    def _map(self, at: int) -> None:
        self._segments.append(mmap.mmap(self._fd, _SEGMENT, offset=_PAGE + at))
        self._newest.extend([_NEITHER] * _SEGMENT_SLOTS)

    def _release(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        os.close(self._fd)

    def _half(self, slot: int, half: int) -> bytes:
        at = slot % _SEGMENT_SLOTS * _SLOT + half * _HALF
        return self._segments[slot // _SEGMENT_SLOTS][at : at + _HALF]

    def _put(self, slot: int, half: int, raw: bytes) -> None:
        at = slot % _SEGMENT_SLOTS * _SLOT + half * _HALF
        self._segments[slot // _SEGMENT_SLOTS][at : at + _HALF] = raw


def _opened(raw: bytes, slot: int) -> tuple[int, SyncMark | None]:
    """The sequence number of a half, and its mark if it can be read."""
    check, serial, number, version, end, flags, length, name = _MARK.unpack(raw)
    if check != xxh3_64_intdigest(raw[8:], seed=slot) or length > _NAME_BYTES_MAX:
        return 0, None
    return number, SyncMark(serial, version, end, name[:length], bool(flags & _GOING))
