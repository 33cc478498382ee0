"""Doorbells: how a waiting popper learns at once that something was pushed.

A doorbell is a hint: a ring may be lost or spurious, so a waiter also checks for messages four
times a second. The embedded doorbell has a FIFO for each waiter, and for each queue a shared page,
in which waiters mark that they sleep: if none sleeps, ringing costs a read of that page.
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
from itertools import compress
from pathlib import Path

from cassq.base.clock import AutoResetEvent, Clock, Stopwatch
from cassq.base.os_errors import translated

SLOTS = 256
_PAGE = 4096
_NOBODY = bytes(SLOTS)
_SLOTS = range(SLOTS)
LOOK_AGAIN_SECONDS = 0.25
# Errors of systems that cannot lock a FIFO, such as macOS: waiters get no slot there.
_NO_LOCKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL}


class Waiter(abc.ABC):
    """Waits for pushes to a queue. Several threads may wait at once."""

    @abc.abstractmethod
    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        """Return when `ready()`, when the bell rang, or after about `seconds`."""

    @abc.abstractmethod
    def wake(self) -> None:
        """End the current wait, if there is one. Takes no lock that a wait holds, so that a signal
        handler may call it during a wait."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stop listening."""


class Doorbell(abc.ABC):
    """The doorbell of one queue."""

    @abc.abstractmethod
    def ring(self) -> None:
        """Wake all waiters. Cost without waiters: a memory read."""

    @abc.abstractmethod
    def listen(self) -> Waiter:
        """A new waiter for this doorbell."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what is held."""


class SharedWaiter(Waiter):
    """A waiter that several threads may share: one of them waits for the bell, and wakes the
    others whenever it wakes up."""

    def __init__(self) -> None:
        self._waiting_alone = threading.Lock()
        self._others: list[AutoResetEvent] = []

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        if self._waiting_alone.locked():
            self._wait_beside(seconds, ready)
            return
        try:
            with self._waiting_alone:
                self._wait_alone(seconds, ready)
        finally:
            for other in list(self._others):
                other.set()

    def _wait_beside(self, seconds: float, ready: Callable[[], bool]) -> None:
        event = AutoResetEvent()
        self._others.append(event)
        try:
            # Check again: the bell may have rung before the event was in the list.
            if self._waiting_alone.locked() and not ready():
                event.wait(min(seconds, LOOK_AGAIN_SECONDS))
        finally:
            self._others.remove(event)

    @abc.abstractmethod
    def _wait_alone(self, seconds: float, ready: Callable[[], bool]) -> None:
        """`wait`, for one thread at a time."""


class FifoDoorbell(Doorbell):
    """FIFOs and a shared page in `directory`, named after the queue."""

    def __init__(self, directory: Path, queue_id: str, clock: Clock) -> None:
        self._directory = directory
        self._queue_id = queue_id
        self._clock = clock
        self._writers: dict[int, int] = {}  # slot → its FIFO, opened for writing
        self._mutex = threading.Lock()
        with translated("opening a doorbell"):
            path = directory / f"{queue_id}.bell"
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                if os.fstat(fd).st_size < _PAGE:
                    # Written out, because a hole could not be filled on a full disk.
                    os.pwrite(fd, bytes(_PAGE), 0)
                self._page = mmap.mmap(fd, _PAGE)
            finally:
                os.close(fd)

    def ring(self) -> None:
        page = self._page
        marks = page[:SLOTS]
        if marks == _NOBODY:
            return
        for slot in compress(_SLOTS, marks):
            page[slot] = 0
            self._wake(slot)

    def _wake(self, slot: int) -> None:
        # One thread at a time: if one closed a FIFO that another writes to, the byte would go
        # into whatever file has that descriptor by then.
        with self._mutex:
            if slot in self._writers and not self._pull(slot):
                self._let_go(slot)  # its waiter left; another may have come
            if slot not in self._writers:
                with contextlib.suppress(OSError):  # no waiter, or no file can be opened
                    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                    self._writers[slot] = os.open(self._path(slot), flags)
                    if not self._pull(slot):
                        self._let_go(slot)

    def _pull(self, slot: int) -> bool:
        """Write into a FIFO; False if no process reads it."""
        try:
            os.write(self._writers[slot], b"!")
        except BlockingIOError:
            return True  # rung often enough
        except OSError:
            return False
        return True

    def _let_go(self, slot: int) -> None:
        os.close(self._writers.pop(slot))

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
                # A file lock ends with its process, so the slot of a dead process is free.
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
                os.close(fd)  # its last waiter just left, and removed it
                continue
            return FifoWaiter(self._page, slot, fd, path)
        return PollingWaiter(self._clock)

    def _path(self, slot: int) -> Path:
        return self._directory / f"{self._queue_id}.{slot}"

    def close(self) -> None:
        """Close the FIFOs and the page. All waiters must be closed by then."""
        with self._mutex:
            self._page.close()
            for slot in list(self._writers):
                self._let_go(slot)


