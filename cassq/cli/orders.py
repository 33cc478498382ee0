"""Orders: what a process that a command has started must do, and its end.

The orders are the first line of its standard input, as JSON. The input stays open as long as the
command lives; when it is closed, the process must end too.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn


def read_orders() -> tuple[dict[str, Any], int]:
    """The orders, and a descriptor that is closed when the command ends. Standard input is empty
    from now on. If the command is gone already, this ends the process."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 65_536)
        if not more:
            end_process(1)
        line += more
    lifeline = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    return json.loads(line), lifeline


def end_process(code: int) -> NoReturn:
    """End the process at once, even if threads still run."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # it has no reader, or was closed
    os._exit(code)
