"""How many round trips to Cassandra a pass of the reaper takes over queues with nothing to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.message.batches import Batch
from cassq.pipes import PipeWriter

pytest.importorskip("cassandra")

from cassq.catalog.cassandra import CassandraCatalog
from cassq.extents.cassandra import CassandraStore
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog_cassandra.counting import CountingCql
from tests.contract.catalog_cassandra.test_round_trips import TABLE

# "| pass `seal` | 6 |": as many as the docs say.
LINE = re.compile(r"\| pass `(?P<name>\w+)` \| (?P<trips>\d+) \|")
FEW, MANY = 3, 12
TRIES = 10


def documented() -> dict[str, int]:
    text = Path(TABLE).read_text(encoding="utf-8")
    return {found["name"]: int(found["trips"]) for found in LINE.finditer(text)}


def test_a_pass_takes_as_many_round_trips_however_many_queues_are_idle(
    cassandra_place: CassandraPlace,
) -> None:
    counting = CountingCql(cassandra_place.keyspace)
    clock, ids = ManualClock(), Ids()
    catalog = CassandraCatalog(counting, clock, time=cassandra_place.time.of(clock))
    store, locker = CassandraStore(counting, clock), LeaseLocker(catalog, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, Lifecycle())
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    taken: dict[int, dict[str, int]] = {}
    with cassq.Client("cassandra://", embedded, clock) as client:
        # It would reap in passing, after a second of the machine's.
        client.runtime.housekeeper.stop()
        for count in (FEW, MANY):
            for number in range(len(client.queues()), count):
                fill(client.create_queue(f"q{number}"), ports)
            client.reap()  # what is read once, and the samples of the minute
            taken[count] = {
                name: fewest_trips_of(client, name, counting, documented()[name])
                for name in client.reaper.names
            }
    assert taken[FEW] == taken[MANY] == documented()


def fewest_trips_of(client: cassq.Client, name: str, counting: CountingCql, wanted: int) -> int:
    """Of a pass, the fewest of some times, as some things are read once a second, which on a busy
    machine is each time. wanted: if it takes as many, or fewer, once is enough."""
    found = [trips_of(client, name, counting)]
    while found[-1] > wanted and len(found) < TRIES:
        found.append(trips_of(client, name, counting))
    return min(found)


def trips_of(client: cassq.Client, name: str, counting: CountingCql) -> int:
    """Of a pass that finds nothing to do. On a busy machine a conditional write may have no answer,
    and then takes more."""
    before = counting.waited
    assert client.reaper.reap(only=[name]) == []
    return counting.waited - before


def fill(queue: cassq.Queue, ports: Ports) -> None:
    """Leave a sealed pipe with messages waiting, of which one came back, and an open one."""
    with queue.pusher() as pusher:
        pusher.push_many([b"x"] * 3)
    with queue.popper() as popper:
        assert popper.pop(1)
    PipeWriter(ports, lambda: queue.row).append(Batch([b"y"], 0))
