"""Disks that fail on demand, below the files store."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cassq.extents.files.disk import Disk


class SickDisk(Disk):
    """The real disk, until a test tells a call to fail.

    ills: call name → how often it fails from now on, and how (a function that raises, or gives
    what the call returns).
    """

    def __init__(self) -> None:
        self.ills: dict[str, tuple[int, Callable[[], int]]] = {}
        self.syncs = 0

    def fall_ill(self, call: str, times: int = 1, number: int = errno.EIO) -> None:
        """Let a call fail `times` times with an errno, before it does anything."""

        def fail() -> int:
            raise OSError(number, os.strerror(number))

        self.ills[call] = (times, fail)

    def write_short(self, size: int, times: int = 1) -> None:
        """Let writes stop after `size` bytes."""
        self.ills["pwritev"] = (times, lambda: size)

    def recover(self) -> None:
        self.ills.clear()

    def _ill(self, call: str) -> int | None:
        times, act = self.ills.get(call, (0, lambda: 0))
        if times <= 0:
            return None
        self.ills[call] = (times - 1, act)
        return act()

    def create(self, path: Path) -> int:
        self._ill("create")
        return super().create(path)

    def open(self, path: Path) -> int:
        self._ill("open")
        return super().open(path)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self._ill("pread")
        return super().pread(fd, size, pos)

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        size = self._ill("pwritev")
        if size is not None:
            return super().pwritev(fd, [b"".join(buffers)[:size]], pos)
        return super().pwritev(fd, buffers, pos)

    def sync_data(self, fd: int) -> None:
        """Fails *after* the bytes were written: they may be there."""
        self._ill("sync_data")
        self.syncs += 1
        super().sync_data(fd)

    def sync_directory(self, path: Path) -> None:
        self._ill("sync_directory")
        super().sync_directory(path)

    def unlink(self, path: Path) -> None:
        self._ill("unlink")
        super().unlink(path)
