"""The beginning of the `cassq` process: what happens before click, or anything else, is loaded."""

from __future__ import annotations

import sys

from cassq.cli import interrupts
from cassq.version import __version__


def main() -> None:
    """Run the command. `cassq --version` alone is answered without loading the rest."""
    interrupts.arm()
    if sys.argv[1:] == ["--version"]:
        print(f"cassq {__version__}")  # noqa: T201 - click would cost more than all the rest
        return
    from cassq.cli.main import main as command

    command()
