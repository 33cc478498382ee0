"""A backup of a keyspace, as docs/operations.md describes it: restored on another cluster."""

from __future__ import annotations

import shutil
import socket
from contextlib import closing
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.catalog.cassandra import schema
from cassq.client.cluster import open_session
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster
from tests.shell import Shell

pytestmark = [
    pytest.mark.long(reason="two Cassandra nodes of its own, and a run of nodetool for each table"),
    pytest.mark.servers,
]
KEYSPACE = "mail"
MESSAGES = 300


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def make_tables(cluster: CassandraCluster) -> None:
    with closing(open_session(cluster.url(KEYSPACE), SystemClock())) as session:
        schema.apply(session, SystemClock(), {"": 1})


def fill(client: cassq.Client, name: str, consistency: str) -> None:
    """Some messages are committed, and one is dead."""
    queue = client.create_queue(name, consistency=consistency)
    with queue.pusher() as pusher, queue.popper() as popper:
        pusher.push_many([b"%d" % number for number in range(MESSAGES)])
        popper.commit(popper.pop(100, wait=DEADLINE_SECONDS))
        popper.dead(popper.pop(1, wait=DEADLINE_SECONDS), "it is a test")


def backed_up(cluster: CassandraCluster, place: Path) -> None:
    """Snapshot the keyspace; `place` gets a folder for each table."""
    (node,) = cluster.nodes
    node.nodetool("snapshot", "-t", "monday", KEYSPACE)
    for folder in (node.home / "data" / KEYSPACE).glob("*/snapshots/monday"):
        shutil.copytree(folder, place / folder.parent.parent.name.rpartition("-")[0])
    node.nodetool("clearsnapshot", "-t", "monday", KEYSPACE)


def restored(cluster: CassandraCluster, place: Path) -> None:
    (node,) = cluster.nodes
    make_tables(cluster)
    for folder in sorted(place.iterdir()):
        if list(folder.glob("*-Data.db")):
            node.nodetool("import", "--copy-data", KEYSPACE, folder.name, str(folder))


def test_a_restored_keyspace_balances_and_has_every_message(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with cassandra.cluster(nodes=1, jmx_port=free_port()) as cluster:
        make_tables(cluster)
        with cassq.connect(cluster.url(KEYSPACE)) as client:
            fill(client, "ap", "ap")
            fill(client, "cp", "cp")
            identity = client.ports.catalog.records.identity()
        backed_up(cluster, backup)
    with cassandra.cluster(nodes=1, jmx_port=free_port()) as cluster:
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
