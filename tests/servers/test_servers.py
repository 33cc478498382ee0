"""Each server for real: it answers, is killed, paused and restarted, and keeps what it should."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.servers.cluster import Cluster
from tests.servers.fixtures import running
from tests.servers.kinds import cassandra, cql, zookeeper
from tests.servers.kinds.cassandra import CassandraCluster, CassandraNode
from tests.servers.kinds.hazelcast import HazelcastCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster, ZooKeeperNode
from tests.servers.parts.network import can_partition, obstacle

C = TypeVar("C", bound=Cluster[Any])

SCHEMA = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = 'kept'"
CREATE = (
    "CREATE KEYSPACE IF NOT EXISTS kept"
    " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
)


def answer_of(node: CassandraNode, text: str, consistency: int = cql.ONE) -> bytes:
    """The body of a query's result; a busy node may take longer than a probe of it waits."""
    port = CassandraCluster.port
    return cql.query(node.address, port, text, consistency=consistency, seconds=60.0)


@pytest.mark.long(reason="servers that are killed and start anew")
def test_a_killed_cassandra_node_comes_back_with_its_schema(cassandra1: CassandraCluster) -> None:
    node = cassandra1.node(1)
    answer_of(node, CREATE)
    found = answer_of(node, SCHEMA)
    assert b"kept" in found
    killed = node.pid
    node.kill()
    assert node.state == "down"
    assert not node.ready()
    node.restart()
    assert node.pid != killed
    assert answer_of(node, SCHEMA) == found


@pytest.mark.waits(reason="that a server is silent shows when no answer comes in time")
def test_a_paused_cassandra_node_is_silent_until_resumed(cassandra1: CassandraCluster) -> None:
    node = cassandra1.node(1)
    node.pause()
    assert node.state == "paused"
    assert not node.ready()
    node.resume()
    node.await_ready()
    assert node.state == "running"


@pytest.mark.long(reason="servers that are killed and start anew")
def test_three_cassandra_nodes_do_with_two_and_mend(cassandra3: CassandraCluster) -> None:
    assert cassandra3.whole()
    first, second, third = cassandra3.nodes
    answer_of(first, CREATE.replace("'replication_factor': 1", "'replication_factor': 3"))
    answer_of(first, "CREATE TABLE IF NOT EXISTS kept.rows (k text PRIMARY KEY, v text)")
    cassandra3.await_ready()  # the schema is everywhere
    second.kill()
    write = "INSERT INTO kept.rows (k, v) VALUES ('row', 'while one was down') IF NOT EXISTS"
    answer_of(third, write, cql.QUORUM)
    assert not cassandra3.nodes[1].ready()
    cassandra3.mend()
    assert cassandra3.whole()
    read = "SELECT v FROM kept.rows WHERE k = 'row'"
    assert b"while one was down" in answer_of(second, read, cql.QUORUM)


@pytest.mark.long(reason="servers that are killed and start anew")
@pytest.mark.servers
def test_settings_reach_cassandra() -> None:
    settings: dict[str, Any] = {
        "commitlog_sync": "group",
        "authentication": True,
        "data_centers": (1, 1),
    }
    options = {"tombstone_failure_threshold": 2000}
    with started(cassandra.cluster(nodes=2, options=options, **settings)) as servers:
        first, second = servers.nodes
        centre = "SELECT data_center FROM system.local"
        assert answer_of(first, centre).endswith(b"dc1")
        assert answer_of(second, centre).endswith(b"dc2")
        for name, value in (("commitlog_sync", b"group"), ("tombstone_failure_threshold", b"2000")):
            setting = f"SELECT value FROM system_views.settings WHERE name = '{name}'"
            assert answer_of(first, setting).endswith(value)
        drivers = pytest.importorskip("cassandra.cluster")
        refused = drivers.Cluster(
            servers.contact_points, protocol_version=5, connect_timeout=DEADLINE_SECONDS
        )
        with pytest.raises(drivers.NoHostAvailable, match="requires authentication"):
            refused.connect()
        refused.shutdown()
        assert servers.url("q").startswith("cassandra://cassandra:cassandra@127.")


@pytest.mark.long(reason="servers that are killed and start anew")
@pytest.mark.servers
def test_with_a_synced_commit_log_a_killed_node_loses_nothing_acknowledged() -> None:
    with started(cassandra.cluster(nodes=1, commitlog_sync="batch")) as servers:
        node = servers.node(1)
        answer_of(node, CREATE)
        answer_of(node, "CREATE TABLE kept.rows (k int PRIMARY KEY)")
        acknowledged = 200
        for key in range(acknowledged):
            answer_of(node, f"INSERT INTO kept.rows (k) VALUES ({key})")
        node.kill()
        node.restart()
        counted = answer_of(node, "SELECT count(*) FROM kept.rows")
        assert counted.endswith(acknowledged.to_bytes(8))


@contextmanager
def started(cluster: C) -> Iterator[C]:
    """A cluster for one test, of settings of its own."""
    yield from running(cluster)


@pytest.mark.waits(reason="a server starts anew")
def test_a_killed_zookeeper_server_comes_back_with_what_was_acknowledged(
    zookeeper1: ZooKeeperCluster,
) -> None:
    node = zookeeper1.node(1)
    with zookeeper_client(zookeeper1) as client:
        path = client.create("/kept-", b"payload", sequence=True)
        node.kill()
        assert node.mode() == ""
        node.restart()
    with zookeeper_client(zookeeper1) as client:
        assert client.get(path)[0] == b"payload"


