"""Queues in a keyspace whose messages are on sidecars, each a process: the life of messages, pipes
and replicas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.contact import Contact
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import schema
from cassq.inspect.history import MINUTE_MS
from cassq.lifecycle.sealing import STRAY_MS
from cassq.model.sidecar_rows import SidecarRow
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.stage import Connect, drain, numbers, payloads, push, reap
from tests.servers.fixtures import running
from tests.servers.kinds import sidecar
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.sidecar import SidecarCluster

pytestmark = pytest.mark.servers

KEYSPACE = "sidecar_queues"


@pytest.fixture(scope="module")
def keyspace(cassandra1_for_the_session: CassandraCluster) -> Iterator[str]:
    """The URL of a keyspace with tables, whose store nobody has chosen yet."""
    servers = cassandra1_for_the_session
    contact = Contact(tuple(servers.contact_points), KEYSPACE, servers.port)
    with closing(Cql(contact, SystemClock())) as cql:
        schema.apply(cql, SystemClock(), {"": 1})
    return servers.url(KEYSPACE)


@pytest.fixture(scope="module")
def sidecars_for_the_module(keyspace: str) -> Iterator[SidecarCluster]:
    yield from running(sidecar.cluster(nodes=3, catalog=keyspace, replicas=2))


@pytest.fixture
def sidecars(
    cassandra1: CassandraCluster, sidecars_for_the_module: SidecarCluster
) -> SidecarCluster:
    """Three of the keyspace; a pipe is on two of them."""
    sidecars_for_the_module.mend()
    return sidecars_for_the_module


@pytest.fixture
def url(sidecars: SidecarCluster) -> str:
    return sidecars.url("repair_after=0")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue's name that no other test has."""
    return str(request.node.name)


def kept(client: cassq.Client, row: SidecarRow) -> set[str]:
    """The pipes that a sidecar has, as it tells itself."""
    upkeep = client.ports.upkeep
    assert upkeep is not None
    return {extent.pipe_id for extent in upkeep.extents(row)}


def holders(client: cassq.Client, pipe_id: str) -> set[str]:
    """Where a pipe is, as its placement tells."""
    (placement,) = client.ports.catalog.sidecars.placements_of([pipe_id])
    return {replica.sidecar for replica in placement.replicas} if placement else set()


@pytest.mark.long(reason="Cassandra and sidecar processes")
def test_messages_are_delayed_retried_and_become_dead_letters(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.create_queue(name, max_deliveries=2, retry_schedule=[0.1], sick_check=False)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(9))
        pusher.push(b"9", delay=0.3, headers={"late": "1"})
    assert client.ports.catalog.pipes.ids()
    found: Counter[bytes] = Counter()
    letters = f"{name}~default~dead"

    def over() -> bool:
        popper = queue.popper()
        for message in popper.pop(20):
            found[message.payload] += 1
            if int(message.payload) % 2:
                message.nack(error="odd")
            else:
                message.ack()
        popper.close()
        return sum(found.values()) == 15  # five even ones, and five odd ones twice

    eventually("each was delivered as often as it may be", over)
    assert found == {b"%d" % n: 1 + n % 2 for n in range(10)}
    dead = {m.payload: dict(m.headers) for m in client.queue(letters).popper().pop(20)}
    assert sorted(dead) == [b"1", b"3", b"5", b"7", b"9"]
    assert dead[b"9"]["late"] == "1"
    assert client.queue(letters).audit().findings == []
    other = connect().queue(name)
    stats = other.stats().groups["default"]
    assert (stats.committed, stats.dead, stats.waiting) == (5, 5, 0)
    assert other.audit().findings == []


