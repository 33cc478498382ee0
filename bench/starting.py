"""`python -m bench.starting`: what the command's start costs beside that of bare Python.

Both run in turn, so that what else the machine does meets both alike; each pair is compared by
itself. Processor time is what the operating system counted for the process that ended.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import click

BARE = (sys.executable, "-c", "pass")


class Cost(NamedTuple):
    """Of one process, in milliseconds."""

    wall_ms: float
    processor_ms: float


def cost_of(words: tuple[str, ...]) -> Cost:
    """Run a command to its end, its output thrown away; ValueError if it fails."""
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    began = time.perf_counter()
    pid = os.posix_spawn(words[0], words, os.environ, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    took = time.perf_counter() - began
    if status:
        raise ValueError(f"{' '.join(words)} ended with status {os.waitstatus_to_exitcode(status)}")
    return Cost(1000 * took, 1000 * (used.ru_utime + used.ru_stime))


def compared(words: tuple[str, ...], runs: int) -> list[str]:
    """Lines: the least and the median of the command, of bare Python, and of the differences."""
    pairs = [(cost_of(words), cost_of(BARE)) for _ in range(runs + 1)][1:]  # the first warms up
    lines = ["| in ms | least | median |", "|---|---:|---:|"]
    for name in Cost._fields:
        ours, bare = ([getattr(pair[which], name) for pair in pairs] for which in (0, 1))
        more = [mine - other for mine, other in zip(ours, bare, strict=True)]
        what = name.removesuffix("_ms")
        for who, values in (("command", ours), ("bare Python", bare), ("difference", more)):
            lines.append(f"| {who}, {what} | {min(values):.1f} | {statistics.median(values):.1f} |")
    return lines


@click.command()
@click.option("--runs", type=click.IntRange(1), default=40, show_default=True, help="Pairs.")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
def main(runs: int, words: tuple[str, ...]) -> None:
    """Compare the start of COMMAND, `cassq --version` by default, with `python -c pass`."""
    installed = Path(sys.executable).parent / "cassq"
    found = shutil.which(words[0]) if words else str(installed)
    if found is None or not Path(found).exists():
        raise click.ClickException(f"there is no command {words[0] if words else installed}")
    for line in compared((found, *(words[1:] or ("--version",))), runs):
        click.echo(line)


if __name__ == "__main__":
    main()
