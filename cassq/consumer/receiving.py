"""Receiving: takes messages for other processes, which settle each by its receipt.

A popper holds what it has claimed, keeps the claims alive, and gives back what is left when it
ends. A receiver holds nothing: every message has a deadline of its own from the start, in the
catalog. So if this process ends, no message is delivered again sooner or later because of that. The
deliveries of each message are counted separately: it does not share the failures of others.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Sequence

from cassq.base.arguments import check_count
from cassq.base.counters import Tally
from cassq.consumer.claiming.claimer import Claimer
from cassq.consumer.delivery import DeliveredRun, Message, Messages
from cassq.consumer.receipts import NOBODY
from cassq.doorbell import LOOK_AGAIN_SECONDS, Doorbell
from cassq.errors import ClosedError, UsageError
from cassq.lifecycle.ports import Ports, operation
from cassq.lifecycle.retries import DeadLetterFn
from cassq.model.rows import GroupRow, QueueRow

RECEIVE_MAX = 10_000
MAINTENANCE_SECONDS = 10.0  # how long an idle receiver may hold the files of retired pipes


class AnyReceiver(abc.ABC):
    """Receives messages of one group of a queue for other processes."""

    @abc.abstractmethod
    def receive(self, max_messages: int, ms: int) -> Sequence[Message]:
        """At most `max_messages` messages, which are not delivered to anyone else for `ms`
        milliseconds; empty if there are none now."""

    @abc.abstractmethod
    def wait(self, seconds: float) -> None:
        """Return when there may be something to receive, after `interrupt`, or after about
        `seconds`; a quarter of a second at most."""

    @abc.abstractmethod
    def interrupt(self) -> None:
        """End the wait of another thread; if none waits, the next wait ends at once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Receive no more. What was received keeps its deadlines. Repeatable."""

    @property
    def patience(self) -> float:
        """How many seconds a client should wait for messages even if it asked not to wait."""
        return 0.0

    def settled(self, receipts: Iterable[str]) -> None:
        """Called after messages were settled here by their receipts: others may wait for that."""


class Receiver(AnyReceiver):
    """Receives messages of one group of a queue, which has neither order nor limits. Thread-safe.

    name: as claims show it. tally: its counters.
    """

    def __init__(
        self,
        ports: Ports,
        queue: Callable[[], QueueRow],
        group: Callable[[], GroupRow],
        *,
        dead_letter: DeadLetterFn,
        doorbell: Doorbell,
    ) -> None:
        self._life = ports.life
        self._claimer = Claimer(ports, queue, group, dead_letter, singly=True)
        self._keyed = group().policy.keyed
        self.name: str = self._claimer.name
        self.tally: Tally = Tally(group().name)
        self._waiter = doorbell.listen()
        self._lock = threading.Lock()
        self._hurried = False
        self._closed = False

    @operation
    def receive(self, max_messages: int, ms: int) -> Messages:
        """At most `max_messages` messages, which are not delivered to anyone else for `ms`
        milliseconds; empty if there are none now. New messages of one call come from one pipe, so
        there may be more in others.

        Raises UsageError for a group with order or limits, which needs a popper. Raises
        CorruptionError or ExtentMissingError once for a pipe that cannot be read. Cost: one
        unsynced catalog transaction and one read of the pipe; for messages that are delivered
        again, a synced transaction.
        """
        check_count("max_messages", max_messages, RECEIVE_MAX)
        with self._lock:
            self._check_open()
            claimer = self._claimer
            claimer.look()
            self._check_group()
            if claimer.paused:
                return Messages()
            try:
                found = claimer.claim_within(NOBODY, max_messages, ms)
            except Exception as exc:
                self.tally.failed("pop", exc)
                raise
            if not found and claimer.window.unreported:
                raise claimer.window.unreported.pop(0)
            messages = Messages(
                [DeliveredRun(delivery, *piece) for delivery, pieces in found for piece in pieces]
            )
            self.tally.popped += len(messages)
            self.tally.redelivered += sum(
                delivery.count for delivery, _ in found if delivery.deliveries > 1
            )
            return messages

    def wait(self, seconds: float) -> None:
        """Return when there may be something to receive, after `interrupt`, or after about
        `seconds`; a quarter of a second at most."""
        with self._life.enter(), self._lock:
            self._check_open()
            if self._hurried:
                self._hurried = False
                return
            left = min(seconds, self._claimer.until_due(LOOK_AGAIN_SECONDS))
        with self._life.wait():
            self._waiter.wait(left, self._has_news)

    def interrupt(self) -> None:
        """End the wait of another thread; if none waits, the next wait ends at once."""
        self._hurried = True
        self._waiter.wake()

    def _has_news(self) -> bool:
        if self._closed or self._hurried:
            return True
        with self._life.enter():
            return self._claimer.has_news()

    def _check_group(self) -> None:
        claimer = self._claimer
        if claimer.exclusive or self._keyed or claimer.rules.limited:
            raise UsageError(
                "messages of a group with order or limits cannot be received singly",
                hint="pop them, or use a group without these settings",
            )

    # --- life -----------------------------------------------------------------------------------

    def maintain(self) -> float:
        """Close the files of retired pipes. Returns the seconds until the next time."""
        with self._lock:
            if not self._closed:
                self._claimer.close_dropped()
            return MAINTENANCE_SECONDS

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Receive no more. What was received keeps its deadlines. Repeatable."""
        self._life.end(self.close_inside)

    def close_inside(self) -> None:
        """`close`, inside a call of the client."""
        with self._lock:
            if self._closed:
                return
            self._closed = self.tally.over = True
            self._claimer.close()
            self._waiter.close()

    def _check_open(self) -> None:
        if self._closed:
            self._life.check()
            raise ClosedError("this receiver is closed")
