"""A backup of a keyspace, as docs/operations.md describes it: restored on another cluster."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.catalog.cassandra import schema
from cassq.client.backends.cluster import open_session
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster
from tests.shell import Shell

pytestmark = [
    pytest.mark.long(reason="Cassandra nodes of its own, and a run of nodetool for each table"),
    pytest.mark.servers,
]
KEYSPACE = "mail"
MESSAGES = 300


def free_ports(count: int) -> tuple[int, ...]:
    """Ports of 127.0.0.1 where nobody listens."""
    with ExitStack() as taken:
        sockets = [taken.enter_context(closing(socket.socket())) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return tuple(each.getsockname()[1] for each in sockets)


def made(nodes: int) -> CassandraCluster:
    return cassandra.cluster(nodes=nodes, jmx_ports=free_ports(nodes))


def make_tables(cluster: CassandraCluster) -> None:
    with closing(open_session(cluster.url(KEYSPACE), SystemClock())) as session:
        schema.apply(session, SystemClock(), {"": cluster.size})


def fill(client: cassq.Client, name: str, consistency: str) -> None:
    """Some messages are committed, and one is dead."""
    queue = client.create_queue(name, consistency=consistency)
    with queue.pusher() as pusher, queue.popper() as popper:
        pusher.push_many([b"%d" % number for number in range(MESSAGES)])
        popper.commit(popper.pop(100, wait=DEADLINE_SECONDS))
        popper.dead(popper.pop(1, wait=DEADLINE_SECONDS), "it is a test")


def backed_up(cluster: CassandraCluster, place: Path) -> None:
    """Snapshot the keyspace; `place` gets a folder for each node and table."""
    for number, node in enumerate(cluster.nodes):
        node.nodetool("snapshot", "-t", "monday", KEYSPACE)
        for folder in (node.home / "data" / KEYSPACE).glob("*/snapshots/monday"):
            table = folder.parent.parent.name.rpartition("-")[0]
            shutil.copytree(folder, place / str(number) / table)
        node.nodetool("clearsnapshot", "-t", "monday", KEYSPACE)


def restored(cluster: CassandraCluster, place: Path) -> None:
    make_tables(cluster)
    for number, node in enumerate(cluster.nodes):
        for folder in sorted((place / str(number)).iterdir()):
            if list(folder.glob("*-Data.db")):
                node.nodetool("import", "--copy-data", KEYSPACE, folder.name, str(folder))
    if cluster.size > 1:
        cluster.nodes[0].nodetool("repair", "--full", KEYSPACE)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_restored_keyspace_balances_and_has_every_message(tmp_path: Path, nodes: int) -> None:
    backup = tmp_path / "backup"
    with made(nodes) as cluster:
        make_tables(cluster)
        with cassq.connect(cluster.url(KEYSPACE)) as client:
            fill(client, "ap", "ap")
            fill(client, "cp", "cp")
            identity = client.ports.catalog.records.identity()
        backed_up(cluster, backup)
    with made(nodes) as cluster:
        restored(cluster, backup)
        shell = Shell(tmp_path, cluster.url(KEYSPACE))
        shell.run("audit")  # exits with 1 unless it balances
        with cassq.connect(cluster.url(KEYSPACE)) as client:
            assert client.ports.catalog.records.identity() == identity
            for name in ("ap", "cp"):
                queue = client.queue(name)
                found = queue.stats().groups["default"]
                assert (found.committed, found.dead, found.waiting) == (100, 1, MESSAGES - 101)
                left = []
                with queue.popper() as popper:
                    while len(left) < MESSAGES - 101:
                        messages = popper.pop(100, wait=DEADLINE_SECONDS)
                        assert messages
                        popper.commit(messages)
                        left += [int(message.payload) for message in messages]
                assert sorted(left) == list(range(101, MESSAGES))
                letters = queue.dead_letters().peek()
                assert [bytes(letter.payload) for letter in letters] == [b"100"]
        shell.run("audit")
