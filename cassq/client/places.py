"""Queues that the objects of a framework share: each forked process gets a client of its own, and
queues are created when they are first used."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from cassq.client.client import Client
from cassq.client.connecting import connect
from cassq.client.queue import Queue
from cassq.errors import QueueExistsError, QueueNotFoundError
from cassq.producer.pusher import Pusher


def ensure_queue(client: Client, name: str, settings: Mapping[str, Any]) -> Queue:
    """The queue of this name, created with `settings` if it does not exist; an existing queue keeps
    its own settings. Raises as `Client.create_queue`. Cost: one read, if the queue exists."""
    try:
        return client.queue(name)
    except QueueNotFoundError:
        try:
            return client.create_queue(name, **settings)
        except QueueExistsError:  # another process was quicker
            return client.queue(name)


class QueueRegistry:
    """The queues of a URL, opened when they are first used. Thread-safe. settings: of the queues
    that it creates."""

    def __init__(self, url: str | None, settings: Mapping[str, Any]) -> None:
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
        """The queue of this name, created if it does not exist."""
        with self._lock:
            return self._opened(name)

    def pusher(self, name: str) -> Pusher:
        """The pusher of a queue, which all threads share."""
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
            found = self._queues[name] = ensure_queue(client, name, self._settings)
        return found

    def close(self) -> None:
        """Close the client. It is opened again when it is next needed."""
        with self._lock:
            client = self._client if self._pid == os.getpid() else None
            self._forget()
        if client is not None:
            client.close()
