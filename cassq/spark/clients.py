"""Clients of Spark's Python workers: one per process and place, kept from task to task.

A worker is forked before it gets its first task; it does not use its parent's client.
"""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path
from typing import NamedTuple

from cassq.client.client import Client
from cassq.client.connecting import connect
from cassq.client.embedded import directory_of
from cassq.errors import ConfigError

_lock = threading.Lock()
_clients: dict[tuple[int, str], Client] = {}


class Location(NamedTuple):
    """Where the driver found the queues. identity: the catalog's. machine: that of a directory,
    which works on one machine only; empty for a keyspace. host: the driver's, for people."""

    url: str
    identity: str
    machine: str
    host: str


def located(url: str) -> Location:
    """The location of the queues at an absolute URL, on the driver. Raises as `cassq.connect`.
    Cost: a read of the catalog, the first time."""
    ports = client_of(url).ports
    machine = ports.clock.boot_id() if url.startswith("file:") else ""
    return Location(url, ports.catalog.records.identity(), machine, socket.gethostname())


def client_at(location: Location) -> Client:
    """This process's client at the location that the driver found. Raises as `cassq.connect`, and
    ConfigError if other queues are here under the same URL: those of another machine, or others
    that took their place."""
    here = located(location.url)
    if (here.identity, here.machine) == (location.identity, location.machine):
        return client_of(location.url)
    raise ConfigError(
        f"{location.url} names other queues on {here.host} ({here.identity}) than on the driver,"
        f" {location.host} ({location.identity})"
        if here.identity != location.identity
        else f"{location.url} is a copy on {here.host} of the directory {here.identity} of the"
        f" driver, {location.host}",
        hint="a directory works for Spark on one machine only; on several, use a keyspace of"
        " Cassandra",
    )


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
