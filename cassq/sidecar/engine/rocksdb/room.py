"""Room on the disk: below a limit of free space nothing is taken until there is more again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cassq.base.os_errors import translated
from cassq.sidecar.engine.port import Space


def space_of(path: Path) -> Space:
    """The room on the disk that a path is on."""
    with translated(f"looking for space at {path}"):
        told = os.statvfs(path)
    return Space(told.f_bavail * told.f_frsize, told.f_blocks * told.f_frsize)


# What opening writes beside the tables that it makes of the log.
_OPENING_BYTES = 1 << 20


class Room:
    """Whether there is room. free_min: bytes; from there on a quarter more is needed to take
    anything again, so that it does not change with every file that comes and goes."""

    def __init__(self, probe: Callable[[], Space], free_min: int) -> None:
        self._probe = probe
        self.free_min = free_min
        self._short = False

    def space(self) -> Space:
        """What the disk says now."""
        return self._probe()

    def exhausted(self) -> None:
        """The disk refused a write: from now on there is too little until there is a quarter more
        than the limit, whatever the disk tells meanwhile."""
        self._short = True

    def short(self) -> bool:
        """Whether there is too little. Cost: a call of the system."""
        if self.free_min:
            free = self._probe().free
            self._short = free < self.free_min + self._short * self.free_min // 4
        return self.free_min > 0 and self._short

    def is_back(self, directory: Path) -> bool:
        """Whether an engine that found none could be opened anew: there is enough, and it can be
        had. Cost: calls of the system; where there is enough, a file as large as the log is made
        for a moment."""
        if self.short():
            return False
        try:
            logs = sum(each.stat().st_size for each in (directory / "rocksdb").glob("*.log"))
        except FileNotFoundError:
            return False  # a log goes right now; there is another look
        size_bytes = logs + _OPENING_BYTES
        return self.space().free >= size_bytes and _can_be_had(directory / "room", size_bytes)


def _can_be_had(place: Path, size_bytes: int) -> bool:
    """Whether a file of this size can be made: free bytes alone tell neither of quotas nor of a
    file system that has no more files to give. Nothing is left of it, however this ends."""
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
