"""A Python without what Linux alone has: with this folder on PYTHONPATH, so is every process.

It stands for macOS as far as the calls go that are there and not there: no `fdatasync`,
`posix_fallocate` and boot-time clock, no `/proc`, FIFOs that cannot be locked, and a full sync,
which this file system does not know. It changes nothing of cassq, and nothing else of the system:
what macOS does differently by the same call is not shown.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import time
from typing import Any

ABSENT: dict[Any, list[str]] = {
    os: [
        *("fdatasync", "posix_fallocate", "posix_fadvise", "pwritev", "preadv", "pipe2"),
        *("eventfd", "memfd_create", "copy_file_range", "pidfd_open", "sched_getaffinity"),
        *("sched_setaffinity", "O_TMPFILE", "O_DIRECT", "unshare", "setns", "splice"),
    ],
    time: ["CLOCK_BOOTTIME"],
    select: ["epoll"],
}
for module, names in ABSENT.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

# As macOS numbers them: there the raw monotonic clock runs on while the machine sleeps.
time.CLOCK_UPTIME_RAW = 8  # type: ignore[attr-defined]
fcntl.F_FULLFSYNC = 51  # type: ignore[attr-defined]

_flock = fcntl.flock


def flock(fd: Any, operation: int) -> None:
    """The system's, which knows no locks on FIFOs."""
    number = fd if isinstance(fd, int) else fd.fileno()
    if stat.S_ISFIFO(os.fstat(number).st_mode):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    _flock(fd, operation)


fcntl.flock = flock


def hide(event: str, arguments: tuple[Any, ...]) -> None:
    """There is no /proc: whatever opens something in it is told so."""
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        if path == "/proc" or path.startswith("/proc/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


sys.addaudithook(hide)
