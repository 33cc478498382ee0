"""A cluster that can be taken away, and clients of it that spill: for tests without servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import cassq
from cassq.base.clock import Clock, SystemClock
from cassq.client.backends.embedded import Embedded, open_directory
from cassq.client.spool import Spool
from cassq.errors import BackendTimeoutError, BackendUnavailableError
from cassq.extents.port import ExtentStore, ExtentWriter
from cassq.message.frames import Place as At
from tests.catalog_parts import ROLES
from tests.integration.fronts import Append, FrontWriter

_NEEDS_NO_SERVER = {"now_ms", "close", "abandon"}


class FakeCluster:
    """A directory that plays the cluster.

    down: whether it answers nothing. lost: how many of the next appends are done without an
    answer. before, after: called around each append.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.down = False
        self.lost = 0
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None
        self.clock: Clock = SystemClock()

    def open(self) -> Embedded:
        self.check()
        opened = open_directory(self.directory, self.clock, "os")
        ports = opened.ports._replace(
            catalog=Wire(self, opened.ports.catalog),  # type: ignore[arg-type]
            store=StoreWire(self, opened.ports.store),  # type: ignore[arg-type]
        )
        return opened._replace(ports=ports)

    def check(self) -> None:
        if self.down:
            raise BackendUnavailableError("the cluster is gone")

    def around(self, append: Append) -> At:
        self.check()
        self.before()
        end = append()
        self.after()
        if self.lost:
            self.lost -= 1
            raise BackendTimeoutError("no answer", outcome_unknown=True)
        return end

    @contextmanager
    def client(self, spool: Path) -> Iterator[cassq.Client]:
        """A client that spills to a directory."""
        client = self.started(spool)
        try:
            yield client
        finally:
            client.close()

    def started(self, spool: Path) -> cassq.Client:
        embedded = open_directory(spool, self.clock, "os")
        place = cassq.Client(f"file://{spool}", embedded, self.clock)
        return cassq.Client(
            "cassandra://fake", self.open(), self.clock, Spool(place.runtime, place.close)
        )


class Cluster(Protocol):
    """What may be out of reach. around: is given each append, to be done or not."""

    def check(self) -> None: ...
    def around(self, append: Append) -> At: ...


class Wire:
    """What leads to a port of a cluster."""

    def __init__(self, cluster: Cluster, port: Any) -> None:
        self._cluster = cluster
        self._port = port

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._port, name)
        if name in ROLES:
            return Wire(self._cluster, verb)
        if name in _NEEDS_NO_SERVER or not callable(verb):
            return verb

        def asked(*args: Any, **named: Any) -> Any:
            self._cluster.check()
            return verb(*args, **named)

        return asked


class StoreWire(Wire):
    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        self._cluster.check()
        store: ExtentStore = self._port
        writer = store.create(pipe_id, queue_name, strict=strict)
        return FrontWriter(writer, self._cluster.around)
