"""Small disks: file systems of some megabytes in memory, which can be filled and freed.

A `SmallDisk` is any that is mounted. A `PrivateDisk` is mounted for the server alone that uses it,
in a mount namespace, and lives as long as the process that holds that: it outlives the server, and
goes with ours, so nothing is left, however the tests end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from cassq.base.clock import Stopwatch
from tests.servers.parts.errors import MissingServerError, ServerFailedError
from tests.servers.parts.node import keep, pause

_HOLD_SECONDS_MAX = 20.0
_POLL_SECONDS = 0.01


class SmallDisk:
    """A tmpfs of a few megabytes, which can be filled and freed."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @property
    def _filler(self) -> Path:
        return self.place / "filler"

    def fill(self) -> None:
        """Take every byte that is left."""
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            for size in (65536, 4096, 1):
                with contextlib.suppress(OSError):
                    while os.write(descriptor, bytes(size)):
                        continue
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """How much is left for whoever writes."""
        space = os.statvfs(self.place)
        return space.f_bavail * space.f_frsize

    def free(self) -> None:
        """Give back what `fill` took; harmless when it took nothing."""
        self._filler.unlink(missing_ok=True)


class PrivateDisk(SmallDisk):
    """A tmpfs of its own for one server, which sees it at `mounted`."""

    def __init__(self, mounted: Path, size_bytes: int) -> None:
        """Not there yet: see `start`."""
        super().__init__(mounted)
        self.mounted = mounted
        self._size_bytes = size_bytes
        self._holder: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Mount it, empty. Raises MissingServerError where that cannot be had."""
        if why := obstacle():
            raise MissingServerError(f"no disk of its own: {why}")
        self.mounted.mkdir(parents=True, exist_ok=True)
        log_file = self.mounted.with_name(f"{self.mounted.name}.log")
        mount = f'mount -t tmpfs -o size={self._size_bytes} tmpfs "$0" && exec sleep infinity'
        with log_file.open("ab") as log:
            self._holder, self._pid = keep(
                ["unshare", "--mount", "sh", "-c", mount, str(self.mounted)],
                self.mounted.parent,
                log,
            )
        seen = Path(f"/proc/{self._pid}/root{self.mounted}")
        watch = Stopwatch()
        while not self._pid or not _is_mounted(seen, self.mounted):
            if not self._pid or self._holder.poll() is not None:
                raise ServerFailedError(f"no disk: {log_file.read_text()}")
            if watch.seconds() > _HOLD_SECONDS_MAX:
                raise ServerFailedError(f"{self.mounted} was not mounted")
            pause(_POLL_SECONDS)
        # The way to it from outside.
        self.place = seen

    def stop(self) -> None:
        """Give it up, with all that is on it. Harmless when done twice."""
        if self._holder is not None:
            self._holder.terminate()  # the kernel ends its child with it
            self._holder.wait()
            self._holder = None

    def entry(self) -> list[str]:
        """What the command of a server begins with to see it."""
        return ["nsenter", f"--mount=/proc/{self._pid}/ns/mnt", "--"]


def obstacle() -> str:
    """What stands in the way of private disks; "" if nothing."""
    for tool in ("unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian and Ubuntu: apt install util-linux mount)"
    if os.geteuid() != 0:
        return "only root may mount"
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _is_mounted(seen: Path, outside: Path) -> bool:
    """Whether another file system is seen there than from outside."""
    try:
        return seen.stat().st_dev != outside.stat().st_dev
    except OSError:
        return False
