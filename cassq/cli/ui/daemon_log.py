"""The log of a long-running command on standard error: one line per record, with its time, as text
or as JSON.

Messages may quote input: characters that could begin a new line, or move the cursor, are escaped.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from cassq.base.clock import AutoResetEvent, Stopwatch
from cassq.base.printing import cut, printable
from cassq.plurals import counted

LINE_MAX = 2000  # characters of a message, and of each line of a traceback
WAITING_MAX = 1000  # records that wait for a reader of standard error
END_SECONDS = 1.0  # how long the end of a process waits for that reader
_IDLE_SECONDS = 3600.0


def log_as_daemon(*, as_json: bool, waits: bool = True) -> None:
    """Log in this form from now on. waits: whether to wait for the reader of standard error if that
    is a full pipe; if not, lines that it does not read in time are dropped, and the log counts
    them."""
    handler = logging.lastResort
    if handler is None:
        return
    if not waits:
        logging.lastResort = handler = DroppingHandler(_write_error, handler.level)
    handler.setFormatter(DaemonFormatter(as_json=as_json))


def _write_error(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


class DroppingHandler(logging.Handler):
    """Writes records in its own thread, so that a thread that logs never waits. If too many records
    wait, new ones are dropped. write: writes a line, and may wait.
    """

    def __init__(self, write: Callable[[str], object], level: int) -> None:
        super().__init__(level)
        self._write = write
        self._waiting: deque[str] = deque()
        self._dropped = 0
        self._writing = False
        self._event = AutoResetEvent()
        self._thread = threading.Thread(target=self._run, name="cassq-log", daemon=True)
        self._thread.start()
        atexit.register(self.drain, END_SECONDS)

    def emit(self, record: logging.LogRecord) -> None:
        """Called with the handler's lock held."""
        if len(self._waiting) >= WAITING_MAX:
            self._dropped += 1
            return
        if self._dropped:
            count, self._dropped = self._dropped, 0
            what = f"{counted(count, 'line')} of the log dropped: standard error was not read"
            lost = (record.name, logging.WARNING, record.pathname, record.lineno, what, (), None)
            self._waiting.append(self.format(logging.LogRecord(*lost)))
        self._waiting.append(self.format(record))
        self._event.set()

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written, for `seconds` at most; returns whether it is."""
        watch, pause = Stopwatch(), threading.Event()
        while (self._waiting or self._writing) and watch.seconds() < seconds:
            pause.wait(0.005)
        return not (self._waiting or self._writing)

    def _run(self) -> None:
        while True:
            self._writing = True
            while self._waiting:
                try:
                    self._write(self._waiting.popleft() + "\n")
                except (OSError, ValueError):
                    continue  # standard error is closed
            self._writing = False
            self._event.wait(_IDLE_SECONDS)


class DaemonFormatter(logging.Formatter):
    """As text, indented lines with a traceback follow a record; as JSON the traceback is a field,
    and each entry of the record's `fields` is one too."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname.lower(), cut(record.getMessage(), LINE_MAX)
        text = self.formatException(record.exc_info) if record.exc_info else ""
        trace = [cut(line, LINE_MAX) for line in text.splitlines()]
        if not self._as_json:
            lines = [f"{at} {level}: {printable(message)}"]
            return "\n".join([*lines, *(f"    {printable(line)}" for line in trace)])
        content = {"at": at, "level": level, "message": message, **getattr(record, "fields", {})}
        if trace:
            content["traceback"] = "\n".join(trace)
        return json.dumps(content, ensure_ascii=False)
