"""Receiving from a keyed group, whose lane one popper at a time holds.

As `cassq.consumer.receiving` does, it gives every message its own deadline in the catalog before it
is handed out, so nothing depends on this process (`cassq.consumer.keyed.receiving`). That leaves
its popper with nothing in hand, so it can give up the lane at any moment:

- A receiver without the lane asks for it if clients wait there, by a lease, the *request*.
- A receiver with the lane gives it up when another asks and no client waits here. If clients wait
  at both, it gives the lane up once it has handed out a message and has had the lane for `TURN_MS`.
  While clients wait at both and no message comes, the lane stays: the next message goes to a client
  that waits here.

Requests only decide which client is served when. A lost request costs time: a popper that takes
nothing gives up the lane anyway, and the lane of a process that died is free at once on its
machine, elsewhere when its lock expires.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from cassq.client.queue import Queue
from cassq.client.runtime import Runtime
from cassq.consumer.delivery import Message
from cassq.consumer.receiving import AnyReceiver
from cassq.errors import CassqError, ClosedError, ReceiptError, UsageError
from cassq.locks.line import turn_lease
from cassq.model.receipts import parsed
from cassq.model.rows import GroupRow
from cassq.popper import Popper

TURN_MS = 200  # how long a receiver may keep the lane while others wait
LOOK_MS = 50  # how often it looks whether another wants it
REQUEST_MS = 1000  # how long a request stands unless it is renewed
WAIT_SECONDS = 0.25  # a wait is this long at most, so that requests are renewed
IDLE_SECONDS = 10.0
PATIENCE_SECONDS = 0.5  # another process gives the lane up within this time, if no client waits

NOT_IN_ORDER = "the group of SQS clients is not in the order of keys"
NOT_IN_ORDER_HINT = "create the queue by CreateQueue with the attribute FifoQueue"


class LaneReceiver(AnyReceiver):
    """Receives messages of a queue's keyed group `group`. If the group keeps the order of keys, at
    most one message of each key is out at a time. Thread-safe.

    delay_ms: how old a message must be to be received.
    """

    def __init__(
        self, runtime: Runtime, queue: Queue, group: GroupRow, delay_ms: Callable[[], int]
    ) -> None:
        self._runtime = runtime
        self._life = runtime.ports.life
        self._clock = runtime.ports.clock
        self._leases = runtime.ports.catalog.leases
        self._queue = queue
        self._group = group.name
        self._request = turn_lease(group.id)
        self._owner = runtime.ports.ids.version()
        self._delay_ms = delay_ms
        self._popper: Popper | None = None
        self._ready: list[Message] = []  # popped by a wait
        self._most, self._ms = 1, 0  # what was asked for last
        self._lock = threading.Lock()
        self._waiter = runtime.doorbell(group.queue_id).listen()
        self._hurried = self._closed = False
        self._served = False  # whether this turn handed something out
        self._begun_ms = self._looked_ms = self._used_ms = 0
        self._asked_ms = 0  # until when our request stands
        self._gave_way_ms = 0  # until when others go first
        runtime.add_maintenance(self.maintain, IDLE_SECONDS)

    @property
    def patience(self) -> float:
        """How many seconds even a request that does not want to wait should wait, because another
        process has the lane. Cost: a memory read."""
        return 0.0 if self._has_lane(self._popper) else PATIENCE_SECONDS

    def receive(self, max_messages: int, ms: int) -> Sequence[Message]:
        """At most `max_messages` messages, hidden from others for `ms` milliseconds; empty if none
        are there now, or another process has the lane. Raises as `Popper.pop` does. Cost: that of a
        pop; more if the lane changes hands.
        """
        with self._lock:
            self._check_open()
            self._used_ms = self._clock.boot_ms()
            if not self._may_take(self._used_ms):
                return ()
            if self._ready and self._ms != ms:
                self._put_back()
            self._most, self._ms = max_messages, ms
            found: Sequence[Message] = self._ready[:max_messages]
            self._ready = self._ready[max_messages:]
            if not found:
                found = self._pop(0.0)
            self._follow_lane()
            self._served = self._served or bool(found)
            return found

    def wait(self, seconds: float) -> None:
        """Return when there may be something to receive, after `interrupt`, or after about
        `seconds`; `WAIT_SECONDS` at most."""
        with self._lock:
            self._check_open()
            if self._hurried:
                self._hurried = False
                return
            left = min(seconds, WAIT_SECONDS)
            if self._popper is not None:
                if not self._ready:
                    self._ready = list(self._pop(left))
                return
        with self._life.wait():
            self._waiter.wait(min(left, LOOK_MS / 1000), lambda: self._hurried or self._closed)

    def interrupt(self) -> None:
        """End the wait of another thread; if none waits, the next one."""
        self._hurried = True
        self._waiter.wake()
        popper = self._popper
        if popper is not None:
            popper.interrupt()

    def settled(self, receipts: Iterable[str]) -> None:
        """Messages were deleted here by their receipts: their keys go on. Takes no lock."""
        popper = self._popper
        if popper is not None and popper.lanes is not None:
            popper.lanes.note(map(parsed, receipts))
            self.interrupt()  # the acks woke a waiting thread before this was known

    # --- the lane -------------------------------------------------------------------------------

    def _pop(self, wait: float) -> Sequence[Message]:
        """Pop as the last `receive` asked; wait `wait` seconds if nothing is there now."""
        if self._popper is None:
            self._popper = self._queue.popper(self._group)
        lanes = self._popper.lanes
        if lanes is None:
            raise UsageError(NOT_IN_ORDER, hint=NOT_IN_ORDER_HINT)
        lanes.receive(self._ms, self._delay_ms())
        return self._popper.pop(self._most, wait)

    def _put_back(self) -> None:
        """Give back, uncounted, messages that a wait popped and no `receive` took."""
        ready, self._ready = self._ready, []
        if ready:
            with suppress(ReceiptError):
                self._queue.settle([each.receipt for each in ready]).release()
        if ready and self._popper is not None and self._popper.lanes is not None:
            self._popper.lanes.look_soon()

    @staticmethod
    def _has_lane(popper: Popper | None) -> bool:
        return popper is not None and popper.lanes is not None and popper.lanes.is_held

    def _may_take(self, now_ms: int) -> bool:
        """Whether it is not another's turn; gives up the lane if it is."""
        if self._has_lane(self._popper):
            if not self._served or self._ready or now_ms - self._begun_ms < TURN_MS:
                return True
            if not self._is_wanted(now_ms):
                return True
            self._give_up(now_ms)
            return False
        if now_ms >= self._gave_way_ms:
            return True
        if self._is_wanted(now_ms, at_once=True):
            return False
        self._gave_way_ms = 0
        return True

    def _is_wanted(self, now_ms: int, *, at_once: bool = False) -> bool:
        """Whether another receiver asked for the lane when this was last checked."""
        if not at_once and now_ms - self._looked_ms < LOOK_MS:
            return False
        self._looked_ms = now_ms
        with self._life.enter():
            return self._leases.owner(self._request) not in (None, self._owner)

    def _follow_lane(self) -> None:
        """Begin a turn if the popper has got the lane, and ask for it if it has not."""
        now_ms = self._clock.boot_ms()
        if not self._has_lane(self._popper):
            self._begun_ms = 0
            if self._asked_ms - now_ms <= REQUEST_MS / 2:
                with self._life.enter():
                    taken = self._leases.take(self._request, self._owner, REQUEST_MS)
                self._asked_ms = 0 if taken is None else now_ms + REQUEST_MS
            return
        if not self._begun_ms:
            self._begun_ms, self._served = now_ms, False
        if self._asked_ms:
            self._asked_ms = 0
            with self._life.enter():
                self._leases.drop(self._request, self._owner)
        self._runtime.run_within(self.maintain, LOOK_MS / 1000)

    def _give_up(self, now_ms: int) -> None:
        popper, self._popper = self._popper, None
        self._gave_way_ms, self._begun_ms = now_ms + 2 * REQUEST_MS, 0
        try:
            self._put_back()
        finally:
            if popper is not None:
                popper.close()

    # --- life -----------------------------------------------------------------------------------

    def maintain(self) -> float:
        """Give up a lane that another receiver wants while no client waits here, and messages that
        no `receive` took. Returns the seconds until the next call."""
        if not self._lock.acquire(blocking=False):
            return LOOK_MS / 1000  # somebody receives, or waits
        try:
            popper, now_ms = self._popper, self._clock.boot_ms()
            if self._closed or popper is None or not self._has_lane(popper):
                return IDLE_SECONDS
            if now_ms - self._used_ms >= LOOK_MS:
                self._put_back()
                if self._is_wanted(now_ms, at_once=True):
                    self._give_up(now_ms)
                    return IDLE_SECONDS
            return LOOK_MS / 1000
        except ClosedError:
            return IDLE_SECONDS
        finally:
            self._lock.release()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Receive no more, and give up the lane. What was received keeps its deadlines.
        Repeatable."""
        self._closed = True
        self.interrupt()
        with self._lock:
            self._runtime.housekeeper.remove(self.maintain)
            with suppress(CassqError):  # the client is closed: so is the popper
                self._give_up(0)
            self._waiter.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("this receiver is closed")
