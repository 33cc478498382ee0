"""Many tiny pipes, one after another, as pushers of small batches make them: the last ones cost
what the first ones did.

Real clients and the real reaper, in real time. What is demanded is counted: requests, and
Cassandra's own metric of tombstones per read. How many pipes a second there were is printed.
CASSQ_SLOPE=40, as with `./dev slope`, makes 2,000 pipes.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import pytest

pytest.importorskip("cassandra")

from cassandra.cluster import ResponseFuture

from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cassandra.session import Contact, Cql
from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.client.backends.embedded import Embedded
from cassq.client.client import Client
from cassq.client.queue import Queue
from cassq.doorbell import PollingDoorbell
from cassq.extents.cassandra import CassandraStore
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.catalog_cassandra.rolling import pass_through
from tests.integration.deadlines import eventually
from tests.servers.kinds.cassandra import CassandraCluster

pytestmark = [
    pytest.mark.usefixtures("midday"),
    pytest.mark.long(reason="hundreds of pipes are rolled"),
]

KEYSPACE = "rolling"
PIPES = max(400, 50 * int(os.environ.get("CASSQ_SLOPE", "1")))
PER_PIPE = 10
PARTS = 5
# Of these tables a read passes the tombstones of entries since the last deletion of a gap.
LISTINGS = ("queue_pipes", "group_pipes", "consumed_pipes")
# Without these deletions it passes hundreds; with them some ten, also of 2,000 pipes on a busy
# machine. How many entries go between two is not only the client's doing: where answers come late,
# another takes over that is not done with its own.
TOMBSTONES_MOST = 20
GROWTH_MOST = 1.2
PATIENCE = 120.0


class Counted(Cql):
    """Counts requests of each kind: all, and those of the thread that made it, without what the
    client does beside. Not those sent again, as on a busy machine."""

    sent: Counter[Any]
    mine: Counter[Any]

    def send(self, statement: Any) -> ResponseFuture:
        if not hasattr(self, "sent"):
            self.sent, self.mine, self._maker = Counter(), Counter(), threading.current_thread()
        self._count(statement, 1)
        return super().send(statement)

    def again(self, statement: Any) -> ResponseFuture:
        future = super().again(statement)
        self._count(statement, -1)
        return future

    def _count(self, statement: Any, number: int) -> None:
        self.sent[statement.kind] += number
        if threading.current_thread() is self._maker:
            self.mine[statement.kind] += number


class Place(NamedTuple):
    client: Client
    cql: Counted


class Part(NamedTuple):
    """A part of the pipes. mine: requests for which the pushing and popping thread waited."""

    pipes_per_second: float
    requests: float  # a pipe
    mine: float


@pytest.fixture(scope="module")
def tables(cassandra1_for_the_session: CassandraCluster) -> Contact:
    """A keyspace that nobody else reads: its metrics are of this test."""
    servers = cassandra1_for_the_session
    contact = Contact(tuple(servers.contact_points), KEYSPACE, servers.port)
    cql = Cql(contact, SystemClock())
    schema.apply(cql, SystemClock(), {"": 1})
    cql.close()
    return contact


@pytest.fixture
def places(cassandra1: CassandraCluster, tables: Contact) -> Iterator[list[Place]]:
    """Two clients."""
    made: list[Place] = []
    for _ in range(2):
        clock = SystemClock()
        cql = Counted(tables, clock, keyspace=KEYSPACE)
        catalog, ids = CassandraCatalog(cql, clock), Ids()
        locker = LeaseLocker(catalog, ids.client)
        ports = Ports(catalog, CassandraStore(cql, clock), locker, clock, ids, Lifecycle())
        embedded = Embedded(ports, lambda _: PollingDoorbell(), cql.abandon)
        made.append(Place(Client("cassandra:", embedded, clock), cql))
    yield made
    for place in made:
        place.client.close()


def rolled(queue: Queue, cql: Counted, pipes: int) -> list[Part]:
    """Push, pop and commit a pipe at a time."""
    parts: list[Part] = []
    payloads = [b"ten bytes!"] * PER_PIPE
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(PARTS):
            before, mine, began = cql.sent.total(), cql.mine.total(), perf_counter()
            for _ in range(pipes // PARTS):
                pass_through(pusher, popper, payloads)
            count = pipes // PARTS
            parts.append(
                Part(
                    count / (perf_counter() - began),
                    (cql.sent.total() - before) / count,
                    (cql.mine.total() - mine) / count,
                )
            )
    return parts


def beats_read(place: Place, name: str) -> int:
    """By one pass of the reaper."""
    before = place.cql.mine["read", "beats"]
    place.client.reaper.reap(only=[name])
    return place.cql.mine["read", "beats"] - before


def beats_of_passes(place: Place) -> tuple[dict[str, int], int] | None:
    """By name, the beats that each pass of the reaper reads, and how many pipes are not sealed.
    None if there were others meanwhile, as the pusher may open one at any moment, and beats are
    also read of one that is just removed; or if another client has the leases of all passes."""
    pipes = place.client.ports.catalog.pipes

    def listed() -> tuple[set[str], bool]:
        return {pipe.id for pipe in pipes.unsealed()}, bool(pipes.consumed())

    before = listed()
    beats = {name: beats_read(place, name) for name in place.client.reaper.names}
    unsealed, leave = after = listed()
    if leave or before != after or not any(beats.values()):
        return None
    return beats, len(unsealed)


def test_rolling_costs_the_same_after_many_pipes(places: list[Place]) -> None:
    place, reaper = places
    queue = place.client.create_queue("rolling", max_pushes_per_pipe=PER_PIPE)
    parts = rolled(queue, place.cql, PIPES)
    for part in parts:
        print(*(f"{value:.1f}" for value in part))
    with queue.pusher() as pusher:

        def looked() -> tuple[dict[str, int], int] | None:
            """On a slow machine the pipe that is open may seem abandoned, and is sealed."""
            if not reaper.client.ports.catalog.pipes.unsealed():
                pusher.push(b"it keeps a pipe open")
            beats_read(reaper, "seal")  # so it knows which pipes are sealed
            return beats_of_passes(reaper)

        beats, unsealed = eventually("no pipe comes or goes", looked, seconds=PATIENCE)
    print(beats)
    assert max(beats.values()) <= unsealed
    rows = place.cql._session.execute(
        "SELECT keyspace_name, table_name, p99th FROM system_views.tombstones_per_read"
    )
    found = {table: most for keyspace, table, most in rows if keyspace == KEYSPACE}
    print(found)
    assert found["group_pipes"], "it was read"
    assert {each: found[each] for each in LISTINGS if found[each] > TOMBSTONES_MOST} == {}
    assert parts[-1].mine <= GROWTH_MOST * parts[0].mine
    # Pipes are retired many at a time, at any moment.
    assert mean(part.requests for part in parts[-2:]) <= 2 * mean(p.requests for p in parts[:-2])
