"""The simulated disk: files, names and shared pages in memory, that forget at a power cut.

What was written and not synced may be on the platter or not, sector by sector, in the last or in
an earlier version; so may names that were made, changed or removed since their directory was
synced. A sync that fails may leave pages that the kernel calls clean though they were never
written. A process's death takes its open files and their locks, and nothing else.
"""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path

from cassq.extents.files.disk import PAGE, Disk
from tests.simulation.worlds.scheduler import Process

SECTOR = 512
VERSIONS_MAX = 6
SEVERAL_FRAMES = 4  # buffers: a header and a body each
PARTS = 3
_WORD = struct.Struct("<Q")


class Inode:
    """A file: `live` is what processes see, `platter` what is surely durable.

    dirty: sector → the versions that may have reached the platter since it was last synced.
    """

    __slots__ = ("dirty", "errors", "live", "locked_by", "platter", "seen_errors")

    def __init__(self) -> None:
        self.live = bytearray()
        self.platter = bytearray()
        self.dirty: dict[int, list[bytes]] = {}
        self.locked_by: OpenFile | None = None
        self.errors = 0
        self.seen_errors = 0

    def touch(self, first: int, last: int) -> None:
        """Bytes `first .. last` changed."""
        for sector in range(first // SECTOR, (last - 1) // SECTOR + 1):
            versions = self.dirty.setdefault(sector, [])
            versions.append(bytes(self.live[sector * SECTOR : (sector + 1) * SECTOR]))
            if len(versions) > VERSIONS_MAX:
                del versions[0]

    def settle(self) -> None:
        """All of it is on the platter."""
        platter, live = self.platter, self.live
        if len(platter) < len(live):
            platter.extend(bytes(len(live) - len(platter)))
        for sector in self.dirty:
            at = sector * SECTOR
            platter[at : at + SECTOR] = live[at : at + SECTOR]
        self.dirty.clear()

    def lose_pages(self, rng: random.Random) -> None:
        """A sync failed: some dirty sectors get there, some count as clean and never will."""
        for sector in list(self.dirty):
            fate = rng.random()
            if fate < 0.4:
                del self.dirty[sector]
            elif fate < 0.7:
                self._write_through(sector, bytes(self.live[sector * SECTOR :][:SECTOR]))
                del self.dirty[sector]

    def _write_through(self, sector: int, content: bytes) -> None:
        at = sector * SECTOR
        if len(self.platter) < at + len(content):
            self.platter.extend(bytes(at + len(content) - len(self.platter)))
        self.platter[at : at + len(content)] = content

    def cut_power(self, rng: random.Random, kept: float) -> None:
        """What is left of the file: of each unsynced sector, perhaps one of its versions."""
        for sector in sorted(self.dirty):
            if rng.random() < kept:
                self._write_through(sector, rng.choice(self.dirty[sector]))
        self.dirty.clear()
        self.live = bytearray(self.platter)
        self.locked_by = None
        self.errors = self.seen_errors = 0


class OpenFile:
    """An open file description: what a kernel lock belongs to."""

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        # An error that nobody was told of yet is told to the next who opens the file.
        self.seen_errors = inode.seen_errors

    def abandon(self) -> None:
        if self.inode.locked_by is self:
            self.inode.locked_by = None


class Platter:
    """One directory of files, and which of its names are durable."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        # Changes of names not yet synced, each of one call: name → file, or None when removed.
        self.pending: list[dict[str, Inode | None]] = []
        self.next_fd = 3

    def rename_entries(self, change: dict[str, Inode | None]) -> None:
        self._apply(self.names, change)
        self.pending.append(change)

    def sync_names(self) -> None:
        self.durable_names = dict(self.names)
        self.pending.clear()

    @staticmethod
    def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
        for name, inode in change.items():
            if inode is None:
                names.pop(name, None)
            else:
                names[name] = inode

    def cut_power(self) -> str:
        """Forget; what was kept is told."""
        rng = self.rng
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        kept_names = rng.choice((0.0, 0.5, 1.0))
        for change in self.pending:
            if rng.random() < kept_names:
                self._apply(self.durable_names, change)
        self.pending.clear()
        self.names = dict(self.durable_names)
        for name in sorted(self.names):
            self.names[name].cut_power(rng, kept)
        return f"kept {kept:.0%} of unsynced sectors, {kept_names:.0%} of names"


class SimWords:
    """A file's first page as shared words."""

    def __init__(self, process: Process, inode: Inode) -> None:
        self._process = process
        self._inode = inode

    def __getitem__(self, index: int) -> int:
        if index >= PAGE // _WORD.size:
            raise IndexError(index)
        self._process.point(1)
        return int(_WORD.unpack_from(self._inode.live, index * 8)[0])

    def __setitem__(self, index: int, value: int) -> None:
        self._process.point(1)
        _WORD.pack_into(self._inode.live, index * 8, value)
        self._inode.touch(index * 8, index * 8 + 8)


class SimDisk(Disk):
    """The disk as one process sees it: every call is a point, and may fail."""

    def __init__(self, process: Process, platter: Platter) -> None:
        self._process = process
        self._platter = platter
        self._files: dict[int, OpenFile] = {}

    def _call(self, what: str, *codes: int) -> None:
        """A point, and perhaps a failure with no effect."""
        self._process.point()
        if codes and self._process.fault(what):
            raise _error(self._process.rng.choice(codes))

    def make_directory(self, path: Path) -> None:
        self._call("mkdir")

    def create(self, path: Path) -> int:
        self._call("create", errno.ENOSPC, errno.EIO, errno.EMFILE)
        if path.name in self._platter.names:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        inode = Inode()
        self._platter.rename_entries({path.name: inode})
        return self._opened(inode)

    def open(self, path: Path) -> int:
        self._call("open", errno.EMFILE, errno.EIO)
        inode = self._platter.names.get(path.name)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return self._opened(inode)

    def _opened(self, inode: Inode) -> int:
        fd = self._platter.next_fd
        self._platter.next_fd += 1
        file = self._files[fd] = OpenFile(inode)
        self._process.files.add(file)
        return fd

    def _file(self, fd: int) -> OpenFile:
        if fd not in self._files:
            raise OSError(errno.EBADF, "bad file descriptor")
        return self._files[fd]

    def close(self, fd: int) -> None:
        if not self._process.alive:
            return  # its files are closed already; generators are closed late
        self._process.point(1)
        file = self._file(fd)
        file.abandon()
        self._process.files.discard(file)
        del self._files[fd]

    def size(self, fd: int) -> int:
        return len(self._file(fd).inode.live)

    def written_ms(self, path: Path) -> int:
        """A time after every write, which is all that the store promises."""
        self._call("stat", errno.EIO)
        if path.name not in self._platter.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return 1 << 62

    def unlinked(self, fd: int) -> bool:
        inode = self._file(fd).inode
        return all(inode is not named for named in self._platter.names.values())

    def pread(self, fd: int, size: int, pos: int) -> bytes:
        self._call("pread", errno.EIO)
        return bytes(self._file(fd).inode.live[pos : pos + size])

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        self._process.point()
        data = b"".join(buffers)
        written = len(data)
        if len(buffers) >= SEVERAL_FRAMES:
            self._write_in_parts(fd, data, pos)
        failing = self._process.fault("pwritev")
        if failing:
            written = self._process.rng.choice((0, 1, written // 2, len(buffers[0]), written))
        inode = self._file(fd).inode
        if len(inode.live) < pos + written:
            inode.live.extend(bytes(pos + written - len(inode.live)))
        inode.live[pos : pos + written] = data[:written]
        if written:
            inode.touch(pos, pos + written)
        if failing and (written in (0, len(data)) or self._process.rng.random() < 0.5):
            raise _error(self._process.rng.choice((errno.EIO, errno.ENOSPC)))
        return written

    def _write_in_parts(self, fd: int, data: bytes, pos: int) -> None:
        """The beginning of a long write is there before the rest, and others may see that."""
        inode, rng = self._file(fd).inode, self._process.rng
        for first in sorted(rng.randint(1, len(data)) for _ in range(PARTS)):
            if len(inode.live) < pos + first:
                inode.live.extend(bytes(pos + first - len(inode.live)))
            inode.live[pos : pos + first] = data[:first]
            inode.touch(pos, pos + first)
            self._process.point()

    def sync_data(self, fd: int) -> None:
        self._sync(fd, "fdatasync")

    def sync(self, fd: int) -> None:
        self._sync(fd, "fsync")

    def _sync(self, fd: int, what: str) -> None:
        self._process.point()
        file = self._file(fd)
        inode = file.inode
        if self._process.fault(what):
            inode.errors += 1
            inode.lose_pages(self._process.rng)
        if file.seen_errors < inode.errors:
            # Everyone who had the file open is told of a failed write-back, once.
            file.seen_errors = inode.seen_errors = inode.errors
            raise _error(errno.EIO)
        inode.settle()

    def sync_directory(self, path: Path) -> None:
        self._call("sync_directory", errno.EIO)
        self._platter.sync_names()

    def rename(self, path: Path, to: Path) -> None:
        """As the real one: a second name, then the first is taken away."""
        self._call("link", errno.EIO)
        names = self._platter.names
        if path.name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if to.name in names:
            raise FileExistsError(errno.EEXIST, "exists", str(to))
        self._platter.rename_entries({to.name: names[path.name]})
        self._call("unlink", errno.EIO)
        if path.name not in names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._platter.rename_entries({path.name: None})

    def unlink(self, path: Path) -> None:
        self._call("unlink", errno.EIO)
        if path.name in self._platter.names:
            self._platter.rename_entries({path.name: None})

    def exists(self, path: Path) -> bool:
        self._call("stat", errno.EIO)
        return path.name in self._platter.names

    def names(self, path: Path) -> list[str]:
        self._call("listdir", errno.EMFILE)
        return list(self._platter.names)

    def lock(self, fd: int) -> bool:
        self._process.point()
        file = self._file(fd)
        if file.inode.locked_by not in (None, file):
            return False
        file.inode.locked_by = file
        return True

    def map_words(self, fd: int) -> SimWords:
        self._process.point(1)
        return SimWords(self._process, self._file(fd).inode)


_REAL = {name for name in vars(Disk) if not name.startswith("_")} - set(vars(SimDisk))
if _REAL:
    raise AssertionError(f"the simulated disk would use the real one's {sorted(_REAL)}")


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
