"""Stopping: SIGINT and SIGTERM as a wish, looked at where nothing is half done.

An exception raised by a signal at any instruction could fall between a claim and the popper's note
of it. So the handler only takes note, and raises `Stopped` where the command says that it may:
while it reads its input. A second signal ends the process at once, as if nothing was installed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from cassq.clock import wait_event

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - not an error
    """The user, or the system, wants the command to end."""


class Stop:
    """The wish to end, for a `with` block. signum: the signal that came, 0 while none has."""

    def __init__(self) -> None:
        self.signum: int = 0
        self._event = threading.Event()
        self._interruptible = False
        self._former: dict[int, Any] = {}

    @property
    def wanted(self) -> bool:
        return self.signum != 0

    @property
    def exit_code(self) -> int:
        """What a shell makes of a process that a signal ended."""
        return 128 + self.signum

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until the command shall end; True if it shall."""
        return wait_event(self._event, seconds)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
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

    def __enter__(self) -> Stop:
        # Only the main thread may take signals; elsewhere they stay with whoever has them.
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                self._former[signum] = signal.signal(signum, self._take)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._restore()

    def _restore(self) -> None:
        while self._former:
            signal.signal(*self._former.popitem())
