"""What a command that runs for long logs on standard error: a line for each, with its time, as text
or as JSON.

Messages may quote others: what could begin a line of its own, or move a cursor, is escaped.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from cassq.cli.ui.output import printable

LINE_MAX = 2000  # characters of a message, and of each line of a traceback


def log_as_daemon(*, as_json: bool) -> None:
    """Write logs so from now on."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(DaemonFormatter(as_json=as_json))


class DaemonFormatter(logging.Formatter):
    """As text, a traceback follows in lines that are indented; as JSON it is a field."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname.lower(), _cut(record.getMessage())
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        if not self._as_json:
            lines = [f"{at} {level}: {printable(message)}"]
            return "\n".join([*lines, *(f"    {printable(_cut(line))}" for line in trace)])
        content = {"at": at, "level": level, "message": message}
        if trace:
            content["traceback"] = "\n".join(map(_cut, trace))
        return json.dumps(content, ensure_ascii=False)


def _cut(text: str) -> str:
    return text if len(text) <= LINE_MAX else f"{text[:LINE_MAX]}... ({len(text)} characters)"
