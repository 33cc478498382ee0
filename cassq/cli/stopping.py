"""Stopping: SIGINT and SIGTERM are a request, which is checked where nothing is half done.

A signal handler that raised at any instruction could do so between a claim and the popper's note of
it. So the handler only sets a flag, and raises `Stopped` only where the command allows it: while it
waits for its input. A second signal ends the process at once, as without a handler.

A signal that comes just before a system call does not end the call, and Python runs the handler
only afterwards. So long waits also wait on a descriptor, to which Python writes at once.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cassq.base.clock import Stopwatch, wait_event

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - not an error
    """The user, or the system, asked the command to end."""


class StopSignal:
    """A request to end, for a `with` block. signum: the signal that came, 0 while none has."""

    def __init__(self) -> None:
        self.signum: int = 0
        self._event = threading.Event()
        self._interruptible = False
        self._former: dict[int, Any] = {}
        self._signalled: int | None = None  # readable when a signal came
        self._ends: list[int] = []
        self._former_fd = -1

    @property
    def wanted(self) -> bool:
        return self.signum != 0

    @property
    def exit_code(self) -> int:
        """The exit code that a shell reports for a process that a signal ended."""
        return 128 + self.signum

    def wait(self, seconds: float) -> bool:
        """Wait this long, or until the command must end; True if it must."""
        if self._signalled is None or threading.current_thread() is not threading.main_thread():
            return wait_event(self._event, seconds)
        watch = Stopwatch()
        while not self.wanted and (left := seconds - watch.seconds()) > 0:
            self._select([], left)
        return self.wanted

    def wait_for_input(self, fd: int) -> None:
        """Wait until a descriptor has something to read, or has ended. Raises `Stopped` at a
        signal."""
        with self._interrupting():
            while not self._select([fd], None):
                continue

    def _select(self, fds: list[int], seconds: float | None) -> list[int]:
        """The descriptors that can be read; a signal ends the wait."""
        signalled = [] if self._signalled is None else [self._signalled]
        ready, _, _ = select.select([*fds, *signalled], [], [], seconds)
        if self._signalled in ready:
            os.read(signalled[0], 4096)
        return [fd for fd in fds if fd in ready]

    @contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Inside, a signal raises `Stopped` at once."""
        self._interruptible = True
        try:
            if self.wanted:
                raise Stopped
            yield
        finally:
            self._interruptible = False

    def _take(self, signum: int, _frame: FrameType | None) -> None:
        if self.wanted:
            self._restore()
            os.kill(os.getpid(), signum)
            return
        self.signum = signum
        self._event.set()
        if self._interruptible:
            raise Stopped

    def __enter__(self) -> StopSignal:
        # Only the main thread may set signal handlers; in other threads they stay as they are.
        if threading.current_thread() is threading.main_thread():
            self._signalled, write_end = self._ends = list(os.pipe())
            for end in self._ends:
                os.set_blocking(end, False)
            self._former_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
            for signum in SIGNALS:
                self._former[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()
        if self._ends:
            signal.set_wakeup_fd(self._former_fd)
            self._signalled = None
            while self._ends:
                os.close(self._ends.pop())

    def _restore(self) -> None:
        while self._former:
            signal.signal(*self._former.popitem())
