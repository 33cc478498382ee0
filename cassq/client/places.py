"""A client for each process that needs one: Dramatiq's processes are forked."""

from __future__ import annotations

import os
import threading

from cassq.client.client import Client
from cassq.client.connecting import connect
from cassq.client.queue import Queue
from cassq.errors import QueueExistsError
from cassq.producer.pusher import Pusher
from cassq.settings import QueueSettings


class Place:
    """Queues of a URL, opened when they are first used. Thread-safe. settings: of queues that are
    created."""

    def __init__(self, url: str | None, settings: QueueSettings) -> None:
        self._url = url
        self._settings = settings
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._client: Client | None = None
        self._queues: dict[str, Queue] = {}
        self._pushers: dict[str, Pusher] = {}

    @property
    def client(self) -> Client:
        """The client of this process. Raises as `cassq.connect`."""
        with self._lock:
            return self._connected()

    def queue(self, name: str) -> Queue:
        """A queue, which is created if it is missing."""
        with self._lock:
            return self._opened(name)

    def pusher(self, name: str) -> Pusher:
        """A pusher for it, which all threads share."""
        with self._lock:
            queue = self._opened(name)
            pusher = self._pushers.get(name)
            if pusher is None:
                pusher = self._pushers[name] = queue.pusher()
            return pusher

    def _connected(self) -> Client:
        if self._pid != os.getpid():
            self._forget()
        if self._client is None:
            self._client = connect(self._url)
        return self._client

    def _opened(self, name: str) -> Queue:
        client = self._connected()
        found = self._queues.get(name)
        if found is None:
            try:
                found = client.create_queue(name, **self._settings)
            except QueueExistsError:  # its settings are its owner's
                found = client.queue(name)
            self._queues[name] = found
        return found

    def close(self) -> None:
        """Close the client; it is opened again when it is needed."""
        with self._lock:
            client = self._client if self._pid == os.getpid() else None
            self._forget()
        if client is not None:
            client.close()
