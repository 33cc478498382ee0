"""Waking a thread that waits: from other threads, from a signal handler, and by signals themselves.

A signal that comes just before a system call does not end the call, and Python runs the handler
only afterwards. So a thread that waits for signals also waits on a descriptor, to which Python
writes at once.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

ENDING = (signal.SIGTERM, signal.SIGINT)


class Wakeup:
    """One thread waits on it, and any other can wake that thread; use it in a `with` block.

    Takes no lock, so a signal handler may call `give` at any time, even after the block.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    def give(self) -> None:
        """Wake the thread that waits; or, if none does, make the next `wait` return at once."""
        try:
            self._far.send(b"\0")
        except OSError:
            return  # full, so the thread wakes anyway; or closed, so no thread waits

    def fileno(self) -> int:
        """The descriptor to write to, to wake the thread."""
        return self._far.fileno()

    def wait(self, seconds: float, others: Sequence[int] = ()) -> list[int]:
        """Wait until it is woken, or one of `others` (descriptors) can be read; at most for these
        seconds. Returns the descriptors that can be read."""
        near = self._near.fileno()
        ready, _, _ = select.select([near, *others], [], [], max(0.0, seconds))
        if near in ready:
            self._clear()
        return [fd for fd in ready if fd != near]

    def _clear(self) -> None:
        try:
            while self._near.recv(4096):
                continue
        except BlockingIOError:
            return  # nothing is left

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._near.close()
        self._far.close()


@contextmanager
def handled(
    wakeup: Wakeup, take: Callable[[int], object], signals: Sequence[signal.Signals] = ENDING
) -> Iterator[None]:
    """Inside the block, each of these signals calls `take`, and wakes `wakeup`. Only the main
    thread can handle signals: in other threads this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former_fd = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    former = {each: signal.signal(each, lambda signum, _: take(signum)) for each in signals}
    try:
        yield
    finally:
        for signum, handler in former.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(former_fd)


class Stopper:
    """Takes signals: each calls `stop`, but a second SIGINT ends the process at once."""

    def __init__(self, stop: Callable[[], object]) -> None:
        self._stop = stop
        self._interrupted = False

    def __call__(self, signum: int) -> None:
        if signum == signal.SIGINT:
            if self._interrupted:
                interrupt_again()
            self._interrupted = True
        self._stop()


def interrupt_again() -> None:
    """End the process at once, as an unhandled SIGINT does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
