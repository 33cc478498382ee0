"""Places of Spark's Python workers: one per process and URL, kept from task to task.

A worker is forked before it gets its first task, and does not use what its parent opened. A place
is opened without a client: to load the client's modules takes a worker as long as to load Spark's.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cassq.base.clock import SystemClock
from cassq.client.backends.embedded import directory_of
from cassq.client.backends.opening import open_place, row_named
from cassq.doorbell import Doorbell
from cassq.errors import CassqError, ConfigError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import QueueRow

if TYPE_CHECKING:
    from cassq.client.client import Client

logger: logging.Logger = logging.getLogger("cassq")

_lock = threading.Lock()
_places: dict[str, SparkPlace] = {}  # by URL
_clients: dict[str, Client] = {}
_of_the_parent: list[object] = []


class SparkPlace:
    """The catalog and the extent store at a URL, opened. Thread-safe."""

    def __init__(self, url: str) -> None:
        self._opened = open_place(url, SystemClock())
        self._bells: dict[str, Doorbell] = {}

    @property
    def ports(self) -> Ports:
        return self._opened.ports

    def ring(self, queue_id: str) -> None:
        """Wake poppers of a queue that wait for messages."""
        with _lock:
            if queue_id not in self._bells:
                self._bells[queue_id] = self._opened.doorbell(queue_id)
        self._bells[queue_id].ring()

    def close(self) -> None:
        """Close it. An error is only logged: nothing depends on it."""
        try:
            for bell in self._bells.values():
                bell.close()
            self._opened.close()
        except CassqError as exc:
            logger.warning("queues could not be closed: %s", exc)

    def abandon(self) -> object:
        """The objects that a forked child must keep alive and never use."""
        return self, self._opened.abandon()


class Location(NamedTuple):
    """Where the driver found the queues. identity: the catalog's. machine: the driver's boot ID if
    they are in a directory, which works on one machine only; empty for a keyspace. host: the
    driver's host name, for messages."""

    url: str
    identity: str
    machine: str
    host: str


def located(url: str) -> Location:
    """The location of the queues at an absolute URL, on the driver. Raises as `cassq.connect`.
    Cost: a read of the catalog, the first time."""
    ports = place_of(url).ports
    machine = ports.clock.boot_id() if url.startswith("file:") else ""
    return Location(url, ports.catalog.records.identity(), machine, socket.gethostname())


def place_at(location: Location) -> SparkPlace:
    """This process's place at the location that the driver found. Raises as `cassq.connect`, and
    ConfigError if the URL names other queues here than on the driver: those of another machine, or
    queues that replaced the driver's."""
    here = located(location.url)
    if (here.identity, here.machine) == (location.identity, location.machine):
        return place_of(location.url)
    raise ConfigError(
        f"{location.url} names other queues on {here.host} ({here.identity}) than on the driver,"
        f" {location.host} ({location.identity})"
        if here.identity != location.identity
        else f"{location.url} is a copy on {here.host} of the directory {here.identity} of the"
        f" driver, {location.host}",
        hint="a directory works for Spark on one machine only; on several, use a keyspace of"
        " Cassandra",
    )


def place_of(url: str) -> SparkPlace:
    """This process's place at `url`, which stays open. Raises as `cassq.connect`."""
    with _lock:
        place = _places.get(url)
        if place is None:
            place = _places[url] = SparkPlace(url)
        return place


def queue_of(ports: Ports, name: str) -> QueueRow:
    """The row of a queue. Raises QueueNotFoundError. Cost: a read."""
    return row_named(name, ports.catalog.queues.named)


def _at_exit() -> None:
    for place in _places.values():
        place.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _of_the_parent.extend(place.abandon() for place in _places.values())
    _places.clear()
    _clients.clear()  # clients handle the fork themselves


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


def client_of(url: str) -> Client:
    """This process's client at `url`, which stays open. Raises as `cassq.connect`."""
    from cassq.client.connecting import connect

    with _lock:
        client = _clients.get(url)
        if client is None or client.ports.life.closed:
            client = _clients[url] = connect(url, create=False)
        return client


def absolute(url: str | None) -> str:
    """A URL that means the same in every process: a relative directory is made absolute, from this
    process's working directory.

    url: None or empty for `CASSQ_URL`. Raises ConfigError without either.
    """
    url = url or os.environ.get("CASSQ_URL")
    if not url:
        raise ConfigError(
            "the option `url` is missing",
            hint="say where the queues are, such as file:///var/lib/cassq or"
            " cassandra://host/keyspace; without it, the driver's CASSQ_URL is used",
        )
    scheme, _, rest = url.partition(":")
    if scheme != "file":
        return url
    place, mark, query = rest.partition("?")
    return f"file://{Path(directory_of(place)).absolute()}{mark}{query}"
