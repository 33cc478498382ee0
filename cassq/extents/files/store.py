"""The files store: an extent is one append-only file that one process writes and syncs.

The first page of the file identifies the pipe; a file beside it holds words that all processes
share through `mmap`. The *published end* (seq and byte position, kept twice with a check word) is
stored only after the bytes below it were synced, so it is a durable lower bound of what is
acknowledged, even after a power cut. A sealer sets the *seal flag* before it looks for the end; the
writer looks at the flag after each sync and before it acknowledges. So for every append either the
sealer sees the bytes or the writer sees the flag: even a writer that was stopped for an hour is
sealed exactly.

Invariants:
1. Bytes below the published end are synced (durability "disk") and never change.
2. A write or sync that failed or fell short is never repeated on the file: the kernel may consider
   lost pages clean. The writer is dead from then on, and the extent is sealed at its last end.
3. No file is ever truncated.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest

from cassq.base.clock import Clock
from cassq.base.os_errors import explained, translated
from cassq.errors import (
    BackendUnavailableError,
    ConfigError,
    CorruptionError,
    StorageFullError,
)
from cassq.extents.files.disk import PAGE, Disk, Words
from cassq.extents.files.pipe_file import (
    BOOT,
    FAILED,
    LAST_APPEND_MS,
    SEALED,
    UNSYNCED,
    FileReader,
    FileWriter,
    identity_page,
    publish,
    published_end,
    read_identity,
)
from cassq.extents.port import (
    ExtentInfo,
    ExtentMissingError,
    ExtentStore,
    ExtentWriter,
    missing,
)
from cassq.message.frames import Place

_draft_numbers = itertools.count(1)
logger: logging.Logger = logging.getLogger("cassq")

SUFFIX = ".pipe"
WORDS = ".page"
DRAFT = ".draft"
CREATIONS_MAX = 20
SEQ_MAX = (1 << 63) - 1


def check_durability(durability: str) -> None:
    """ConfigError unless `durability` is "disk" or "os"."""
    if durability not in ("disk", "os"):
        raise ConfigError(
            f"durability {durability!r} is unknown",
            hint="with 'disk', messages are synced before they are acknowledged; with 'os', they"
            " survive a killed process, but not a power cut",
        )


def _is_identity(page: bytes, pipe_id: str) -> bool:
    """Whether a first page is undamaged and belongs to this pipe."""
    try:
        read_identity(page, pipe_id)
    except CorruptionError:
        return False
    return True


class FilesStore(ExtentStore):
    """Extents as files `<pipe id>.pipe` in one directory."""

    def __init__(self, directory: Path, clock: Clock, *, durability: str, disk: Disk) -> None:
        check_durability(durability)
        self._directory = directory
        self._clock = clock
        self._disk = disk
        self._syncs = durability == "disk"
        self._boot = int(xxh3_64_intdigest(clock.boot_id().encode()))

    def path(self, pipe_id: str) -> Path:
        return self._directory / (pipe_id + SUFFIX)

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        page = identity_page(pipe_id, queue_name)
        with translated(f"creating pipe {pipe_id}"):
            for _ in range(CREATIONS_MAX):
                writer = self._try_create(pipe_id, page)
                if writer is not None:
                    return writer
        raise BackendUnavailableError(f"pipe {pipe_id} was removed repeatedly")

    def _try_create(self, pipe_id: str, page: bytes) -> FileWriter | None:
        """Make a pipe file under a draft name, then rename it; None if another process removed the
        draft because it took its maker for dead.

        Under its final name a file always has a whole header, a page and, while its writer lives,
        a lock. So if one of these is missing, no writer is about to write to the file.
        """
        disk, path = self._disk, self.path(pipe_id)
        draft, words_path = path.with_suffix(DRAFT), path.with_suffix(WORDS)
        fd = disk.create(draft)
        words: Words | None = None
        named = False
        try:
            disk.lock(fd)
            self._write_page(fd, page)
            words = self._create_words(words_path)
            words[BOOT] = self._boot
            words[UNSYNCED] = 0 if self._syncs else 1
            words[LAST_APPEND_MS] = self._clock.boot_ms()
            publish(words, Place(0, PAGE))
            disk.rename(draft, path)
            named = True
            if self._syncs:
                disk.sync_directory(self._directory)
        except BaseException as exc:
            disk.close(fd)
            taken = isinstance(exc, FileNotFoundError) and not disk.exists(draft)
            disk.unlink(draft)
            if named:
                disk.unlink(path)
            if words is not None:  # else they may belong to another process
                disk.unlink(words_path)
            if taken:
                return None
            raise
        return FileWriter(disk, fd, words, path.name, self._clock, syncs=self._syncs)

    def _write_page(self, fd: int, page: bytes) -> None:
        if self._disk.pwritev(fd, [page], 0) != PAGE:
            raise StorageFullError("a short write")
        if self._syncs:
            self._disk.sync(fd)

    def _create_words(self, path: Path) -> Words:
        """A new page of words, allocated on disk: a hole could not be filled on a full disk."""
        fd = self._disk.create(path)
        try:
            self._write_page(fd, bytes(PAGE))
            return self._disk.map_words(fd)
        finally:
            self._disk.close(fd)

    def _open_words(self, pipe_id: str) -> Words:
        """The shared words of a pipe; recreated if a power cut lost them (durability "os")."""
        path = self.path(pipe_id).with_suffix(WORDS)
        try:
            fd = self._disk.open(path)
        except FileNotFoundError:
            self._replace_words(path)
            fd = self._disk.open(path)
        try:
            if self._disk.size(fd) < PAGE:
                self._disk.pwritev(fd, [bytes(PAGE)], 0)
            return self._disk.map_words(fd)
        finally:
            self._disk.close(fd)

    def _replace_words(self, path: Path) -> None:
        """Recreate lost words, unless another process is faster."""
        draft = path.with_name(f"{path.stem}.{next(_draft_numbers)}.{os.getpid()}{DRAFT}")
        try:
            self._create_words(draft)
            self._disk.rename(draft, path)
        except (FileExistsError, FileNotFoundError):
            # Another process made the words, or took the draft's maker for dead and removed it.
            self._disk.unlink(draft)
            if not self._disk.exists(path):
                raise

    def reader(self, pipe_id: str) -> FileReader:
        fd = self._open(pipe_id)
        try:
            return self._reader(fd, pipe_id)
        except BaseException:
            self._disk.close(fd)
            raise

    def _reader(self, fd: int, pipe_id: str) -> FileReader:
        with translated(f"opening pipe {pipe_id}"):
            read_identity(self._disk.pread(fd, PAGE, 0), pipe_id)
            words = self._open_words(pipe_id)
            if published_end(words) is None:
                self._open(pipe_id, close=True)  # fails if it was dropped since it was opened
            return FileReader(
                self._disk, fd, words, pipe_id, earlier_boot=words[BOOT] != self._boot
            )

    def seal(self, pipe_id: str) -> Place:
        fd = self._open(pipe_id)
        try:
            reader = self._reader(fd, pipe_id)
            with translated(f"sealing {pipe_id}"):
                reader.words[SEALED] = 1
                start = reader.published()
                same_boot = reader.words[BOOT] == self._boot
                if start.pos > PAGE and reader.words[UNSYNCED] and not same_boot:
                    # A power cut may have lost unsynced bytes: only a full walk shows that.
                    start = Place(0, PAGE)
                end = start if reader.words[FAILED] and same_boot else reader.walk(start)
                self._disk.sync(fd)
            return end
        finally:
            self._disk.close(fd)

    def salvage_reader(self, pipe_id: str) -> FileReader:
        fd = self._open(pipe_id)
        try:
            with translated(f"opening pipe {pipe_id}"):
                return self._salvage(fd, pipe_id)
        except BaseException:
            self._disk.close(fd)
            raise

    def _salvage(self, fd: int, pipe_id: str) -> FileReader:
        words = self._open_words(pipe_id)
        earlier = words[BOOT] != self._boot
        return FileReader(self._disk, fd, words, pipe_id, earlier_boot=earlier)

    def missing_end(self, pipe_id: str, *, fence: bool = False) -> Place | None:
        path = self.path(pipe_id).with_suffix(WORDS)
        with translated(f"looking for pipe {pipe_id}"):
            try:
                fd = self._disk.open(path)
            except FileNotFoundError:
                return None
            try:
                if self._disk.size(fd) < PAGE:
                    return None
                words = self._disk.map_words(fd)
            finally:
                self._disk.close(fd)
        if fence:
            words[SEALED] = 1
        return published_end(words)

    def restore_identity(self, pipe_id: str, queue_name: str) -> bool:
        fd = self._open(pipe_id)
        try:
            with translated(f"restoring the header of pipe {pipe_id}"):
                page = self._disk.pread(fd, PAGE, 0)
                if len(page) < PAGE or _is_identity(page, pipe_id):
                    return False
                reader = self._salvage(fd, pipe_id)
                first = Place(0, PAGE)
                if reader.walk(first) == first and reader.after_damage(first, SEQ_MAX) is None:
                    return False  # nothing in it belongs to this pipe
                self._write_page(fd, identity_page(pipe_id, queue_name))
                return True
        finally:
            self._disk.close(fd)

    def last_write_ms(self, pipe_id: str) -> int | None:
        with translated(f"looking at pipe {pipe_id}"):
            try:
                return self._disk.written_ms(self.path(pipe_id))
            except FileNotFoundError:
                return None

    def abandoned(self, pipe_id: str) -> bool:
        try:
            fd = self._open(pipe_id)
        except ExtentMissingError:
            return True
        try:
            return self._disk.lock(fd)
        finally:
            self._disk.close(fd)

    def drop(self, pipe_ids: Sequence[str]) -> None:
        with translated("removing pipes"):
            for pipe_id in pipe_ids:
                path = self.path(pipe_id)
                self._fence(pipe_id)
                self._disk.unlink(path)
                self._disk.unlink(path.with_suffix(WORDS))
            if pipe_ids and self._syncs:
                self._disk.sync_directory(self._directory)

    def extents(self, known: Collection[str] = ()) -> Iterator[ExtentInfo]:
        with translated("looking for pipes"):
            names = sorted(self._disk.names(self._directory))
        for name in names:
            pipe_id = name.removesuffix(SUFFIX)
            with translated(f"looking at {name}"):
                if name.endswith(DRAFT):
                    self._remove_draft(name)
                elif name.endswith(WORDS):
                    self._remove_orphaned(name)
            if pipe_id == name or pipe_id in known:
                continue
            try:
                fd = self._open(pipe_id)
            except ExtentMissingError:
                continue  # retired since the listing
            try:
                with translated(f"looking at {name}"):
                    queue_name = read_identity(self._disk.pread(fd, PAGE, 0), pipe_id)
                    info = ExtentInfo(pipe_id, queue_name, self._disk.lock(fd))
                yield info
            except CorruptionError as exc:
                logger.warning("%s; the file is not changed", exc.message)
            finally:
                self._disk.close(fd)

    def _remove_orphaned(self, name: str) -> None:
        """Remove words without a pipe, which a crash during a drop left. A pipe in the making has
        a draft, which then becomes the pipe: checking in this order always finds one of them."""
        path = self._directory / name
        for other in (path.with_suffix(DRAFT), path.with_suffix(SUFFIX)):
            if self._disk.exists(other):
                return
        self._disk.unlink(path)

    def _remove_draft(self, name: str) -> None:
        """Remove a draft whose maker died; if it lives after all, its rename fails and it
        retries."""
        path = self._directory / name
        try:
            fd = self._disk.open(path)
        except FileNotFoundError:
            return
        try:
            if self._disk.lock(fd):
                self._disk.unlink(path)
        finally:
            self._disk.close(fd)

    def close(self) -> None:
        """Nothing is held between calls."""

    def _fence(self, pipe_id: str) -> None:
        """Keep a writer that still has the file open from acknowledging anything more."""
        try:
            reader = self.reader(pipe_id)
        except (ExtentMissingError, CorruptionError):
            return  # gone, or never whole
        reader.words[SEALED] = 1
        reader.close()

    def _open(self, pipe_id: str, *, close: bool = False) -> int:
        try:
            fd = self._disk.open(self.path(pipe_id))
            if close:
                self._disk.close(fd)
            return fd
        except FileNotFoundError as exc:
            raise missing(pipe_id, "file") from exc
        except OSError as exc:
            raise explained(exc, f"opening pipe {pipe_id}") from exc
