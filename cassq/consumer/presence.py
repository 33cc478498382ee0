"""Presence: records which poppers are present and whether they find anything to do.

The reaper reads from it for how many poppers to open pipes, and alerts read whether there is any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cassq.base.counters import Tally
from cassq.errors import GroupNotFoundError, QueueNotFoundError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import GroupRow, Member

ATTEND_MS = 5000
POLL_MS = 20 * 60_000  # far less than the time for which a catalog remembers members
LOOK_SECONDS = 1.0
# A popper that was not recorded for this long counts as gone.
GONE_MS = 3 * ATTEND_MS


class _ListedPopper:
    """A popper, as last recorded."""

    __slots__ = ("group", "group_id", "name", "noted_ms", "polled_ms", "popped", "tally", "waiting")

    def __init__(
        self, group: Callable[[], GroupRow], name: str, tally: Tally, polled_ms: int
    ) -> None:
        self.group = group
        self.group_id = group().id
        self.name = name
        self.tally = tally
        self.polled_ms = polled_ms
        self.popped = 0
        self.noted_ms = 0
        self.waiting = True


class Presence:
    """Records the presence of one client's poppers. Thread-safe."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._mutex = threading.Lock()
        self._poppers: list[_ListedPopper] = []

    def add(self, group: Callable[[], GroupRow], tally: Tally) -> None:
        """Add a popper. group: returns the current row of its group. tally: its counters."""
        now_ms = self._ports.catalog.now_ms()
        popper = _ListedPopper(group, self._ports.ids.version(), tally, now_ms)
        with self._mutex:
            self._poppers.append(popper)

    def maintain(self) -> float:
        """Record every popper periodically, and when it changes. Returns the seconds until the next
        time.

        Cost: one unsynced write for each popper every five seconds, or when it starts or stops
        finding messages. In a group with `group_expires` also a synced write when a popper closes,
        and one every third of that time, or every 20 minutes if that is less.
        """
        now_ms = self._ports.catalog.now_ms()
        with self._mutex:
            poppers = list(self._poppers)
        for popper in poppers:
            if popper.tally.over:
                self._remove(popper, now_ms)
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
        self._poll(popper, now_ms)

    def _poll(self, popper: _ListedPopper, now_ms: int, *, always: bool = False) -> None:
        """Note for a group that can expire that it has a popper. This is separate from members,
        which are forgotten after an hour, and when they close."""
        try:
            group = popper.group()
        except (QueueNotFoundError, GroupNotFoundError):
            return  # the popper raises it to its caller
        limit_ms = group.expires_ms
        if limit_ms is None:
            return
        if always or now_ms - popper.polled_ms >= min(POLL_MS, limit_ms // 3):
            self._ports.catalog.queues.poll_group(group, now_ms)
            popper.polled_ms = now_ms

    def _remove(self, popper: _ListedPopper, now_ms: int) -> None:
        self._poll(popper, now_ms, always=True)
        if popper.noted_ms:
            self._ports.catalog.records.leave(popper.group_id, popper.name)
        with self._mutex:
            self._poppers.remove(popper)
