"""No slope on Cassandra: what was pushed, claimed and retired long ago costs nothing any more.

Cassandra's own numbers are demanded: tombstones per read of each table, and what it traces of
single requests. CASSQ_SLOPE=N makes the history N times as long, as `./dev slope` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

pytest.importorskip("cassandra")

from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cassandra.cluster_time import Learn
from cassq.cassandra.session import SERVER_TIME, Contact, Row
from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.catalog.cassandra.claims.cursor_tables import COVER_PIPES, LIST_PIPES, NOTE_PIPE
from cassq.catalog.cassandra.partition.tombstones import SETTLED_US
from cassq.client.backends.embedded import Embedded
from cassq.client.client import Client
from cassq.client.queue import Queue
from cassq.consumer.delivery import Message
from cassq.doorbell import PollingDoorbell
from cassq.extents.cassandra import CassandraStore
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from tests.contract.catalog_cassandra.rolling import pass_through
from tests.contract.catalog_cassandra.traced import Read, Traced
from tests.servers.kinds.cassandra import CassandraCluster

pytestmark = [
    pytest.mark.usefixtures("midday"),
    pytest.mark.long(reason="a long history is made first"),
]

KEYSPACE = "slope"
TIMES = int(os.environ.get("CASSQ_SLOPE", "1"))
MILLION = 1_000_000
PIPES = 30 * TIMES
PER_PIPE, PER_CLAIM = 60, 6
CLAIMS = 100 * TIMES
SECONDS_A_PIPE = 5.0
SETTLED_SECONDS = SETTLED_US / 1e6 + 1
FRAME = 5000
# Nothing ends by itself while the clock leaps.
LASTING = {"lease": 3600.0, "claim_timeout": 86400.0, "idle_seal": 86400.0}
SMALL = {
    "max_pushes_per_pipe": PER_PIPE,
    "retry_schedule": (0.0,),
    "max_deliveries": 2,
    "sick_check": False,
    **LASTING,
}

# Tombstones in a read, at most, in a steady state of a pipe each five seconds: a few of the last
# seconds, or one for each gap. Every other table: none; the histogram tells 0 and 1 alike.
FEW = {
    "queue_pipes": 25,
    "group_pipes": 25,
    "consumed_pipes": 25,
    "claims": 25,
    "queue_names": 6,
    "members": 2,
}
NONE = 1
# By how much a first use of an old queue may differ from that of a new one; tombstones: a read.
FEW_TOMBSTONES = 10
FEW_MORE = (10, 10, FEW_TOMBSTONES)  # reads, rows of all, tombstones in one
RESTS_MAX = 5  # what is done beside falls behind on a busy machine, and is made up for


class LeapingClock(SystemClock):
    """A clock on which time passes as usual, and by leaps when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms

    def leap(self, seconds: float) -> None:
        self.ahead_ms += round(seconds * 1000)


class Leaping(Traced):
    """A session with servers whose time leaps with the clock, so that a client that comes later
    has the same time as one that was there before."""

    def read(self, text: str, values: Sequence[Any] = (), *, serial: bool = False) -> list[Row]:
        rows = super().read(text, values, serial=serial)
        return [(self._leapt(told_ms),) for (told_ms,) in rows] if text == SERVER_TIME else rows

    def _ask_time(self, learn: Learn) -> None:
        super()._ask_time(lambda asked_ms, told_ms: learn(asked_ms, self._leapt(told_ms)))

    def _leapt(self, told_ms: int) -> int:
        assert isinstance(self._clock, LeapingClock)
        return told_ms + self._clock.ahead_ms


class Place(NamedTuple):
    """A client, its session, and the time it lives by."""

    client: Client
    cql: Traced
    clock: LeapingClock


Open = Callable[[], Place]


@pytest.fixture(scope="module")
def clock() -> LeapingClock:
    """One for all tests: they share a keyspace, whose leases and entries are of this time."""
    return LeapingClock()


