"""Reclaiming space: ranges of dropped extents are compacted, one pass after another.

A range delete only hides frames until a compaction reaches them, which may never happen. Extents of
one age lie side by side and are mostly dropped together, so those dropped since the last pass are
compacted in runs that no living extent interrupts.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Collection

from cassq.base.clock import AutoResetEvent, Stopwatch

logger: logging.Logger = logging.getLogger("cassq")

PASS_BYTES = 32 << 20  # this much dropped data starts a pass at once
PASS_SECONDS = 10.0  # after this time, any dropped data does
PAUSE_MIN_SECONDS = 0.5


def runs(dropped: Collection[bytes], living: Collection[bytes]) -> list[tuple[bytes, bytes]]:
    """The first and the last name of each run of dropped names without a living one in between."""
    ordered = sorted(living)
    found: list[tuple[bytes, bytes]] = []
    before = -1
    for name in sorted(dropped):
        at = bisect_left(ordered, name)
        if at == before:
            found[-1] = (found[-1][0], name)
        else:
            found.append((name, name))
        before = at
    return found


class Reclaim:
    """A thread that reclaims the space of dropped extents.

    It works at most half of the time: after a pass it waits as long as the pass took.

    compact: called with the first and the last name of a run. living: the names of living extents.
    """

    def __init__(
        self, compact: Callable[[bytes, bytes], None], living: Callable[[], Collection[bytes]]
    ) -> None:
        self._compact = compact
        self._living = living
        self._lock = threading.Lock()
        self._dropped: set[bytes] = set()
        self._dropped_bytes = 0
        self._pass = threading.Lock()
        self._event = AutoResetEvent()
        self._pause = AutoResetEvent()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to reclaim space."""
        self._thread = threading.Thread(target=self._run, name="cassq-reclaim", daemon=True)
        self._thread.start()

    def add(self, name: bytes, size_bytes: int) -> None:
        """Record a dropped extent."""
        with self._lock:
            self._dropped.add(name)
            self._dropped_bytes += size_bytes
            if self._dropped_bytes >= PASS_BYTES:
                self._event.set()

    def pass_now(self) -> int:
        """Reclaim the space of extents dropped so far; return their number. Cost: compactions."""
        with self._pass:
            with self._lock:
                dropped, self._dropped = self._dropped, set()
                self._dropped_bytes = 0
            for first, last in runs(dropped, self._living()):
                if self._closed:
                    break
                self._compact(first, last)
            return len(dropped)

    def stop(self) -> None:
        """Start no more compactions."""
        self._closed = True
        self._event.set()
        self._pause.set()

    def join(self) -> None:
        """Wait for the running compaction."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._event.wait(PASS_SECONDS)
            watch = Stopwatch()
            try:
                self.pass_now()
            except Exception as exc:
                # Dropped data stays hidden; the next write reports a disk failure.
                logger.warning("cannot reclaim the space of dropped extents: %s", exc)
            if not self._closed:
                self._pause.wait(max(PAUSE_MIN_SECONDS, watch.seconds()))
