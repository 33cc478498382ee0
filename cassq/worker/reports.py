"""Reports: what a worker's process says to its supervisor, as lines of JSON in a pipe.

    ready    it takes messages: the name of its popper
    beat     about every second: what it is doing, and its totals so far
    leaving  it takes no more messages, for this reason: another process should take its place
    failed   it cannot take messages: an error, with the traceback of the user's module if that
             raised it
    ended    it has settled or given back all its messages
    described  what its handler is, for a process that was only asked that

A process that took messages and ends without "ended" has died, whatever its exit code: a handler
may have ended it.
"""

from __future__ import annotations

import json
import os
import select
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cassq.errors import CassqError, UsageError

READY, BEAT, LEAVING, FAILED, ENDED = "ready", "beat", "leaving", "failed", "ended"
DESCRIBED = "described"
READ_BYTES = 65_536
_OURS = str(Path(__file__).resolve().parents[1])


class Reporter:
    """Writes reports, whole lines each. Thread-safe. fd: the pipe's end; processes that this one
    starts do not inherit it.

    If the supervisor does not read and the pipe is full, reports are dropped. Only the rest of a
    long report that is partly written waits for room. If the supervisor is gone, the worker learns
    that from its standard input.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)
        self._fd = fd
        self._mutex = threading.Lock()

    def send(self, report: str, **facts: Any) -> None:
        """Report. facts: must be JSON."""
        left = json.dumps({"report": report, **facts}).encode() + b"\n"
        with self._mutex:
            try:
                left = left[os.write(self._fd, left) :]
                while left:  # the rest of a long line: the other reports are of no use without it
                    select.select([], [self._fd], [])
                    left = left[os.write(self._fd, left) :]
            except (BlockingIOError, BrokenPipeError):
                return

    def failed(self, exc: BaseException, files: Mapping[str, Any]) -> None:
        """Report that nothing can be done because of this error. files: what was loaded."""
        if isinstance(exc, CassqError):
            error = {"message": exc.message, "hint": exc.hint, "exit_code": exc.exit_code}
            self.send(FAILED, **error, kind=type(exc).__name__, traceback="", files=files)
            return
        text = f"the handler's module raised {type(exc).__name__}: {exc}"
        trace = "".join(
            traceback.format_exception(exc.with_traceback(_user_frames(exc.__traceback__)))
        )
        error = {"message": text, "hint": "", "exit_code": UsageError.exit_code}
        self.send(FAILED, **error, kind=UsageError.__name__, traceback=trace, files=files)


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the first frames, which are cassq's and the import system's."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = file.startswith(_OURS) or "importlib" in file
        if not ours:
            break
        trace = trace.tb_next
    return trace


def files_of(exc: BaseException) -> list[str]:
    """The files that an error passed through, with that of a syntax error."""
    files = [frame.filename for frame in traceback.extract_tb(exc.__traceback__)]
    if isinstance(exc, SyntaxError) and exc.filename:
        files.append(exc.filename)
    return files


class ReportReader:
    """Reads the reports of one process. fd: the pipe's end, which it closes at its end."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd: int | None = fd
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """The reports that are there now."""
        while self.fd is not None:
            try:
                data = os.read(self.fd, READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                self.close()
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Read no more."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
