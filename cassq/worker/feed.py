"""The feed: takes messages from one popper for the threads of a worker.

Free threads wait here, in line. The first of them pops one message for each thread that is free at
that moment, and never more. So each claimed message runs at once, and a slow task does not withhold
other messages from the group's other workers. All threads share one popper, so their acks are
written together.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from cassq.base.clock import AutoResetEvent
from cassq.consumer.delivery import Delivery, Message
from cassq.errors import BackendError, ClaimLostError, ClosedError, CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.popper import Popper

logger: logging.Logger = logging.getLogger("cassq")

WAIT_SECONDS = 3600.0
# The first pause after a failure of the storage; each later one is twice as long, up to the second.
REST_SECONDS = 0.1
REST_SECONDS_MAX = 5.0


class Backoff:
    """The pauses of a worker while messages cannot be taken, each longer than the one before. Each
    failure is logged."""

    def __init__(self) -> None:
        self._seconds = REST_SECONDS

    def after(self, exc: BackendError | CorruptionError) -> float:
        """How many seconds to pause; 0 if one pipe cannot be read, because others may be readable.
        Raises `exc` if trying again would not help."""
        if isinstance(exc, (CorruptionError, ExtentMissingError)):
            logger.warning("some messages cannot be read: %s", exc)  # once for each pipe
            return 0.0
        if not exc.retryable:
            raise exc
        logger.warning("no messages can be taken at the moment: %s", exc)
        seconds, self._seconds = self._seconds, min(2 * self._seconds, REST_SECONDS_MAX)
        return seconds


class Feed:
    """Hands out messages, one to each thread that asks. Thread-safe.

    one_at_a_time: pops single messages, for a group that keeps an order: the next comes only when
    the last is settled. most: how many messages it hands out in all; None: no limit.
    """

    def __init__(self, popper: Popper, *, one_at_a_time: bool, most: int | None) -> None:
        self._popper = popper
        self._one_at_a_time = one_at_a_time
        self._left = most
        self._turn = threading.Lock()
        self._free: set[int] = set()  # the threads in `take`
        self._taken: deque[tuple[Delivery, Message]] = deque()
        self._event = AutoResetEvent()

    @property
    def is_spent(self) -> bool:
        """Whether it has taken as many messages as it may hand out."""
        return self._left == 0

    def take(self) -> Message | None:
        """Wait for the next message for this thread. None if no more will come: the popper was
        stopped, or the feed is spent.

        Raises CassqError if messages cannot be taken, for instance because the queue was deleted.
        """
        thread = threading.current_thread()
        me = threading.get_ident()
        self._free.add(me)
        try:
            with self._turn:
                if not self._taken:
                    self._fill()
                if not self._taken or self._popper.stopped:
                    return None
                delivery, message = self._taken.popleft()
                delivery.taken_by(thread)
                return message
        finally:
            self._free.discard(me)

    def _fill(self) -> None:
        backoff = Backoff()
        while not (self._popper.stopped or self.is_spent):
            wanted = 1 if self._one_at_a_time else len(self._free)
            if self._left is not None:
                wanted = min(wanted, self._left)
            try:
                found = self._popper.pop(wanted, wait=WAIT_SECONDS)
            except ClosedError:
                return
            except (BackendError, CorruptionError) as exc:
                seconds = backoff.after(exc)
                if seconds:
                    self._event.wait(seconds)
                continue
            if found:
                for run in found.runs:
                    self._taken.extend((run.delivery, message) for message in run.messages())
                if self._left is not None:
                    self._left -= len(found)
                return

    def wake(self) -> None:
        """End a pause, after the popper was stopped. Safe in a signal handler."""
        self._event.set()

    def give_back(self, *, wait: bool) -> None:
        """Give back, uncounted, messages that no thread has begun. Call it after the popper was
        stopped. wait: whether to wait for a thread that is in a pop; if not, this may do nothing,
        and must be called again."""
        if not self._turn.acquire(blocking=wait):
            return
        try:
            untried = [message for _, message in self._taken]
            self._taken.clear()
        finally:
            self._turn.release()
        if untried:
            try:
                self._popper.release(untried)
            except ClaimLostError as exc:
                logger.info("no messages to give back: %s", exc)  # others have them
