"""Room on the disk: if free space falls below a limit, writes are refused until there is more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cassq.base.os_errors import translated
from cassq.sidecar.engine.port import Space


def space_of(path: Path) -> Space:
    """The space of the disk that holds a path."""
    with translated(f"measuring the space at {path}"):
        stat = os.statvfs(path)
    return Space(stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)


# Written by opening, besides the tables that it makes from the log.
_OPENING_BYTES = 1 << 20


class Room:
    """Decides whether there is room. free_min: bytes. Once free space was below it, a quarter more
    is required, so that the answer does not flip with every file."""

    def __init__(self, probe: Callable[[], Space], free_min: int) -> None:
        self._probe = probe
        self.free_min = free_min
        self._short = False

    def space(self) -> Space:
        """The disk's space now."""
        return self._probe()

    def exhausted(self) -> None:
        """Record that the disk refused a write: there is no room until a quarter more than the
        limit is free, whatever the disk reports meanwhile."""
        self._short = True

    def short(self) -> bool:
        """Whether there is too little. Cost: a system call."""
        if self.free_min:
            free = self._probe().free
            self._short = free < self.free_min + self._short * self.free_min // 4
        return self.free_min > 0 and self._short

    def is_back(self, directory: Path) -> bool:
        """Whether an engine that ran out of room could be reopened: enough is free, and can be
        allocated. Cost: system calls; if enough is free, a temporary file as large as the log."""
        if self.short():
            return False
        try:
            logs = sum(each.stat().st_size for each in (directory / "rocksdb").glob("*.log"))
        except FileNotFoundError:
            return False  # a log was just removed; the caller asks again
        size_bytes = logs + _OPENING_BYTES
        return self.space().free >= size_bytes and _can_be_had(directory / "room", size_bytes)


def _can_be_had(place: Path, size_bytes: int) -> bool:
    """Whether a file of this size can be made: free bytes alone do not show quotas, nor a lack of
    inodes. The file is always removed."""
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            place.unlink()
            os.posix_fallocate(descriptor, 0, size_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True