@pytest.mark.long(reason="servers that are killed and start anew")
def test_an_ensemble_survives_its_leader_and_not_two_servers(zookeeper3: ZooKeeperCluster) -> None:
    leader = zookeeper3.leader()
    with zookeeper_client(zookeeper3) as client:
        leader.kill()
        path = client.retry(client.create, "/survives-", b"", sequence=True)
        assert client.exists(path)
    other = leading(zookeeper3)
    assert other is not leader
    other.pause()
    last = next(node for node in zookeeper3.nodes if node not in (leader, other))
    last.await_that("serves nobody", lambda: last.mode() == "", DEADLINE_SECONDS)
    zookeeper3.mend()
    assert zookeeper3.whole()


@pytest.mark.long(reason="servers that are killed and start anew")
@pytest.mark.servers
@pytest.mark.may_skip("network namespaces need root")
def test_servers_are_cut_off_from_each_other_and_from_clients() -> None:
    if not can_partition():
        pytest.skip(obstacle())
    with started(zookeeper.cluster(nodes=3, partitions=True)) as servers:
        cut_off = servers.leader()
        servers.partition(servers.nodes.index(cut_off) + 1)
        others = [node for node in servers.nodes if node is not cut_off]
        cut_off.await_that("gives up", lambda: cut_off.mode() == "", DEADLINE_SECONDS)
        eventually("another leads", lambda: "leader" in [node.mode() for node in others])
        servers.heal()
        servers.await_ready()
        cut_off.await_that("follows", lambda: cut_off.mode() == "follower", DEADLINE_SECONDS)
        servers.hide(servers.nodes.index(cut_off) + 1)
        cut_off.await_that("is not reached", lambda: cut_off.mode() == "", DEADLINE_SECONDS)
        leader = leading(servers)
        eventually("both follow", lambda: "zk_synced_followers\t2" in leader.ask("mntr"))
        servers.heal()
        cut_off.await_that("is reached", lambda: cut_off.mode() == "follower", DEADLINE_SECONDS)


@pytest.mark.long(reason="servers that are killed and start anew")
def test_hazelcast_s_locks_survive_one_member_and_its_return(hazelcast3: HazelcastCluster) -> None:
    last = hazelcast3.node(3)
    with hazelcast_client(hazelcast3) as client:
        lock = client.cp_subsystem.get_lock("kept").blocking()
        first = lock.lock()
        last.kill()
        lock.unlock()
        second = lock.lock()
        lock.unlock()
    assert second > first
    former = set(hazelcast3.node(1).locks_members())
    last.restart()
    hazelcast3.await_ready()
    assert last.address in hazelcast3.node(1).cp_members().values()
    # As another member than the one it was, that agrees on locks with the others.
    eventually(
        "it has a part in locks",
        lambda: (
            last.address
            in [
                address
                for uuid, address in hazelcast3.node(1).locks_members().items()
                if uuid not in former
            ]
        ),
        seconds=4 * DEADLINE_SECONDS,  # a step of theirs a second, at a machine's leisure
    )
    with hazelcast_client(hazelcast3) as client:
        assert client.cp_subsystem.get_lock("kept").blocking().lock() > second


@pytest.mark.long(reason="servers that are killed and start anew")
def test_hazelcast_members_that_lost_their_majority_are_mended(
    hazelcast3: HazelcastCluster,
) -> None:
    for number in (1, 3):
        hazelcast3.node(number).kill()
    hazelcast3.mend()
    assert len(hazelcast3.node(1).locks_members()) == hazelcast3.size, "before a client asks"
    with hazelcast_client(hazelcast3) as client:
        assert client.cp_subsystem.get_lock("mended").blocking().lock() > 0


@pytest.mark.long(reason="servers that are killed and start anew")
def test_hazelcast_is_whole_when_its_members_agree_on_locks(hazelcast3: HazelcastCluster) -> None:
    one, *others = hazelcast3.nodes
    assert sorted(one.locks_members().values()) == hazelcast3.contact_points
    assert hazelcast3.whole()
    for node in others:
        node.pause()
    assert not one.leads_locks()
    hazelcast3.mend()
    assert one.leads_locks()


@pytest.mark.long(reason="servers that are killed and start anew")
def test_a_hazelcast_member_comes_back_empty(hazelcast1: HazelcastCluster) -> None:
    node = hazelcast1.node(1)
    with hazelcast_client(hazelcast1) as client:
        client.get_map("seen").blocking().put("key", "value")
    node.pause()
    assert not node.ready()
    node.resume()
    node.await_ready()
    node.kill()
    node.restart()
    with hazelcast_client(hazelcast1) as client:
        assert client.get_map("seen").blocking().size() == 0


@contextmanager
def hazelcast_client(servers: HazelcastCluster, **options: Any) -> Iterator[Any]:
    module = pytest.importorskip("hazelcast")
    client = module.HazelcastClient(
        cluster_name=servers.cluster_name,
        cluster_members=servers.members,
        cluster_connect_timeout=DEADLINE_SECONDS,
        **options,
    )
    try:
        yield client
    finally:
        client.shutdown()


def leading(servers: ZooKeeperCluster) -> ZooKeeperNode:
    """Who leads, as soon as somebody says that he does: a busy one may not say so at once."""

    def found() -> list[ZooKeeperNode]:
        return [node for node in servers.nodes if node.alive and node.mode() == "leader"]

    return eventually("one leads", found)[0]


@contextmanager
def zookeeper_client(servers: ZooKeeperCluster) -> Iterator[Any]:
    client = pytest.importorskip("kazoo.client")
    retry = {"max_tries": -1, "max_delay": 0.2}
    connected = client.KazooClient(
        hosts=servers.hosts, timeout=10.0, command_retry=retry, connection_retry=retry
    )
    connected.start(DEADLINE_SECONDS)
    try:
        yield connected
    finally:
        connected.stop()
        connected.close()
