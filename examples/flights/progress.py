"""What is shown while the processes work: one line that changes, or a line a second in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from popping import Batch


class Progress:
    """The counts of a run, and the line that shows them."""

    def __init__(self, flights: int, groups: Sequence[str], out: TextIO = sys.stdout) -> None:
        self.pushed = 0
        self.groups = dict.fromkeys(groups, Batch(0, 0, 0, 0))
        self._flights = flights
        self._out = out
        self._start = time.monotonic()
        self._next = 0.0
        self._live = out.isatty()

    def add(self, group: str, batch: Batch) -> None:
        """Count what became of a batch."""
        sums = (a + b for a, b in zip(self.groups[group], batch, strict=True))
        self.groups[group] = Batch(*sums)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._start

    def show(self, *, at_once: bool = False) -> None:
        """Show the line, unless that was done a moment ago."""
        if self.seconds < self._next and not at_once:
            return
        self._next = self.seconds + (0.1 if self._live else 1.0)
        if self._live:
            self._out.write(f"\r\x1b[2K{self._line()}")
        else:
            self._out.write(f"{self._line()}\n")
        self._out.flush()

    def say(self, event: str) -> None:
        """Something that happened, on a line that stays."""
        self._out.write("\r\x1b[2K" if self._live else "")
        self._out.write(f"{self.seconds:5.1f} s  {event}\n")
        self.show(at_once=self._live)

    def finish(self) -> None:
        """The last state of the line, and a new line."""
        self.show(at_once=True)
        self._out.write("\n" if self._live else "")

    def _line(self) -> str:
        share = self.pushed / self._flights
        popped = "  ".join(f"{name} {sums.popped:,}" for name, sums in self.groups.items())
        again = sum(sums.redelivered for sums in self.groups.values())
        return (
            f"{self.seconds:5.1f} s  pushed {self.pushed:,} ({share:.0%})"
            f"  popped: {popped}  redelivered {again:,}"
        )
