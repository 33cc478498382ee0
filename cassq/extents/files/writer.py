"""Writing a pipe file: append, sync, look at the seal flag, publish the new end."""

from __future__ import annotations

from collections.abc import Sequence

from cassq.base.clock import Clock
from cassq.base.os_errors import explained
from cassq.errors import PipeSealedError, StorageFullError
from cassq.extents.files.disk import PAGE, Disk, Words
from cassq.extents.files.pipe_file import FAILED, LAST_APPEND_MS, SEALED, TURN_WANTED, publish
from cassq.extents.port import ExtentWriter
from cassq.message.frames import Place

_ZERO_AHEAD_MIN = 16 * 1024
_ZERO_AHEAD_MAX = 512 * 1024
_SMALL_APPEND = 32 * 1024
_BUFFERS_MAX = 1000  # the kernel takes 1024 at a time


class FileWriter(ExtentWriter):
    """Appends to one file. Small appends go into space zeroed ahead: a sync that changes neither
    size nor block map costs half as much."""

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
            raise PipeSealedError(f"{self._name} takes no more frames")
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
                total = written  # the zeroes did not fit: the frames did
            elif written < total:
                raise StorageFullError(f"{self._name}: only {written} of {size} bytes were written")
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
        # Taken first: what is closed twice, after an interrupt, may be somebody else's file.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._failed = True
            # The mapping would keep the file open, and with it the kernel's lock.
            self._words = [0] * (PAGE // 8)
            self._disk.close(fd)
