"""Disks that fail as they are told to, and disks that write down what they did."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from cassq.extents.files.disk import Disk

T = TypeVar("T")
Rule = Callable[[], None]


def io_error() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ShakyDisk(Disk):
    """A real disk whose calls can be made to fail, to write short, or to let others in between.

    calls: every call that changes something or makes it durable, by name, in order.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: dict[str, Rule] = {}
        self.after: dict[str, Rule] = {}
        self.writes_at_most: int | None = None

    def fail(self, call: str, error: OSError) -> None:
        """Have the next call of that name fail, before it does anything."""

        def raise_once() -> None:
            del self.before[call]
            raise error

        self.before[call] = raise_once

    def fail_after(self, call: str, error: OSError) -> None:
        """Have the next call of that name fail, after it has done its work."""

        def raise_once() -> None:
            del self.after[call]
            raise error

        self.after[call] = raise_once

    def _do(self, name: str, call: Callable[[], T], *, note: bool = True) -> T:
        if note:
            self.calls.append(name)
        if name in self.before:
            self.before[name]()
        done = call()
        if name in self.after:
            self.after[name]()
        return done

    def create(self, path: Path) -> int:
        return self._do("create", lambda: Disk.create(self, path))

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        def write() -> int:
            most, self.writes_at_most = self.writes_at_most, None
            if most is None:
                return Disk.pwritev(self, fd, buffers, pos)
            return os.pwrite(fd, b"".join(buffers)[:most], pos)

        return self._do("pwritev", write)

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        return self._do("pread", lambda: Disk.pread(self, fd, size, pos), note=False)

    def sync_data(self, fd: int) -> None:
        self._do("sync_data", lambda: Disk.sync_data(self, fd))

    def sync(self, fd: int) -> None:
        self._do("sync", lambda: Disk.sync(self, fd))

    def sync_directory(self, path: Path) -> None:
        self._do("sync_directory", lambda: Disk.sync_directory(self, path))

    def rename(self, path: Path, to: Path) -> None:
        self._do("rename", lambda: Disk.rename(self, path, to))

    def unlink(self, path: Path) -> None:
        self._do("unlink", lambda: Disk.unlink(self, path))

    def lock(self, fd: int) -> bool:
        return self._do("lock", lambda: Disk.lock(self, fd), note=False)
