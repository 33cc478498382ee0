"""Presence: records which poppers are present and whether they find anything to do.

From it the reaper knows for how many poppers to open pipes, and alerts know that none has come.
"""

from __future__ import annotations

import threading

from cassq.base.counters import Tally
from cassq.lifecycle.ports import Ports
from cassq.model.rows import Member

ATTEND_MS = 5000
LOOK_SECONDS = 1.0
# A popper not seen for this long is gone.
GONE_MS = 3 * ATTEND_MS


class _ListedPopper:
    """A popper, as last recorded."""

    __slots__ = ("group_id", "name", "noted_ms", "popped", "tally", "waiting")

    def __init__(self, group_id: str, name: str, tally: Tally) -> None:
        self.group_id = group_id
        self.name = name
        self.tally = tally
        self.popped = 0
        self.noted_ms = 0
        self.waiting = True


class Presence:
    """Records the presence of one client's poppers. Thread-safe."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._mutex = threading.Lock()
        self._poppers: list[_ListedPopper] = []

    def add(self, group_id: str, tally: Tally) -> None:
        """Add a popper of that group. tally: its counters."""
        with self._mutex:
            self._poppers.append(_ListedPopper(group_id, self._ports.ids.version(), tally))

    def tend(self) -> float:
        """Record changes, and every popper periodically; seconds until the next time.

        Cost: one unsynced write for each popper every five seconds, or when it starts or stops
        finding messages.
        """
        now_ms = self._ports.catalog.now_ms()
        with self._mutex:
            poppers = list(self._poppers)
        for popper in poppers:
            if popper.tally.over:
                self._remove(popper)
            else:
                self._note(popper, now_ms)
        return LOOK_SECONDS

    def _note(self, popper: _ListedPopper, now_ms: int) -> None:
        tally = popper.tally
        settled = tally.committed + tally.rolled_back + tally.released + tally.dead + tally.lost
        # It holds nothing, and has found nothing since the last check.
        waiting = tally.popped <= settled and tally.popped == popper.popped
        popper.popped = tally.popped
        if waiting != popper.waiting or now_ms - popper.noted_ms >= ATTEND_MS:
            self._ports.catalog.records.attend(
                Member(popper.group_id, popper.name, now_ms, waiting)
            )
            popper.waiting, popper.noted_ms = waiting, now_ms

    def _remove(self, popper: _ListedPopper) -> None:
        if popper.noted_ms:
            self._ports.catalog.records.leave(popper.group_id, popper.name)
        with self._mutex:
            self._poppers.remove(popper)
