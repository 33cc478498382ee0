"""Warnings that strangers on the network can cause: short, on one line each, and few."""

from __future__ import annotations

import logging

from cassq.base.clock import Stopwatch
from cassq.base.printing import cut, printable

logger: logging.Logger = logging.getLogger("cassq")

LINES_MAX = 5  # of one kind
EACH_SECONDS = 10.0
SHOWN_MAX = 200


def short(text: str) -> str:
    """At most SHOWN_MAX characters of a text, without line breaks and control characters."""
    return printable(cut(text, SHOWN_MAX))


class _Kind:
    def __init__(self) -> None:
        self.since = Stopwatch()
        self.lines = 0
        self.left_out = 0


class RareLog:
    """Logs warnings: at most LINES_MAX of each kind in EACH_SECONDS, and then how many more there
    were."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    def say(self, kind: str, text: str, *values: object) -> None:
        """Log a warning, with shortened values. kind: the kind of warning."""
        self.flush()
        now = self._kinds.setdefault(kind, _Kind())
        if now.lines >= LINES_MAX:
            now.left_out += 1
            return
        now.lines += 1
        logger.warning(text, *(short(str(value)) for value in values))

    def flush(self) -> None:
        """Report the warnings that were left out in past periods; called every few seconds."""
        for kind, now in list(self._kinds.items()):
            if now.since.seconds() >= EACH_SECONDS:
                del self._kinds[kind]
                if now.left_out:
                    logger.warning("%s: %d more like these", kind, now.left_out)
