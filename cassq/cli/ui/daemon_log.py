"""What a command that runs for long logs on standard error: a line for each, with its time, as text
or as JSON.

Messages may quote others: what could begin a line of its own, or move a cursor, is escaped.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from cassq.base.printing import cut, printable

LINE_MAX = 2000  # characters of a message, and of each line of a traceback


def log_as_daemon(*, as_json: bool) -> None:
    """Write logs so from now on."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(DaemonFormatter(as_json=as_json))


class DaemonFormatter(logging.Formatter):
    """As text, a traceback follows in lines that are indented; as JSON it is a field, as is what
    the record has in `fields`."""

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
