"""The broker: each of Dramatiq's queues is a queue of cassq, where delayed messages wait too."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from cassq.base.arguments import DELAY_MAX_SECONDS, check_seconds
from cassq.base.clock import Stopwatch, SystemClock
from cassq.client.places import QueueRegistry
from cassq.client.queue import Queue
from cassq.consumer.delivery import Message as Delivered
from cassq.extras import wanted
from cassq.model.queues import check_queue_name
from cassq.settings import QueueSettings

with wanted("the broker for Dramatiq needs", "dramatiq", "dramatiq"):
    import dramatiq
    from dramatiq.errors import DecodeError, QueueJoinTimeout, QueueNotFound

LOOK_SECONDS = 0.02


class Broker(dramatiq.Broker):
    """A broker on the queues of a URL. url: as for `cassq.connect`; each process opens a client at
    its first use. middleware: as for Dramatiq's other brokers. settings: of queues that the broker
    creates. Thread-safe, and safe to use after a fork.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: Sequence[Any] | None = None,
        settings: QueueSettings | None = None,
    ) -> None:
        super().__init__(middleware=middleware)
        self._registry = QueueRegistry(url, settings or {})

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; it is created when it is first used. Raises InvalidNameError."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", check_queue_name(queue_name))
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Any, *, delay: float | None = None) -> Any:
        """Push a message; durable on return. delay: how many milliseconds it waits in the queue.
        Raises Dramatiq's QueueNotFound for a queue that was not declared, and as `Pusher.push`."""
        self._check(message.queue_name)
        seconds = None if delay is None else delay / 1000
        if seconds is not None:
            check_seconds("delay", seconds, DELAY_MAX_SECONDS)
        self.emit_before("enqueue", message, delay)
        headers = {"dramatiq-id": message.message_id, "dramatiq-actor": message.actor_name}
        self._registry.pusher(message.queue_name).push(
            message.encode(), headers=headers, delay=seconds
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Consumer:
        """A consumer of a queue. prefetch: how many messages it may have at once. timeout: how many
        milliseconds it waits for one. Raises Dramatiq's QueueNotFound."""
        self._check(queue_name)
        return Consumer(self._registry.queue(queue_name), prefetch, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Remove all messages that wait in a queue."""
        self._check(queue_name)
        self._registry.queue(queue_name).purge()

    def flush_all(self) -> None:
        """Remove all messages that wait in the declared queues."""
        for name in self.get_declared_queues():
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """For tests: wait until all messages of a queue are done, also delayed ones. timeout: in
        milliseconds. Raises Dramatiq's QueueJoinTimeout and QueueNotFound."""
        self._check(queue_name)
        queue, watch, clock = self._registry.queue(queue_name), Stopwatch(), SystemClock()
        while True:
            group = queue.stats().groups["default"]
            if not group.waiting + group.pending + group.delayed:
                return
            if timeout is not None and watch.seconds() >= timeout / 1000:
                raise QueueJoinTimeout(queue_name)
            clock.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Close the client of this process."""
        self._registry.close()

    def _check(self, queue_name: str) -> None:
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)


class Proxy(dramatiq.MessageProxy):
    """A message of Dramatiq, with the cassq message that carried it."""

    def __init__(self, message: Any, delivered: Delivered) -> None:
        super().__init__(message)
        self.delivered = delivered


class Consumer(dramatiq.Consumer):
    """Takes messages for a worker. Other threads may settle them."""

    def __init__(self, queue: Queue, prefetch: int, timeout: float) -> None:
        self._popper = queue.popper()
        self._room = threading.Semaphore(prefetch)
        self._timeout = timeout

    def __next__(self) -> Proxy | None:
        """The next message; None if none comes in time, or there is no room for one."""
        if not self._room.acquire(timeout=self._timeout):
            return None
        found: Proxy | None = None
        try:
            found = self._next()
        finally:
            if found is None:
                self._room.release()
        return found

    def _next(self) -> Proxy | None:
        messages = self._popper.pop(1, wait=self._timeout)
        if not messages:
            return None
        (delivered,) = messages
        try:
            return Proxy(dramatiq.Message.decode(delivered.payload), delivered)
        except DecodeError as exc:
            delivered.dead(f"not a message of Dramatiq: {exc}")
            return None

    def ack(self, message: Any) -> None:
        """Mark a message as done; written with others, within 50 ms."""
        message.delivered.ack()
        self._room.release()

    def nack(self, message: Any) -> None:
        """Make a message that failed for good a dead letter, with its error."""
        error = getattr(message, "_exception", None)
        message.delivered.dead("rejected" if error is None else error)
        self._room.release()

    def requeue(self, messages: Iterable[Any]) -> None:
        """Give messages back; the delivery does not count."""
        for message in messages:
            message.delivered.release()
            self._room.release()

    def close(self) -> None:
        """Write all acks, and give back messages that were not settled."""
        self._popper.close()
