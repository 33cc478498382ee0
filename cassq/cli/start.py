"""The start of the `cassq` process, before click, or anything else, is loaded."""

from __future__ import annotations

import gc
import sys

from cassq.cli import interrupts
from cassq.version import __version__

# How many new objects start a garbage collection; Python's own threshold is 700.
GARBAGE_OBJECTS = 50_000


def main() -> None:
    """Run the command. `cassq --version` alone is answered without loading the rest."""
    interrupts.arm()
    if sys.argv[1:] == ["--version"]:
        print(f"cassq {__version__}")  # noqa: T201 - click would cost more than all the rest
        return
    # A command loads some 500 modules and keeps them: collecting garbage would take a tenth longer.
    gc.set_threshold(GARBAGE_OBJECTS)
    from cassq.cli.main import main as command

    try:
        command()
    finally:
        # Nor does Python look through them as it exits, which took a fifth of a command's time.
        gc.freeze()
