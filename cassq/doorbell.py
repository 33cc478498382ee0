"""Doorbells: how a waiting popper learns at once that something was pushed.

A doorbell is a hint: a ring may be lost or come for nothing, so a waiter looks again by itself
four times a second. The embedded one is a FIFO a waiter and one shared page a queue, on which a
waiter marks that it sleeps: ringing when nobody sleeps costs a look at that page.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import mmap
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from cassq.base.clock import Clock, Nudge, Stopwatch
from cassq.base.os_errors import translated

SLOTS = 256
_PAGE = 4096
_NOBODY = bytes(SLOTS)
LOOK_AGAIN_SECONDS = 0.25
# What a system answers on which a FIFO cannot be locked, as on macOS: nobody can have a slot there.
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL}


class Waiter(abc.ABC):
    """One who waits for pushes to a queue."""

    @abc.abstractmethod
    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Return when `ready()`, when the bell rang, or after about `seconds`."""

    @abc.abstractmethod
    def wake(self) -> None:
        """End the wait that there is, if there is one. Takes no lock that a wait holds, so that a
        signal's handler may call it in the middle of one."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Doorbell(abc.ABC):
    """The bell of one queue."""

    @abc.abstractmethod
    def ring(self) -> None:
        """Wake whoever waits. Cost when nobody does: a memory read."""

    @abc.abstractmethod
    def listen(self) -> Waiter:
        """A place to wait at."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is held."""


class FifoDoorbell(Doorbell):
    """FIFOs and a shared page in `directory`, named after the queue."""

    def __init__(self, directory: Path, queue_id: str, clock: Clock) -> None:
        self._directory = directory
        self._queue_id = queue_id
        self._clock = clock
        self._ropes: dict[int, int] = {}  # slot → its FIFO, opened for writing
        self._mutex = threading.Lock()
        with translated("opening a doorbell"):
            path = directory / f"{queue_id}.bell"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size < _PAGE:
                    # Written, not a hole, which could not be filled on a full disk.
                    os.pwrite(fd, bytes(_PAGE), 0)
                self._page = mmap.mmap(fd, _PAGE)
            finally:
                os.close(fd)

    def ring(self) -> None:
        page = self._page
        if page[:SLOTS] == _NOBODY:
            return
        for slot in range(SLOTS):
            if page[slot]:
                page[slot] = 0
                self._wake(slot)

    def _wake(self, slot: int) -> None:
        # One at a time: a rope let go by one thread must not be pulled by another, whose byte
        # would go into whatever file has got its number since.
        with self._mutex:
            if slot in self._ropes and not self._pull(slot):
                self._let_go(slot)  # that waiter left; another may have come
            if slot not in self._ropes:
                with contextlib.suppress(OSError):  # nobody there, or no file can be opened
                    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                    self._ropes[slot] = os.open(self._path(slot), flags)
                    if not self._pull(slot):
                        self._let_go(slot)

    def _pull(self, slot: int) -> bool:
        """Write into a FIFO; False when nobody reads it."""
        try:
            os.write(self._ropes[slot], b"!")
        except BlockingIOError:
            return True  # rung often enough
        except OSError:
            return False
        return True

    def _let_go(self, slot: int) -> None:
        os.close(self._ropes.pop(slot))

    def listen(self) -> Waiter:
        with translated("opening a doorbell"):
            return self._listen()

    def _listen(self) -> Waiter:
        for slot in range(SLOTS):
            path = self._path(slot)
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o644)
            try:
                fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                # An open file's lock ends with its process, so a slot of the dead is free.
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            except OSError as exc:
                os.close(fd)
                if exc.errno not in _NO_LOCKS:
                    raise
                return PollingWaiter(self._clock)
            if not _is_at(fd, path):
                os.close(fd)  # its last waiter left this moment, and took it along
                continue
            return FifoWaiter(self._page, slot, fd, path)
        return PollingWaiter(self._clock)

    def _path(self, slot: int) -> Path:
        return self._directory / f"{self._queue_id}.{slot}"

    def close(self) -> None:
        """Let the FIFOs and the page go; its waiters are closed before."""
        with self._mutex:
            self._page.close()
            for slot in list(self._ropes):
                self._let_go(slot)


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


