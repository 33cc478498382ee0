"""The clients behind connections of kombu: one for each URL and process, opened when it is needed.

Celery opens a dozen connections in a worker, and forks in between. The connections of a process
share one client, which stays open until the process ends; a forked child opens its own.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cassq.base.clock import SystemClock
from cassq.client.client import Client
from cassq.client.connecting import connect, local_directory
from cassq.client.places import ensure_queue
from cassq.client.queue import Queue
from cassq.errors import QueueNotFoundError
from cassq.kombu.names import queue_name
from cassq.kombu.options import TransportOptions
from cassq.kombu.process_registry import ProcessRegistry
from cassq.model.queues import DEFAULT_GROUP
from cassq.popper import Popper
from cassq.producer.pusher import Pusher

logger: logging.Logger = logging.getLogger("cassq")

_brokers: dict[str, TransportBroker] = {}  # by URL; a child replaces its parent's: see `is_open`
_lock = threading.Lock()


class TransportBroker:
    """The queues of one URL, for all connections of this process. Thread-safe."""

    def __init__(self, url: str) -> None:
        self.pid: int = os.getpid()
        self.client: Client = connect(url)
        self.clock: SystemClock = SystemClock()
        directory = local_directory(url)
        self._registry = None if directory is None else ProcessRegistry(directory, self.client)
        self._queues: dict[str, Queue] = {}
        self._pushers: dict[str, Pusher] = {}
        self._strict: dict[str, bool] = {}  # by the queue's id
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    @property
    def is_open(self) -> bool:
        """Whether it was opened in this process (not before a fork), and is not closing."""
        return self.pid == os.getpid() and not self.client.runtime.closing

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall_ms() / 1000, UTC)

    def known(self, name: str) -> Queue | None:
        """The queue with this cassq name, if it was used before. Cost: none."""
        return self._queues.get(name)

    def find(self, name: str) -> Queue | None:
        """The queue with this cassq name; None if it does not exist."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                try:
                    queue = self._queues[name] = self.client.queue(name)
                except QueueNotFoundError:
                    return None
            return queue

    def queue(self, name: str, settings: Mapping[str, Any]) -> Queue:
        """The queue with this cassq name, created with `settings` if it does not exist."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                queue = self._queues[name] = ensure_queue(self.client, name, settings)
            return queue

    def exchange_queue(self, exchange: str, options: TransportOptions) -> Queue:
        """The queue that carries what is published to an exchange, for its groups. It has no
        default group, so without other groups it keeps nothing."""
        name = queue_name(exchange, options.prefix + "exchange.")
        with self._lock:
            known = name in self._queues
            queue = self.queue(name, {"sick_check": False})
            if not known and any(group.name == DEFAULT_GROUP for group in queue.groups()):
                queue.delete_group(DEFAULT_GROUP)
            return queue

    def pusher(self, queue: Queue) -> Pusher:
        """The pusher of a queue; all threads of this process share it."""
        pusher = self._pushers.get(queue.name)
        if pusher is None or pusher.closed:
            with self._lock:
                pusher = self._pushers.get(queue.name)
                if pusher is None or pusher.closed:
                    pusher = self._pushers[queue.name] = queue.pusher()
        return pusher

    def popper(self, queue: Queue, group: str, keep_alive: float) -> Popper:
        """A popper. On one machine, other processes free its claims at once if this one dies."""
        popper = queue.popper(group, keep_alive=keep_alive)
        if self._registry is not None:
            self._registry.add(queue.name, group, popper.name)
        return popper

    def is_strict(self, queue: Queue) -> bool:
        """Whether it is a cp queue, which has neither priorities nor due times. Cost: a read, the
        first time."""
        found = self._strict.get(queue.id)
        if found is None:
            found = self._strict[queue.id] = queue.policy.strict
        return found

    def warn_strict(self, queue: Queue) -> None:
        """Warn once that in this cp queue tasks with an eta wait in a worker."""
        if queue.id not in self._warned:
            self._warned.add(queue.id)
            logger.warning(
                "queue %s is a cp queue: tasks with an eta wait in a worker, not in the queue",
                queue.name,
            )

    def forget(self, name: str) -> None:
        """Forget a queue that was deleted, here or elsewhere."""
        with self._lock:
            self._queues.pop(name, None)
            self._pushers.pop(name, None)


def broker_of(url: str) -> TransportBroker:
    """The broker of a URL in this process."""
    broker = _brokers.get(url)
    if broker is None or not broker.is_open:
        with _lock:
            broker = _brokers.get(url)
            if broker is None or not broker.is_open:
                broker = _brokers[url] = TransportBroker(url)
    return broker


def _after_fork() -> None:
    global _lock
    # Another thread of the parent may have held it.
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
