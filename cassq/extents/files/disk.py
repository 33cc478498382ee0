"""The disk below the files store: thin wrappers over system calls, which tests can replace."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

PAGE = 4096
# macOS has no fdatasync, and its fsync leaves the bytes in the drive's cache: this one does not.
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_HAS_FDATASYNC = hasattr(os, "fdatasync")
_HAS_PWRITEV = hasattr(os, "pwritev")
# The errors of file systems without such a sync: there, fsync is the best available.
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY}


class Words(Protocol):
    """A page of memory shared with every process that has the file open: 512 words of 8 bytes."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Disk:
    """The real disk."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and its missing parents, with durable names. Cost: a sync for each that
        is made, and one if the first that exists is empty."""
        missing: list[Path] = []
        while not path.exists():
            missing.append(path)
            path = path.parent
        if not any(path.iterdir()):
            # Another process may just have made it, and not have synced its name yet. This is
            # skipped if the parent may not be opened.
            with suppress(PermissionError):
                self.sync_directory(path.parent)
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def create(self, path: Path) -> int:
        """Create a file, opened for reading and writing; FileExistsError if it exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def written_ms(self, path: Path) -> int:
        """When a file was last written, in wall milliseconds, rounded up."""
        return -(-path.stat().st_mtime_ns // 1_000_000)

    def unlinked(self, fd: int) -> bool:
        """Whether an open file has lost its name, so that closing it frees its space."""
        return os.fstat(fd).st_nlink == 0

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        return os.pread(fd, size, pos)

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        if _HAS_PWRITEV:
            return os.pwritev(fd, buffers, pos)
        return os.pwrite(fd, b"".join(buffers), pos)

    def sync_data(self, fd: int) -> None:
        """Make a file's bytes durable."""
        if _HAS_FDATASYNC:
            os.fdatasync(fd)
        else:
            _sync(fd)

    def sync(self, fd: int) -> None:
        """Make a file's bytes, its shared pages and its size durable."""
        _sync(fd)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(fd)
        finally:
            os.close(fd)

    def rename(self, path: Path, to: Path) -> None:
        """Give a file another name; FileExistsError when that name is taken."""
        os.link(path, to)
        path.unlink()

    def exists(self, path: Path) -> bool:
        return path.exists()

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)

    def lock(self, fd: int) -> bool:
        """Take the kernel's lock on an open file without waiting; False when it is held."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def map_words(self, fd: int) -> Words:
        """Map a file of one page as shared words; the mapping lives as long as the result."""
        return memoryview(mmap.mmap(fd, PAGE)).cast("Q")


def _sync(fd: int) -> None:
    """Write all of a file to disk, through the drive's cache where that has to be requested."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
            return
        except OSError as exc:
            if exc.errno not in _NOT_SUPPORTED:
                raise
    os.fsync(fd)
