"""Lockers on real servers: places for the contract suite, and what can be done to the servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cassq.base.clock import SystemClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.locks.lease import LeaseLocker
from cassq.locks.opening import open_locker
from cassq.locks.port import Locker
from cassq.locks.tokens import lease_tokens
from tests.contract.backends import LockerPlace
from tests.integration.deadlines import ticks
from tests.servers.kinds.hazelcast import SESSION_SECONDS

# Seconds of a session: so short that a test sees it run out, and so long that none does by itself,
# though the machine stands still for some seconds.
SHORT, LONG = 4, 30
# By the fixture of the servers it runs on; "?": what is added to their URL.
LOCK_SERVERS = {
    "zookeeper": ("zookeeper1", "?session={session}"),
    "zookeeper, three": ("zookeeper3", "?session={session}"),
    "hazelcast": ("hazelcast3", ""),
    "hazelcast without cp": ("hazelcast1", "?cp=no"),
}
LEASE = "lease"


LAPSES = pytest.mark.long(reason="sessions and leases of servers run out")


def on_lock_servers(names: Iterable[str], *marks: pytest.MarkDecorator) -> list[Any]:
    """The same as parameters of a fixture that uses these servers."""
    found = []
    for name in names:
        servers = pytest.mark.servers(f"{LOCK_SERVERS[name][0]}_for_the_session")
        found.append(pytest.param(name, marks=[servers, *marks]))
    return found


def locker_at(url: str, directory: Path, owner: str) -> tuple[Locker, SqliteCatalog]:
    """A locker on the machine's clock, as a process would have it, and its catalog.

    url: of lock servers, or `lease`. directory: of the catalog, for leases and tokens.
    """
    clock = SystemClock()
    catalog = SqliteCatalog(directory / "catalog.sqlite", clock, durable=False)
    if url == LEASE:
        return LeaseLocker(catalog, owner), catalog
    try:
        return open_locker(url, clock, next_token=lease_tokens(catalog, owner)), catalog
    except BaseException:
        catalog.close()
        raise


class RealLocks(LockerPlace):
    """Lockers whose time is the machine's. url: as of `locker_at`, but for its options."""

    ttl_ms = 2000

    def __init__(self, url: str, directory: Path, options: str = "") -> None:
        self._address, self._options = url, options
        self.ask_for_sessions(SHORT)
        self.directory = directory
        self._opened: list[tuple[Locker, SqliteCatalog]] = []

    def ask_for_sessions(self, seconds: int) -> None:
        """Have those that are opened from now on ask for sessions so long, where they can."""
        self.url = self._address + self._options.format(session=seconds)

    def open(self, owner: str) -> Locker:
        self._opened.append(locker_at(self.url, self.directory, owner))
        return self._opened[-1][0]

    def pass_ms(self, ms: int) -> None:
        ticks(ms)

    def close(self) -> None:
        for locker, catalog in self._opened:
            locker.close()
            catalog.close()


class ServerLocks(RealLocks):
    """Lockers on servers, which a test may kill and pause."""

    tells_unasked = True

    def __init__(self, name: str, servers: Any, url: str, directory: Path, options: str) -> None:
        self.name = name
        self.servers = servers
        self.has_sessions = "without cp" not in name
        super().__init__(url, directory, options)
        # Hazelcast's fences begin again when all members were down; the catalog's tokens do not.
        self.keeps_data = name != "hazelcast"

    def ask_for_sessions(self, seconds: int) -> None:
        super().ask_for_sessions(seconds)
        length = seconds if "{session}" in self._options else SESSION_SECONDS
        self.session_ms = 1000 * length * self.has_sessions

    def close(self) -> None:
        # Lockers end in time only if somebody answers. And a leader that stands still until the
        # next test comes to these servers is long missing when it goes on.
        for node in self.servers.nodes:
            if node.alive:
                node.resume()
        super().close()


def server_place(name: str, request: pytest.FixtureRequest, directory: Path) -> ServerLocks:
    """The place of that name in the table, on servers that are started if need be."""
    fixture, options = LOCK_SERVERS[name]
    servers = request.getfixturevalue(fixture)
    # Each test has locks of its own where that can be said in the URL.
    path = (f"cassq-{uuid.uuid4().hex}",) if servers.kind == "zookeeper" else ()
    return ServerLocks(name, servers, servers.url(*path), directory, options)