class FifoWaiter(Waiter):
    """Sleeps in poll(2) on its FIFO. Looking hot first was measured, and was slower: a sleep that
    ends by itself is less exact than one that is ended."""

    def __init__(self, page: mmap.mmap, slot: int, fd: int, path: Path) -> None:
        self._page = page
        self._slot = slot
        self._fd = fd
        self._path = path
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        self._guard = threading.Lock()
        self._waiting = False
        self._closed = False
        self._drain()

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        with self._guard:
            if self._closed:
                return
            self._waiting = True
        try:
            self._wait(seconds, ready)
        finally:
            with self._guard:
                self._waiting = False
                if self._closed:
                    self._leave()
                else:
                    self._page[self._slot] = 0
                    self._drain()

    def _wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        self._page[self._slot] = 1
        if not (self._closed or ready()):
            self._poll.poll(max(1, round(min(seconds, LOOK_AGAIN_SECONDS) * 1000)))

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 4096)

    def wake(self) -> None:
        # If another holds the guard, it is at the beginning or the end of a wait: the one looks
        # again before it sleeps, or a quarter of a second later, the other has no need.
        if self._guard.acquire(blocking=False):
            try:
                if not self._closed:
                    with contextlib.suppress(BlockingIOError):  # full: it wakes
                        os.write(self._fd, b"!")
            finally:
                self._guard.release()

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if self._waiting:
                os.write(self._fd, b"!")  # who waits closes it on his way out
            else:
                self._leave()

    def _leave(self) -> None:
        """Take the FIFO away, while its lock is held, and let go of it."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


class PollingWaiter(Waiter):
    """Looks every few milliseconds: when no slot is free, and on stores without a bell."""

    def __init__(self, clock: Clock, pause: float = 0.005) -> None:
        self._clock = clock
        self._pause = pause

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        watch = Stopwatch()
        while not ready() and watch.seconds() < min(seconds, LOOK_AGAIN_SECONDS):
            self._clock.sleep(min(self._pause, seconds))

    def wake(self) -> None:
        """It looks again in a moment."""

    def close(self) -> None:
        """Nothing is held."""


class PollingDoorbell(Doorbell):
    """The bell of one client where nothing is shared with other machines but the store: who waits
    hears this client's pushes at once, and looks for those of others every `pause` seconds."""

    def __init__(self, pause: float = 0.04) -> None:
        self._pause = pause
        self._ears: set[Nudge] = set()
        self._mutex = threading.Lock()

    def ring(self) -> None:
        with self._mutex:
            for ear in self._ears:
                ear.give()

    def listen(self) -> Waiter:
        ear = Nudge()
        with self._mutex:
            self._ears.add(ear)
        return _ListeningWaiter(ear, self._pause, self._leave)

    def _leave(self, ear: Nudge) -> None:
        with self._mutex:
            self._ears.discard(ear)

    def close(self) -> None:
        """Wake whoever waits."""
        self.ring()


class _ListeningWaiter(Waiter):
    def __init__(self, ear: Nudge, pause: float, leave: Callable[[Nudge], None]) -> None:
        self._ear = ear
        self._pause = pause
        self._leave = leave
        self._closed = False

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        watch = Stopwatch()
        limit = min(seconds, LOOK_AGAIN_SECONDS)
        while not (self._closed or ready()):
            left = limit - watch.seconds()
            if left <= 0 or self._ear.wait(min(left, self._pause)):
                break
        self._ear.wait(0)  # who comes back looks anew

    def wake(self) -> None:
        self._ear.give()

    def close(self) -> None:
        self._closed = True
        self._ear.give()
        self._leave(self._ear)
