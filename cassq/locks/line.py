"""The line for a group's next turn: first come, first served.

Of the clients that wait for a turn one is *next*: it holds a lease named after the group, the
request, and renews it. The others stand in line: their names are a text that they share, changed by
compare-and-set. When there is no request, the first in line makes one, and leaves the line.

A client that stopped waiting is passed over: a client behind `n` others goes before them once it
has seen for `n` times `PATIENCE_MS` that they make no request. So no client that waits is passed
over, a dead client delays the others once, and one wrongly taken for dead goes to the end.

Like turns, a line decides only in which order clients are served: what it says may be lost, or
wrong.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence

from cassq.base.clock import Clock
from cassq.catalog.port import Leases, line_name
from cassq.errors import BackendError

logger: logging.Logger = logging.getLogger("cassq")

REQUEST_MS = 500  # how long a request stands unless it is renewed
PATIENCE_MS = 300  # how long a client that is first in line may take to make a request
# The most clients in line; later ones wait outside, where chance decides. It bounds the text.
LENGTH_MAX = 100


class WaitingLine:
    """The places of one client in the lines of groups. Thread-safe. owner: a unique name."""

    def __init__(self, leases: Leases, clock: Clock, owner: str) -> None:
        self._leases = leases
        self._clock = clock
        self._owner = owner
        self._mutex = threading.Lock()
        self._writes = itertools.count(1)
        self._requests: dict[str, int] = {}  # by group: until when we are next, in boot ms
        self._granted: set[str] = set()  # groups whose request should be dropped
        self._served: set[str] = set()  # groups whose line should be left
        self._places: dict[str, str] = {}  # groups in whose line we are → who waits here
        # By group: who is first in line, and since when we see that it makes no request.
        self._silent: dict[str, tuple[str, int]] = {}

    # --- as the client that has the turn --------------------------------------------------------

    def is_wanted(self, group_id: str) -> bool:
        """Whether another client is next. Cost: a read."""
        return self._leases.owner(turn_lease(group_id)) not in (None, self._owner)

    # --- as one that waits ----------------------------------------------------------------------

    def is_next(self, group_id: str) -> bool:
        """Whether this client is next. Cost: memory reads."""
        return self._requests.get(group_id, 0) > self._clock.boot_ms()

    def waits(self, group_id: str) -> bool:
        """Whether this client is in line, behind the one that is next. Cost: memory reads."""
        return group_id in self._places and not self.is_next(group_id)

    def ask(self, group_id: str, popper: str) -> bool:
        """Wait for the next turn; whether this client is next. popper: the one that waits.

        Cost: for the client that is next, two conditional writes per `REQUEST_MS`. For others one
        read while there is a request, otherwise two; a conditional write to get in line, and two to
        become next.
        """
        now_ms = self._clock.boot_ms()
        left_ms = self._requests.get(group_id, 0) - now_ms
        if left_ms > REQUEST_MS / 2:
            return True
        if left_ms <= 0 and not self._comes_next(group_id, popper, now_ms):
            return False
        if self._leases.take(turn_lease(group_id), self._owner, REQUEST_MS) is None:
            with self._mutex:
                self._requests.pop(group_id, None)
            if group_id not in self._places:
                self._join(group_id, popper, self._read(group_id))
            return False
        with self._mutex:
            self._requests[group_id] = now_ms + REQUEST_MS
            self._granted.discard(group_id)
        self._step_out(group_id, with_those_in_front=True)
        return True

    def _comes_next(self, group_id: str, popper: str, now_ms: int) -> bool:
        """Whether this client should make the request; if not, it gets in line."""
        if group_id in self._places and self.is_wanted(group_id):
            self._silent.pop(group_id, None)
            return False
        there = self._read(group_id)
        names = there.split()[1:]
        if not names:
            return True
        if self._owner not in names:
            self._join(group_id, popper, there)
            return len(names) >= LENGTH_MAX
        silent = self._silent.get(group_id)
        if silent is None or silent[0] != names[0]:
            silent = self._silent[group_id] = (names[0], now_ms)
        return now_ms - silent[1] >= names.index(self._owner) * PATIENCE_MS

    def granted(self, group_id: str) -> None:
        """This client has a turn: `drop_granted` drops its request. Cost: none."""
        with self._mutex:
            if self._requests.pop(group_id, 0) > self._clock.boot_ms():
                self._granted.add(group_id)
            if group_id in self._places:
                self._served.add(group_id)

    def drop_granted(self) -> None:
        """Drop the requests for turns that this client has, and its places in line, if it got a
        turn before it was next. Cost: a conditional write each; for a place also a read."""
        with self._mutex:
            granted, self._granted = self._granted, set()
            served, self._served = self._served, set()
        for group_id in granted:
            self._leases.drop(turn_lease(group_id), self._owner)
        for group_id in served:
            self._step_out(group_id)

    # --- places ---------------------------------------------------------------------------------

    def _read(self, group_id: str) -> str:
        return self._leases.shared(line_name(group_id))

    def _join(self, group_id: str, popper: str, there: str) -> None:
        """Go to the end of the line, unless it changed meanwhile. there: its text as read."""
        names = there.split()[1:]
        if self._owner in names:
            return
        if len(names) < LENGTH_MAX and self._put(group_id, there, [*names, self._owner]):
            self._places[group_id] = popper
            self._silent.pop(group_id, None)

    def leave(self, popper: str) -> None:
        """Give up the places of a popper that is closed. Cost: for each a read and a conditional
        write, again whenever others change the line meanwhile."""
        places = list(self._places.items())  # another thread may join a line meanwhile
        for group_id in [group_id for group_id, who in places if who == popper]:
            try:
                self._step_out(group_id)
            except BackendError as exc:
                logger.info("this client stays in line, and will be passed over: %s", exc)

    def _step_out(self, group_id: str, *, with_those_in_front: bool = False) -> None:
        """Leave the line. with_those_in_front: also remove the clients in front, which this one has
        passed over. Cost: none if it is not in line, otherwise as for `leave`."""
        if self._places.pop(group_id, None) is None:
            return
        self._silent.pop(group_id, None)
        for _ in range(LENGTH_MAX):
            there = self._read(group_id)
            names = there.split()[1:]
            if self._owner not in names:
                return
            at = names.index(self._owner)
            in_front = [] if with_those_in_front else names[:at]
            if self._put(group_id, there, [*in_front, *names[at + 1 :]]):
                return

    def _put(self, group_id: str, there: str, names: Sequence[str]) -> bool:
        """Replace the text. It begins with a mark, so that no other client writes the same."""
        mark = f"{self._owner}.{next(self._writes)}"
        text = " ".join([mark, *names]) if names else ""
        return self._leases.swap(line_name(group_id), there, text)


def turn_lease(group_id: str) -> str:
    """The lease of the client whose turn is next."""
    return f"turn:{group_id}"
