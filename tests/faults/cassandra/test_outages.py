"""Calls of a client on three Cassandra nodes that have just lost their majority: each comes back
with an error within the client's patience, from the first one on.

What is held against the patience is how long a call lets itself wait: for answers, each for at most
the timeout of its request, and in pauses between attempts. How fast the machine is plays no part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import pytest

pytest.importorskip("cassandra")

from cassandra.cluster import ResponseFuture
from cassandra.query import PreparedStatement

import cassq
from cassq.base.clock import Stopwatch, SystemClock
from cassq.base.ids import Ids
from cassq.base.sharing import Background, Sharing
from cassq.cassandra.session import Contact, Cql
from cassq.catalog.cassandra import CassandraCatalog
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.errors import BackendError, is_outage
from cassq.extents.cassandra import CassandraStore
from cassq.lifecycle.ports import Ports, TimedLife
from cassq.locks.lease import LeaseLocker
from cassq.locks.turns import Turns
from tests.contract.keyspaces import opened_keyspace
from tests.integration.deadlines import joined
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.parts.node import Node

pytestmark = pytest.mark.long(reason="three Cassandra nodes that are killed and stopped")
KEYSPACE = "outages"
PATIENCE, TIMEOUT = 1.0, 5.0
# Time is measured in milliseconds, at each of a few attempts.
ROUNDING = 0.05


class Waits:
    """How long the current call of one thread has let itself wait, in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.thread: threading.Thread | None = None

    def add(self, seconds: float) -> None:
        if threading.current_thread() is self.thread:
            self.seconds += max(0.0, seconds)


class PausingClock(SystemClock):
    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self._waits = waits

    def sleep(self, seconds: float) -> None:
        self._waits.add(seconds)
        super().sleep(seconds)


class WaitingCql(Cql):
    """Notes how long its callers wait for answers, once it has `waits`."""

    waits: Waits | None = None

    def measure(self, waits: Waits) -> None:
        self._watch = Stopwatch()
        # When the timeout of a request ends, on that watch.
        self._until = WeakKeyDictionary[ResponseFuture, float]()
        self.waits = waits

    def send(self, statement: Any) -> ResponseFuture:
        if self.waits is None:
            return super().send(statement)
        since = self._watch.seconds()  # the timeout begins while it is sent, which may take long
        future = super().send(statement)
        self._until[future] = since + future.timeout
        return future

    def _result(self, future: ResponseFuture, *, conditional: bool) -> list[Any]:
        if self.waits is None:
            return super()._result(future, conditional=conditional)
        since = self._watch.seconds()
        try:
            return super()._result(future, conditional=conditional)
        finally:
            self.waits.add(min(self._watch.seconds(), self._until.get(future, since)) - since)

    def _prepare(self, text: str, qualified: str) -> PreparedStatement:
        watch = Stopwatch()
        try:
            return super()._prepare(text, qualified)
        finally:
            if self.waits is not None:
                self.waits.add(min(watch.seconds(), TIMEOUT))


def connected(servers: CassandraCluster, waits: Waits) -> cassq.Client:
    """A client as `connect` makes them."""
    clock, ids = PausingClock(waits), Ids()
    life = TimedLife(clock)
    contact = Contact(tuple(servers.contact_points), KEYSPACE, timeout=TIMEOUT)
    cql = WaitingCql(contact, clock, keyspace=KEYSPACE, patience=PATIENCE, call=life.call)
    cql.measure(waits)
    catalog, store = CassandraCatalog(cql, clock), CassandraStore(cql, clock)
    locker = LeaseLocker(catalog, ids.client)
    sharing = Sharing[Any, Any, Any](Background())
    turns = Turns(catalog.leases, locker, clock, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, life, sharing, cql.requests, None, turns)
    embedded = Embedded(ports, lambda _: PollingDoorbell(), lambda: (cql.abandon(), store))
    return cassq.Client("cassandra:", embedded, clock)


@pytest.fixture(scope="module", autouse=True)
def tables(cassandra3_for_the_session: CassandraCluster) -> None:
    for cql in opened_keyspace(cassandra3_for_the_session, KEYSPACE):
        cql.close()


def error_of(what: str, waits: Waits, act: Callable[[], object]) -> BackendError:
    """The error that a call ends with, having waited no longer than it may. It is made in a thread
    of its own: one that hangs, as the nodes do until the test ends, must not hang the test."""
    errors: list[BackendError] = []

    def run() -> None:
        try:
            act()
        except BackendError as exc:
            errors.append(exc)

    waits.seconds, waits.thread = 0.0, threading.Thread(target=run, daemon=True)
    waits.thread.start()
    joined(what, waits.thread)
    assert waits.seconds <= PATIENCE + ROUNDING, what
    (error,) = errors
    return error


@pytest.mark.parametrize("trouble", [Node.kill, Node.pause])
@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_each_call_without_a_majority_ends_with_an_error_within_its_patience(
    cassandra3: CassandraCluster,
    trouble: Callable[[Node], None],
    consistency: Literal["ap", "cp"],
) -> None:
    waits, name = Waits(), f"jobs.{consistency}.{trouble.__name__}"
    with closing(connected(cassandra3, waits)) as client:
        queue = client.create_queue(name, consistency=consistency)
        pusher, popper = queue.pusher(), queue.popper()
        pusher.push_many([b"a"] * 20)
        popper.commit(popper.pop(1))
        new_pusher, new_popper = queue.pusher(), queue.popper()
        for number in (2, 3):
            trouble(cassandra3.node(number))
        calls: dict[str, Callable[[], object]] = {
            "the first push": partial(pusher.push, b"b"),
            **{f"pop {number}": popper.pop for number in range(4)},
            "the first push of a pusher": partial(new_pusher.push, b"b"),
            "the first pop of a popper": new_popper.pop,
            "another push": partial(pusher.push, b"b"),
        }
        for what, act in calls.items():
            assert is_outage(error_of(what, waits, act)), what
        cassandra3.mend()
