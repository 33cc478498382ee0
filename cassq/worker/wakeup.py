"""Waking a thread that waits: from other threads, from a signal handler, and by signals themselves.

A signal that comes just before a system call does not end it: Python runs the handler afterwards.
So the one that waits for signals also waits for a descriptor in which Python writes at once.
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
    """One thread waits on it, any other can wake that thread; for a `with` block.

    Takes no lock, so a signal handler may call `give` at any moment, also after the block.
    """

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        for end in (self._near, self._far):
            end.setblocking(False)

    def give(self) -> None:
        """Wake it, or keep it from sleeping."""
        try:
            self._far.send(b"\0")
        except OSError:
            return  # it is full, so that it wakes anyway; or closed, and nobody waits

    def fileno(self) -> int:
        """Where to write to wake it."""
        return self._far.fileno()

    def wait(self, seconds: float, others: Sequence[int] = ()) -> list[int]:
        """Wait for at most so long; it ends early when it is woken, or one of `others`, which are
        descriptors, can be read. Returns those of them that can."""
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
    """Inside, `take` is called for each of these signals, which also wake `wakeup`. Only the main
    thread can handle signals: in others this does nothing."""
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
    """End the process at once, as SIGINT does that nobody handles."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
