"""Orders: what a process that a command has started is to do, and its end.

The first line of its standard input says it, as JSON. The input stays open as long as the command
lives: when it ends, so should the process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn


def read_orders() -> tuple[dict[str, Any], int]:
    """The orders, and a descriptor that ends with the command. Standard input is empty from now
    on. If the command is gone already, the process ends."""
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
    """End at once, whatever threads still run."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it, or it was closed
    os._exit(code)