def _is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names this open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


class FifoWaiter(SharedWaiter):
    """Sleeps in poll(2) on its FIFO. Busy-waiting first was measured to be slower: a sleep that
    times out is less exact than one that is interrupted."""

    def __init__(self, page: mmap.mmap, slot: int, fd: int, path: Path) -> None:
        self._page = page
        self._slot = slot
        self._fd = fd
        self._path = path
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        super().__init__()
        self._guard = threading.Lock()
        self._waiting = False
        self._closed = False
        self._drain()

    def _wait_alone(self, seconds: float, ready: Callable[[], bool]) -> None:
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
        # If the guard is held, a wait is starting or ending: one that starts checks again before it
        # sleeps, or a quarter of a second later; one that ends needs no wake-up.
        if self._guard.acquire(blocking=False):
            try:
                if not self._closed:
                    with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
                        os.write(self._fd, b"!")
            finally:
                self._guard.release()

    def close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            if self._waiting:
                os.write(self._fd, b"!")  # the waiting thread closes it when it leaves
            else:
                self._leave()

    def _leave(self) -> None:
        """Remove the FIFO while its lock is held, then close it."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


class PollingWaiter(Waiter):
    """Checks every few milliseconds: for when no slot is free, and for stores without a bell."""

    def __init__(self, clock: Clock, pause: float = 0.005) -> None:
        self._clock = clock
        self._pause = pause

    def wait(self, seconds: float, ready: Callable[[], bool]) -> None:
        watch = Stopwatch()
        while not ready() and watch.seconds() < min(seconds, LOOK_AGAIN_SECONDS):
            self._clock.sleep(min(self._pause, seconds))

    def wake(self) -> None:
        """Nothing to do: it checks again in a moment."""

    def close(self) -> None:
        """Nothing is held."""


class PollingDoorbell(Doorbell):
    """The doorbell of one client where machines share nothing but the store: waiters learn of this
    client's pushes at once, and check for those of others every `pause` seconds."""

    def __init__(self, pause: float = 0.04) -> None:
        self._pause = pause
        self._listeners: set[AutoResetEvent] = set()
        self._mutex = threading.Lock()

    def ring(self) -> None:
        with self._mutex:
            for listener in self._listeners:
                listener.set()

    def listen(self) -> Waiter:
        listener = AutoResetEvent()
        with self._mutex:
            self._listeners.add(listener)
        return _ListeningWaiter(listener, self._pause, self._leave)

    def _leave(self, listener: AutoResetEvent) -> None:
        with self._mutex:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Wake all waiters."""
        self.ring()


class _ListeningWaiter(SharedWaiter):
    def __init__(
        self, listener: AutoResetEvent, pause: float, leave: Callable[[AutoResetEvent], None]
    ) -> None:
        super().__init__()
        self._event = listener
        self._pause = pause
        self._leave = leave
        self._closed = False

    def _wait_alone(self, seconds: float, ready: Callable[[], bool]) -> None:
        watch = Stopwatch()
        limit = min(seconds, LOOK_AGAIN_SECONDS)
        while not (self._closed or ready()):
            left = limit - watch.seconds()
            if left <= 0 or self._event.wait(min(left, self._pause)):
                break
        self._event.wait(0)  # discard a set event: the next wait checks first anyway

    def wake(self) -> None:
        self._event.set()

    def close(self) -> None:
        self._closed = True
        self._event.set()
        self._leave(self._event)
