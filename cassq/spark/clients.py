"""Clients of Spark's Python workers: one per process and place, kept from task to task.

A worker is forked before it gets its first task; it does not use its parent's client.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from cassq.client.client import Client
from cassq.client.connecting import connect
from cassq.client.embedded import directory_of
from cassq.errors import ConfigError

_lock = threading.Lock()
_clients: dict[tuple[int, str], Client] = {}


def client_of(url: str) -> Client:
    """This process's client at `url`, which stays open. Raises as `cassq.connect`."""
    key = os.getpid(), url
    with _lock:
        client = _clients.get(key)
        if client is None or client.ports.life.closed:
            client = _clients[key] = connect(url, create=False)
        return client


def absolute(url: str | None) -> str:
    """A URL that means the same in every process: relative directories start from this one's.

    None: `CASSQ_URL`. Raises ConfigError without either.
    """
    url = url or os.environ.get("CASSQ_URL")
    if not url:
        raise ConfigError(
            "the option `url` is missing",
            hint="say where the queues are: file:///var/lib/cassq or cassandra://host/keyspace",
        )
    scheme, _, rest = url.partition(":")
    if scheme != "file":
        return url
    place, mark, query = rest.partition("?")
    return f"file://{Path(directory_of(place)).absolute()}{mark}{query}"
