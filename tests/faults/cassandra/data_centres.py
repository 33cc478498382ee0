"""Two data centres that are cut off from each other. Not part of a plain run: it takes minutes
where processors are few. `./dev data-centres` runs it; only root may, as networks are cut.

One node each, every keyspace with a replica in both:
- `east` and `west` each belong to one data centre: all its clients, wherever they are, name that
  one with `dc=` and use its quorum (LOCAL_QUORUM, LOCAL_SERIAL).
- `both` has one quorum over the two (QUORUM, SERIAL), which neither side has when they are cut
  off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cassandra.session import Contact, Cql
from cassq.catalog.cassandra import schema
from cassq.client.backends.cluster import contact_of
from cassq.errors import BackendError, BackendUnavailableError, ConfigError, is_outage
from cassq.extents.cassandra import CassandraStore
from tests.contract.extents.test_extents import frame
from tests.integration.deadlines import eventually
from tests.servers.fixtures import running
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.cql import query

PATIENCE = 600.0
KEYSPACES = ("east", "west", "both")
EAST, WEST = 1, 2  # the nodes, and the numbers of their data centres


@pytest.fixture(scope="module")
def whole_cluster() -> Iterator[CassandraCluster]:
    for servers in running(cassandra.cluster(nodes=2, partitions=True, data_centers=(1, 1))):
        assert isinstance(servers, CassandraCluster)
        for keyspace in KEYSPACES:
            make_tables(servers, keyspace)
        servers.await_ready()  # they agree now
        for keyspace in KEYSPACES:
            contact = Contact((servers.node(EAST).address,), keyspace, data_centre="dc1")
            cql = Cql(contact, SystemClock())
            try:
                schema.apply(cql, SystemClock())
            finally:
                cql.close()
        yield servers


def make_tables(servers: CassandraCluster, keyspace: str) -> None:
    """As `schema.apply` does, but without waiting for both nodes to agree after each table."""

    def ask(text: str) -> None:
        query(servers.node(EAST).address, servers.port, text, seconds=60.0)

    replication = "{'class': 'NetworkTopologyStrategy', 'dc1': 1, 'dc2': 1}"
    ask(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}")
    for statement in schema.create_statements():
        ask(re.sub("(CREATE TABLE IF NOT EXISTS) ", rf"\1 {keyspace}.", statement, count=1))


@pytest.fixture
def servers(whole_cluster: CassandraCluster) -> Iterator[CassandraCluster]:
    yield whole_cluster
    whole_cluster.heal()
    whole_cluster.await_ready()


def url(servers: CassandraCluster, keyspace: str, side: int, options: str = "") -> str:
    """The keyspace as it is reached from one side."""
    return f"cassandra://{servers.node(side).address}/{keyspace}?dc=dc{side}{options}"


def session(servers: CassandraCluster, keyspace: str, side: int) -> Cql:
    rest, _, _ = url(servers, keyspace, side).partition("?")
    contact = contact_of(rest.removeprefix("cassandra:"), {"dc": f"dc{side}"})
    return Cql(contact, SystemClock(), keyspace=keyspace)


def drained(queue: cassq.Queue) -> Counter[int]:
    found: Counter[int] = Counter()
    with queue.popper() as popper:
        while messages := popper.pop(1000):
            found.update(int(message.payload) for message in messages)
            popper.commit(messages)
    return found


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_cut_off_data_centres_both_continue_each_in_its_own_keyspace(
    servers: CassandraCluster, consistency: str
) -> None:
    name = f"jobs.{consistency}"
    with (
        cassq.connect(url(servers, "east", EAST)) as east,
        cassq.connect(url(servers, "west", WEST)) as west,
    ):
        queues = [client.create_queue(name, consistency=consistency) for client in (east, west)]
        pushers = [queue.pusher() for queue in queues]
        for at, pusher in enumerate(pushers):
            pusher.push(b"%d" % at)
        servers.partition(EAST)
        for at, (queue, pusher) in enumerate(zip(queues, pushers, strict=True)):
            for number in range(10 + at, 50, 2):
                pusher.push(b"%d" % number)
            with queue.popper() as popper:
                (message,) = popper.pop(1, wait=30)
                popper.commit([message])
                assert int(message.payload) == at
        servers.heal()
        servers.await_ready()
        # One consumer takes from both.
        assert drained(queues[0]) + drained(queues[1]) == Counter(range(10, 50))
        for queue in queues:
            assert queue.audit().balanced


def test_with_one_quorum_across_both_sides_neither_has_it_and_ap_pushes_are_spilled(
    servers: CassandraCluster, tmp_path: Path
) -> None:
    options = "&consistency=quorum&serial=serial"
    with (
        cassq.connect(url(servers, "both", EAST, options), spill=str(tmp_path / "1")) as east,
        cassq.connect(url(servers, "both", WEST, options), spill=str(tmp_path / "2")) as west,
    ):
        east.create_queue("jobs")
        east.create_queue("orders", consistency="cp").pusher().push(b"0")
        queues = [client.queue("jobs") for client in (east, west)]
        pushers = [queue.pusher() for queue in queues]
        assert not any(pusher.push(b"%d" % at).spilled for at, pusher in enumerate(pushers))
        servers.partition(EAST)
        for at, pusher in enumerate(pushers):
            for number in range(10 + at, 50, 2):
                assert pusher.push(b"%d" % number).spilled
        for client in (east, west):
            with pytest.raises(BackendError) as caught:
                client.queue("orders").pusher().push(b"1")
            assert is_outage(caught.value)
        servers.heal()
        servers.await_ready()
        for client in (east, west):
            spool = client.spool
            assert spool is not None
            eventually(
                "it is forwarded",
                lambda s=spool: (
                    not s.overflow.down and not any(each.waiting for each in s.contents())
                ),
                seconds=PATIENCE,
            )
        assert drained(queues[0]) == Counter([0, 1, *range(10, 50)])
        # Of the cp queue's refused push nobody was told that it counts: it may or may not.
        assert drained(east.queue("orders")) in (Counter([0]), Counter([0, 1]), Counter([0, 1, 1]))


def test_an_extent_is_sealed_only_from_its_own_data_centre(servers: CassandraCluster) -> None:
    near, far = session(servers, "east", EAST), session(servers, "east", WEST)
    try:
        pipe_id = Ids().new(SystemClock().wall_ms())
        writer = CassandraStore(near, SystemClock()).create(pipe_id, "q")
        writer.append([frame(0, 3, pipe_id, 10)], 3)
        with pytest.raises(BackendUnavailableError, match="written in data centre 'dc1'.*'dc2'"):
            CassandraStore(far, SystemClock()).seal(pipe_id)
        servers.partition(EAST)
        writer.append([frame(3, 2, pipe_id, 10)], 5)
        assert CassandraStore(near, SystemClock()).seal(pipe_id).seq == 5
    finally:
        near.close()
        far.close()


def test_clients_of_one_keyspace_whose_quorums_do_not_overlap_are_refused(
    servers: CassandraCluster,
) -> None:
    cassq.connect(url(servers, "east", EAST)).close()
    with pytest.raises(ConfigError, match="consistency=quorum&serial=serial"):
        cassq.connect(url(servers, "east", WEST))