@pytest.fixture(scope="module")
def tables(cassandra1_for_the_session: CassandraCluster, clock: LeapingClock) -> Contact:
    """A keyspace that nobody else reads: its metrics are of these tests."""
    servers = cassandra1_for_the_session
    contact = Contact(tuple(servers.contact_points), KEYSPACE, servers.port)
    cql = Leaping(contact, clock)
    schema.apply(cql, clock, {"": 1})
    cql.close()
    return contact


@pytest.fixture
def open_place(
    cassandra1: CassandraCluster, tables: Contact, clock: LeapingClock
) -> Iterator[Open]:
    places: list[Place] = []

    def open_one() -> Place:
        cql = Leaping(tables, clock, keyspace=KEYSPACE)
        catalog, ids = CassandraCatalog(cql, clock), Ids()
        locker = LeaseLocker(catalog, ids.client)
        ports = Ports(catalog, CassandraStore(cql, clock), locker, clock, ids, Lifecycle())
        embedded = Embedded(ports, lambda _: PollingDoorbell(), cql.abandon)
        places.append(Place(Client("cassandra:", embedded, clock), cql, clock))
        return places[-1]

    yield open_one
    for place in places:
        place.client.close()


# --- what is done -----------------------------------------------------------------------------


def push_and_pop(queue: Queue, messages: int) -> None:
    """In big frames, one after another."""
    payloads = [b"sixteen bytes ok"] * FRAME
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(messages // FRAME):
            pass_through(pusher, popper, payloads)


def use_heavily(place: Place, queue: Queue, pipes: int, *, seconds_a_pipe: float) -> None:
    """Many pipes, many claims of a few messages each, acks out of order, failures, letters."""
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(pipes):
            pusher.push_many([b"%d" % number for number in range(PER_PIPE)])
            claims = [popper.pop(PER_CLAIM) for _ in range(PER_PIPE // PER_CLAIM)]
            for number, messages in enumerate(reversed(claims)):
                settle(list(messages), fails=number == 0)
                popper.flush()
            while messages := popper.pop(100):  # what failed: what is left would be ever more
                popper.commit(messages)
            place.clock.leap(seconds_a_pipe)
            place.client.reap()  # in passing it is done, too, but as often as the machine allows


def settle(messages: list[Message], *, fails: bool) -> None:
    for message in messages[1::2] + messages[::2]:
        if fails and message is messages[0]:
            message.nack()
        else:
            message.ack()


def rest(place: Place, queue: Queue) -> None:
    """Nothing happens for a while, and somebody is there: pipes are retired, that they went is
    seen, and later their gaps are covered; on a busy machine not all of it in the first rounds."""
    for _ in range(12):
        place.client.reap()
        with queue.popper() as popper:
            assert not popper.pop(1)
        place.client.reap()
        place.clock.leap(SETTLED_SECONDS)


def traced_use(open_place: Open, name: str) -> list[Read]:
    """What a process that knows nothing yet reads to push a message, pop it and commit it."""
    place = open_place()
    queue = place.client.queue(name)
    with place.cql.traced() as reads:
        with queue.pusher() as pusher:
            pusher.push(b"payload")
        with queue.popper() as popper:
            messages = popper.pop(1)
            popper.commit(messages)
    assert messages.payloads == [b"payload"]
    place.client.close()
    return reads


# --- what it costs ----------------------------------------------------------------------------


def tombstones_per_read(place: Place) -> dict[str, float]:
    """The most in one read of each table, by Cassandra's own metric."""
    rows = place.cql._session.execute(
        "SELECT keyspace_name, table_name, max FROM system_views.tombstones_per_read"
    )
    return {table: most for keyspace, table, most in rows if keyspace == KEYSPACE}


def test_in_a_steady_state_hardly_a_tombstone_is_read(open_place: Open) -> None:
    place = open_place()
    big = place.client.create_queue("million", max_pushes_per_pipe=MILLION // 5, **LASTING)
    push_and_pop(big, MILLION)
    small = place.client.create_queue("small", **SMALL)
    use_heavily(place, small, PIPES, seconds_a_pipe=SECONDS_A_PIPE)
    place.client.reap()
    found = tombstones_per_read(place)
    assert found["claims"], "it was read"
    too_many = {table: most for table, most in found.items() if most > FEW.get(table, NONE)}
    assert not too_many


def test_claims_behind_one_that_is_stuck_leave_no_tombstones(open_place: Open) -> None:
    """They are joined, and stay in the table until the stuck one is done."""
    place = open_place()
    queue = place.client.create_queue("stuck", **LASTING)
    with queue.pusher() as pusher:
        pusher.push_many([b"%d" % number for number in range(2 * CLAIMS)])
    with queue.popper() as stuck, queue.popper() as popper:
        stuck.pop(1)
        while len(messages := popper.pop(20)):
            for message in reversed(messages[:19]):
                message.ack()
                popper.flush()
            popper.commit(messages[19:])
        (pipe,) = place.client.ports.catalog.pipes.live(queue.row.id)
        (group,) = place.client.ports.catalog.queues.groups(queue.row.id)
        with place.cql.traced() as reads:
            (held, done) = open_place().client.ports.catalog.claims.rows(group.id, pipe.id)
            place.client.ports.catalog.claims.rows(group.id, pipe.id)
    assert (held.end, done.end) == (1, 2 * CLAIMS)
    assert reads
    assert all(read.rows <= 4 for read in reads)
    assert all(read.tombstones <= FEW_TOMBSTONES for read in reads)


def test_what_a_process_wrote_that_stood_still_is_not_covered(
    open_place: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write may be sent with a stamp of long ago, below which others remove what went."""
    place = open_place()
    send, sent = place.cql.send, list[object]()

    def stop_at_the_first(statement: Any) -> Any:
        future = send(statement)
        if "group_pipes" in statement.prepared_statement.query_string:
            if not sent:
                place.clock.leap(SETTLED_SECONDS)
            sent.append(statement)
        return future

    monkeypatch.setattr(place.cql, "send", stop_at_the_first)
    place.cql.write(NOTE_PIPE, ("group", "pipe"))
    assert len(sent) == 2
    beyond_the_first = place.cql.stamp() - SETTLED_US + 2_000_000
    place.cql.write(COVER_PIPES, (beyond_the_first, "group", "", "z"))
    assert place.cql.read(LIST_PIPES, ("group",)) == [("pipe",)]


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_queue_left_idle_after_heavy_use_pops_as_a_new_one(
    open_place: Open, consistency: str
) -> None:
    place = open_place()
    old, new = f"old.{consistency}", f"new.{consistency}"
    queue = place.client.create_queue(old, consistency=consistency, **SMALL)
    use_heavily(place, queue, PIPES, seconds_a_pipe=0.0)
    place.client.create_queue(new, consistency=consistency, **SMALL)
    of_new = traced_use(open_place, new)
    for _ in range(RESTS_MAX):
        rest(place, queue)
        of_old = traced_use(open_place, old)
        more = [old - new for old, new in zip(figures(of_old), figures(of_new), strict=True)]
        if all(each <= bound for each, bound in zip(more, FEW_MORE, strict=True)):
            break
    else:
        pytest.fail(f"reads, rows, most tombstones: {more} more than of a new queue")


def figures(reads: list[Read]) -> tuple[int, int, int]:
    """How many, the rows of all, and the most tombstones in one."""
    return len(reads), rows(reads), most_tombstones(reads)


def most_tombstones(reads: list[Read]) -> int:
    """In one read: those that a client removed since it last covered gaps, and a few ranges."""
    return max(read.tombstones for read in reads)


def rows(reads: list[Read]) -> int:
    return sum(read.rows for read in reads)
