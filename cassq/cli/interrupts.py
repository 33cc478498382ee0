"""Ctrl-C while the command starts: one line and exit code 130, even in the middle of an import.

Nothing is open until a verb begins, so the process may end at any instruction. An exception would
show a traceback, or be lost where the import system ignores exceptions of callbacks.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

EXIT_CODE = 130
MESSAGE = "interrupted"
_AS_JSON = '{"error": "interrupted", "hint": "", "kind": "KeyboardInterrupt"}'


def arm() -> None:
    """From now on Ctrl-C ends the process at once, unless the parent made it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def disarm() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again: open things may have to be closed."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(_signum: int, _frame: FrameType | None) -> None:
    line = _AS_JSON if "--json" in sys.argv else f"error: {MESSAGE}"
    try:
        os.write(2, f"{line}\n".encode())
    finally:  # also where standard error is closed
        os._exit(EXIT_CODE)