@pytest.mark.long(reason="Cassandra and sidecar processes")
def test_dead_letters_are_merged_back(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.create_queue(name, max_deliveries=1, sick_check=False)
    push(queue, *numbers(6))
    popper = queue.popper()
    popper.dead(popper.pop(6), "no such customer")
    assert queue.dead_letters().merge().messages == 6
    assert Counter(payloads(drain(connect().queue(name).popper()))) == Counter(numbers(6))
    audit = connect().queue(name).audit()
    assert (audit.groups["default"].committed, audit.findings) == (6, [])


@pytest.mark.long(reason="Cassandra and sidecar processes")
def test_a_strict_queue_keeps_the_order_of_its_pushers(connect: Connect, name: str) -> None:
    queue = connect().create_queue(name, consistency="cp", max_pushes_per_pipe=7)
    one, two = queue.pusher(), connect().queue(name).pusher()
    for turn in range(5):
        for number, pusher in ((0, one), (3, two)):
            first = turn * 6 + number
            pusher.push_many(numbers(2, first))
            pusher.push(b"%d" % (first + 2))
    popper = connect().queue(name).popper()
    found = popper.pop(4)
    assert connect().queue(name).popper().pop(1) == [], "somebody has what comes before"
    popper.rollback(found)
    in_order: list[bytes] = []
    while len(in_order) < 30 and (found := popper.pop(4, wait=DEADLINE_SECONDS)):
        popper.commit(found)
        in_order += payloads(found)
    assert in_order == numbers(30)
    audit = connect().queue(name).audit()
    assert (audit.pushed, audit.findings) == (30, [])


def test_what_was_consumed_leaves_nothing_on_sidecars(connect: Connect, name: str) -> None:
    client = connect()
    queue = client.create_queue(name)
    for first in (0, 100):
        push(queue, *numbers(100, first))
    catalog = client.ports.catalog
    pipe_ids = {pipe.id for pipe in catalog.pipes.live(queue.id)}
    assert len(pipe_ids) == 2
    rows = catalog.sidecars.listed()
    assert len(rows) == 3
    for pipe_id in pipe_ids:
        on = {row.name for row in rows if pipe_id in kept(client, row)}
        assert on == holders(client, pipe_id)
        assert len(on) == 2
    assert len(drain(connect().queue(name).popper())) == 200

    def gone() -> bool:
        reap(client)
        return not any(holders(client, pipe_id) for pipe_id in pipe_ids)

    eventually("they are retired", gone)
    assert not any(pipe_ids & kept(client, row) for row in rows)
    assert queue.stats().pipes["retired"] == 2
    assert queue.audit().findings == []


def test_what_never_had_a_pipe_is_swept(connect: Connect, name: str) -> None:
    """As when a pusher ended between the extent and the row of its pipe."""
    client = connect()
    ports = client.ports
    made_ms = ports.catalog.now_ms() - STRAY_MS - 1000
    stray, young = ports.ids.new(made_ms), ports.ids.new(made_ms + STRAY_MS)
    for pipe_id in (stray, young):
        ports.store.create(pipe_id, name).close()
    assert len(holders(client, stray)) == 2
    # Whoever looked for strays in the last minutes has noted so.
    ports.catalog.records.forget_samples(MINUTE_MS, ports.catalog.now_ms())

    def gone() -> bool:
        reap(connect())
        return not holders(client, stray)

    eventually("it is swept", gone)
    rows = ports.catalog.sidecars.listed()
    assert not any(stray in kept(client, row) for row in rows)
    assert len(holders(client, young)) == 2, "its row may yet come"
    ports.store.drop([young])


@pytest.mark.long(reason="Cassandra and sidecar processes")
def test_what_a_sidecar_had_that_is_gone_is_copied(
    connect: Connect, name: str, sidecars: SidecarCluster
) -> None:
    client = connect()
    queue = client.create_queue(name)
    for first in range(0, 600, 100):
        push(queue, *numbers(100, first))
    pipe_ids = [pipe.id for pipe in client.ports.catalog.pipes.live(queue.id)]
    lost = next(node for node in sidecars.nodes if node.told_name in holders(client, pipe_ids[0]))
    lost.stop()
    others = {node.told_name for node in sidecars.nodes if node is not lost}

    def repaired() -> bool:  # by this client, or by another in passing
        reap(client)
        return all(holders(client, pipe_id) == others for pipe_id in pipe_ids)

    eventually("all have two replicas again", repaired)
    rows = [row for row in client.ports.catalog.sidecars.listed() if row.name in others]
    assert all(set(pipe_ids) <= kept(client, row) for row in rows)
    assert queue.audit().findings == []
    messages = drain(connect().queue(name).popper())
    assert Counter(payloads(messages)) == Counter(numbers(600))
