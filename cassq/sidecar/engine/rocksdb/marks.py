"""The synced marks: how much of each replica was on disk when a sync last returned.

They have a file of their own, because after a start they are compared with what RocksDB found in
its log, and RocksDB accepts less: every mode that opens a torn log at all takes a log that is cut
off, removed, or damaged in its last record for one that ends there.

The file is a page with the generation, then slots of two halves, one a replica. A half has a
check word over the rest; a mark is stored over the older of the two, by plain stores into mapped
memory, so one that is torn leaves the other.

What they detect:

- after the end of the process, however it came, all that was stored is there: so is the mark of
  every sync that returned, and a replica that lost any of it is seen to be damaged;
- after a power cut the file may be as old as its own last sync, `SYNC_MS` at most (longer where
  the disk is slow): a loss of what was synced in that time alone, in a log that the disk had
  called safe, is not seen by the marks. The log's own checksums see all but a cut-off tail.
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

from cassq.base.clock import Nudge
from cassq.base.os_errors import translated
from cassq.errors import BackendError, CorruptionError

logger: logging.Logger = logging.getLogger("cassq")

HINT = "what is here cannot be vouched for: start with an empty directory, the rest is repaired"
SYNC_MS = 100
_PAGE = 65536  # of header: a multiple of what any machine maps at once
_HALF = 64
_SLOT = 2 * _HALF
_SEGMENT_SLOTS = 4096
_SEGMENT = _SEGMENT_SLOTS * _SLOT
_MAGIC = b"cassq marks 1\n"
# check; birth, number of the store, version, end; flags, length of the name, the name
_MARK = struct.Struct("<QQQQQBB22s")
_NAME_BYTES_MAX = 22
_GOING = 1
_NEITHER = 2
_NOTHING = bytes(_HALF)


class SyncMark(NamedTuple):
    """What was synced of a replica.

    birth: which one; 0 for an empty slot. name: within keys; empty when it is too long to stand
    here. going: it is being dropped, so it may be gone.
    """

    birth: int
    version: int
    end: int
    name: bytes
    going: bool = False


class UnreadableMarkError(CorruptionError):
    """Neither half of a mark can be read."""


class SyncMarks:
    """The marks of one data directory. Stores are made under the caller's lock.

    create: make the file; else it has to be there. Raises CorruptionError for one that is not of
    this generation, or not there.
    """

    def __init__(self, path: Path, generation: str, *, create: bool) -> None:
        self._path = path
        self._segments: list[mmap.mmap] = []
        self._newest = bytearray()  # the half with the newest mark, by slot; _NEITHER
        self._number = 0
        self._unsynced = False
        self._closed = False
        self._nudge = Nudge()
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
                raise CorruptionError(f"{path} is not of this directory, or damaged", hint=HINT)
            size = os.fstat(self._fd).st_size - _PAGE
            for at in range(0, size // _SEGMENT * _SEGMENT, _SEGMENT):
                self._map(at)
        except BaseException:
            self._release()
            raise

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._segments) * _SEGMENT_SLOTS

    def grow(self) -> None:
        """Make more slots. Raises StorageFullError when the disk has no room for them."""
        at = len(self._segments) * _SEGMENT
        with translated(f"growing {self._path}"):
            # A store into a page for which there is no room would end the process.
            os.posix_fallocate(self._fd, _PAGE + at, _SEGMENT)
            os.fsync(self._fd)
        self._map(at)

    def read(self, slot: int) -> SyncMark | None:
        """The newest mark of a slot; None when none was ever stored. Raises UnreadableMarkError
        when there were marks, and all are damaged."""
        if slot >= self.slots:
            return None
        halves = [self._half(slot, half) for half in range(2)]
        found = [(half, _opened(halves[half], slot)) for half in range(2)]
        stored = [(number, half, mark) for half, (number, mark) in found if mark is not None]
        if stored:
            number, self._newest[slot], mark = max(stored)
            self._number = max(self._number, number)
            return mark if mark.birth else None
        if _NOTHING in halves:
            return None  # the first store was torn, so no sync returned since
        raise UnreadableMarkError("its synced mark cannot be read")

    def store(self, slot: int, mark: SyncMark) -> None:
        """Store a mark; the one before stays until it is whole."""
        self._number = number = self._number + 1
        name = mark.name if len(mark.name) <= _NAME_BYTES_MAX else b""
        flags = _GOING if mark.going else 0
        fields = (mark.birth, number, mark.version, mark.end, flags, len(name), name)
        raw = _MARK.pack(0, *fields)[8:]
        raw = xxh3_64_intdigest(raw, seed=slot).to_bytes(8, "little") + raw
        newest = self._newest[slot]
        if newest == _NEITHER:
            self._put(slot, 1, raw)
        self._newest[slot] = half = 1 - newest if newest != _NEITHER else 0
        self._put(slot, half, raw)
        self._unsynced = True

    def store_going(self, slot: int, birth: int) -> None:
        """Say that a replica is being dropped, so that nobody misses it should it be gone before
        its slot is cleared. What was synced of it stays known, should it not be gone."""
        with suppress(UnreadableMarkError):
            mark = self.read(slot)
            if mark is not None and mark.birth == birth:
                self.store(slot, mark._replace(going=True))

    def clear(self, slot: int) -> None:
        """Empty a slot, for another replica."""
        self.store(slot, SyncMark(0, 0, 0, b""))

    def sync(self) -> None:
        """Make the marks durable. Cost: a sync of the file, if any was stored since."""
        if self._unsynced:
            self._unsynced = False
            with translated(f"syncing {self._path}"):
                os.fsync(self._fd)

    def start(self) -> None:
        """Sync from now on every SYNC_MS, in a thread."""
        self._thread = threading.Thread(target=self._run, name="cassq-marks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Sync for the last time, and close."""
        self._closed = True
        self._nudge.give()
        if self._thread is not None:
            self._thread.join()
        try:
            self.sync()
        finally:
            self._release()

    def _run(self) -> None:
        while not self._closed:
            self._nudge.wait(SYNC_MS / 1000)
            try:
                self.sync()
            except BackendError:
                # The log is on the same disk: that it fails is told by whoever writes next.
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
    """The number of a half's store, and its mark if it can be read."""
    check, birth, number, version, end, flags, length, name = _MARK.unpack(raw)
    if check != xxh3_64_intdigest(raw[8:], seed=slot) or length > _NAME_BYTES_MAX:
        return 0, None
    return number, SyncMark(birth, version, end, name[:length], bool(flags & _GOING))
