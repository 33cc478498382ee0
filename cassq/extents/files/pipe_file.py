"""Pipe files: their pages, and how they are written and read.

`ID.pipe` begins with a page that identifies its pipe; it never changes. `ID.page` holds
words that all processes share through `mmap`: the published end (kept twice, each copy on a cache
line of its own with a check word), the seal flag, and hints. There are two files because a sync of
the frames would also write a changed page of the same file, at twice the cost.
`docs/pipe_file.md` lists every field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from cassq.base.clock import Clock
from cassq.base.os_errors import explained
from cassq.errors import ConfigError, CorruptionError, PipeSealedError, StorageFullError
from cassq.extents.files.disk import PAGE, Disk, Words
from cassq.extents.port import ExtentReader, ExtentWriter, Slice
from cassq.message.frames import (
    HEADER_SIZE,
    Frame,
    FrameError,
    FrameSpan,
    Place,
    decode,
    frame_span,
    pipe_key,
)
from cassq.message.frames import MAGIC as FRAME_MAGIC

MAGIC = b"CASSQPIP"
VERSION = 1

_IDENTITY = struct.Struct("<8sII32s448s")  # magic, version, page size, pipe id, queue name
_IDENTITY_SUM_AT = 504
# Indexes of shared words; words written together share a cache line of eight words.
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
    """The queue name in a header page. Raises CorruptionError if the page is not this pipe's, and
    ConfigError if it has another version."""
    if len(page) < PAGE:
        raise CorruptionError(f"the header of pipe {pipe_id} is cut short")
    magic, version, _, named, queue_name = _IDENTITY.unpack_from(page)
    (checksum,) = struct.unpack_from("<Q", page, _IDENTITY_SUM_AT)
    if magic != MAGIC or checksum != xxh3_64_intdigest(page[: _IDENTITY.size]):
        raise CorruptionError(f"the header of pipe {pipe_id} is damaged")
    if version != VERSION:
        raise ConfigError(
            f"pipe {pipe_id} has file version {version}; this cassq supports {VERSION}",
            hint="use a newer cassq",
        )
    if named.rstrip(b"\0").decode() != pipe_id:
        raise CorruptionError(f"the file of pipe {pipe_id} belongs to another pipe")
    return str(queue_name.rstrip(b"\0").decode())


def publish(words: Words, end: Place) -> None:
    check = end.seq ^ (end.pos * _CHECK & 0xFFFF_FFFF_FFFF_FFFF)
    for at in (END_A, END_B):
        words[at], words[at + 1], words[at + 2] = end.seq, end.pos, check


def published_end(words: Words) -> Place | None:
    """The end; None if neither copy is whole. A writer leaves one torn only for nanoseconds."""
    for at in (END_B, END_A):
        seq, pos, check = words[at], words[at + 1], words[at + 2]
        if check == seq ^ (pos * _CHECK & 0xFFFF_FFFF_FFFF_FFFF) and pos >= PAGE:
            return Place(seq, pos)
    return None


# --- writing ---------------------------------------------------------------------------------

_ZERO_AHEAD_MIN = 16 * 1024
_ZERO_AHEAD_MAX = 512 * 1024
_SMALL_APPEND = 32 * 1024
_BUFFERS_MAX = 1000  # the kernel takes 1024 at a time


class FileWriter(ExtentWriter):
    """Appends to one file. Small appends go into space that was zeroed ahead: a sync that changes
    neither the size nor the block map costs half as much."""

    def __init__(
        self, disk: Disk, fd: int, words: Words, name: str, clock: Clock, *, syncs: bool
    ) -> None:
        self._disk = disk
        self._fd = fd
        self._words = words
        self._name = name
        self._clock = clock
        self._syncs = syncs
        self._end = Place(0, PAGE)
        self._zeroed_to = PAGE
        self._zero_ahead = _ZERO_AHEAD_MIN
        self._failed = False

    @property
    def end(self) -> Place:
        return self._end

    @property
    def size_bytes(self) -> int:
        return self._end.pos - PAGE

    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        if self._failed or self._fd < 0:
            raise PipeSealedError(f"{self._name} accepts no more frames")
        buffers = [part for frame in frames for part in frame]
        if len(buffers) > _BUFFERS_MAX:
            buffers = [b"".join(buffers)]
        size = sum(map(len, buffers))
        at = self._end.pos
        end = Place(end_seq, at + size)
        total = size
        if end.pos > self._zeroed_to and size < _SMALL_APPEND:
            buffers.append(bytes(self._zero_ahead))
            total += self._zero_ahead
            self._zero_ahead = min(2 * self._zero_ahead, _ZERO_AHEAD_MAX)
        self._failed = True  # until it has succeeded
        try:
            written = self._disk.pwritev(self._fd, buffers, at)
            if written < total and written >= size:
                total = written  # the zeroes did not fit, but the frames did
            elif written < total:
                raise StorageFullError(
                    f"{self._name}: no space left after {written} of {size} bytes"
                )
            if self._syncs:
                self._disk.sync_data(self._fd)
        except OSError as exc:
            self._words[FAILED] = 1
            raise explained(exc, f"writing {self._name}") from exc
        except StorageFullError:
            self._words[FAILED] = 1
            raise
        words = self._words
        if words[SEALED]:
            raise PipeSealedError(f"{self._name} was sealed")
        self._failed = False
        self._zeroed_to = max(self._zeroed_to, at + total)
        self._end = end
        publish(words, end)
        words[LAST_APPEND_MS] = self._clock.boot_ms()
        return end

    def sealed(self) -> bool:
        return self._failed or bool(self._words[SEALED])

    def turn_wanted(self) -> bool:
        return bool(self._words[TURN_WANTED])

    def close(self) -> None:
        # Cleared first: a second close, after an interrupt, might close another file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._failed = True
            # The mapping would keep the file open, and with it the kernel's lock.
            self._words = [0] * (PAGE // 8)
            self._disk.close(fd)


# --- reading ---------------------------------------------------------------------------------

_CHUNK_MIN = 64 * 1024
# A frame is decoded while it is still in the CPU cache: reading further ahead, from many pipes in
# turn, made working off a deep backlog a fifth slower.
_CHUNK_MAX = 1024 * 1024


class FileReader(ExtentReader):
    """Reads one file in chunks; keeps the last chunk and the last frame for the next claim."""

    def __init__(
        self, disk: Disk, fd: int, words: Words, pipe_id: str, *, earlier_boot: bool
    ) -> None:
        self._disk = disk
        self._fd = fd
        self._pipe_id = pipe_id
        self._key = pipe_key(pipe_id)
        self.words = words
        self.earlier_boot = earlier_boot
        self._chunk = b""
        self._chunk_at = 0
        self._chunk_size = _CHUNK_MIN
        self._frame: Frame | None = None
        self._frame_at = -1

    def published(self) -> Place:
        words = self.words
        for _ in range(1000):
            end = published_end(words)
            if end is not None:
                return end
        # Both copies are torn: only a power cut while their page was written does that.
        return self.walk(Place(0, PAGE))

    def read(self, start: Place, end_seq: int, limit: int, bytes_max: int) -> list[Slice]:
        slices: list[Slice] = []
        seq, pos = start.seq, start.pos or PAGE
        total = 0
        while seq < end_seq and limit > 0:
            passed = self._passed(pos, seq)
            if passed:
                pos += passed
                continue
            try:
                frame = self._frame_at_pos(pos)
                if frame.base_seq > seq:
                    raise FrameError(
                        f"pipe {self._pipe_id} has seq {frame.base_seq} where {seq} was expected"
                    )
            except FrameError:
                if slices:
                    break  # what lies before the damage is good; the next read reports it
                raise
            if frame.end_seq > seq:
                if slices and total + frame.size > bytes_max:
                    break
                first = seq - frame.base_seq
                last = min(frame.count, first + limit, end_seq - frame.base_seq)
                slices.append(Slice(frame, first, last))
                total += frame.size
                limit -= last - first
                seq += last - first
            pos += frame.size
        return slices

    def place_after(self, start: Place, slices: Sequence[Slice]) -> Place:
        """The place after `slices`: within the last frame, or at the start of the next one."""
        last = slices[-1]
        seq = last.frame.base_seq + last.last
        pos = self._frame_at if self._frame is last.frame else self._find(start, seq)
        if seq == last.frame.end_seq:
            pos += last.frame.size
        return Place(seq, pos)

    def walk(self, start: Place) -> Place:
        """Step over whole frames from `start` until none follows; returns the gapless end."""
        seq, pos = start
        while True:
            try:
                frame = self._frame_at_pos(pos)
            except FrameError:
                return Place(seq, pos)
            if frame.base_seq != seq:
                return Place(seq, pos)
            seq, pos = frame.end_seq, pos + frame.size

    def after_damage(self, start: Place, end_seq: int) -> Place | None:
        """Cost: reads the file from the damage to the next good frame, searched first where the
        damaged frame's header says that it ends, then at each byte. Checksums are seeded with the
        pipe's key, so nothing else is taken for a frame."""
        seq, pos = start.seq, start.pos or PAGE
        size = self._disk.size(self._fd)
        while (span := self._header(pos)) is not None and span.base_seq == seq:
            after = self._header(pos + span.size)
            if after is None or after.base_seq != seq + span.messages or after.base_seq >= end_seq:
                break  # what this header says may be wrong, too
            seq, pos = after.base_seq, pos + span.size
            if self._is_good(pos, seq, end_seq):
                return Place(seq, pos)
        while (pos := self._magic_after(pos, size)) >= 0:
            if self._is_good(pos, seq + 1, end_seq):
                return Place(self._frame_at_pos(pos).base_seq, pos)
        return None

    def _header(self, pos: int) -> FrameSpan | None:
        """The unverified header at byte `pos`; None when there is none."""
        try:
            return frame_span(self._disk.pread(self._fd, HEADER_SIZE, pos))
        except FrameError:
            return None

    def _is_good(self, pos: int, least: int, end_seq: int) -> bool:
        """Whether a whole frame is at byte `pos`, with seqs from `least` on, below the end."""
        try:
            frame = self._frame_at_pos(pos)
        except FrameError:
            return False
        return least <= frame.base_seq and frame.end_seq <= end_seq

    def _magic_after(self, pos: int, size: int) -> int:
        """The next byte after `pos` where a frame may begin; -1 when there is none."""
        at = pos + 1
        while at < size:
            chunk = self._disk.pread(self._fd, _CHUNK_MAX, at)
            found = chunk.find(FRAME_MAGIC)
            if found >= 0:
                return at + found
            if len(chunk) < len(FRAME_MAGIC):
                break
            at += len(chunk) - len(FRAME_MAGIC) + 1
        return -1

    def ask_turn(self) -> int:
        self.words[TURN_WANTED] = 1
        return self.words[LAST_APPEND_MS]

    def dropped(self) -> bool:
        return self._fd >= 0 and self._disk.unlinked(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def _find(self, start: Place, seq: int) -> int:
        pos = start.pos or PAGE
        frame = self._frame_at_pos(pos)
        while frame.end_seq < seq:
            pos += frame.size
            frame = self._frame_at_pos(pos)
        return pos

    def _passed(self, pos: int, seq: int) -> int:
        """The size of the frame at byte `pos` if it lies before `seq` and is in memory, so that it
        can be skipped unopened; else 0."""
        offset = pos - self._chunk_at
        if pos == self._frame_at or not 0 <= offset <= len(self._chunk) - HEADER_SIZE:
            return 0
        try:
            span = frame_span(self._chunk, offset)
        except FrameError:
            return 0  # read before it was written, or damaged: opening it will show that
        return span.size if span.base_seq + span.messages <= seq else 0

    def _frame_at_pos(self, pos: int) -> Frame:
        """The verified frame at byte `pos`."""
        if pos == self._frame_at and self._frame is not None:
            return self._frame
        offset = pos - self._chunk_at
        if 0 <= offset <= len(self._chunk) - HEADER_SIZE:
            try:
                return self._decode(pos, offset)
            except FrameError:
                # The chunk was read before this frame was completely written.
                self._chunk = b""
        self._load(pos, self._chunk_size)
        try:
            return self._decode(pos, 0)
        except FrameError as exc:
            where = f"pipe {self._pipe_id}, at byte {pos}"
            raise FrameError(f"{where}: {exc.message}", pipe_id=self._pipe_id) from exc

    def _decode(self, pos: int, offset: int) -> Frame:
        size = frame_span(self._chunk, offset).size
        if len(self._chunk) - offset < size:
            self._chunk_size = max(_CHUNK_MIN, size, min(2 * size, _CHUNK_MAX))
            self._load(pos, max(size, self._chunk_size))
            offset = 0
        frame = decode(self._chunk, offset, pipe_key=self._key)
        self._frame, self._frame_at = frame, pos
        return frame

    def _load(self, pos: int, size: int) -> None:
        end = published_end(self.words)
        if end is not None and pos < end.pos:
            size = min(size, end.pos - pos)  # what follows may not be written yet
        try:
            self._chunk = self._disk.pread(self._fd, size, pos)
        except OSError as exc:
            raise explained(exc, f"reading pipe {self._pipe_id}") from exc
        self._chunk_at = pos
