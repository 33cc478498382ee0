"""Replication that changes while a queue is in use, on three Cassandra nodes."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import schema, schema_status
from cassq.catalog.cassandra.replication import replicas_of, set_replication
from cassq.client.backends.cluster import open_session
from cassq.errors import UsageError
from tests.contract.keyspaces import tables_of
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.servers.kinds.cassandra import CassandraCluster
from tests.shell import Done, Shell

pytestmark = pytest.mark.long(reason="three Cassandra nodes, and schema changes")
KEYSPACE = "growing"


def repair(cql: Cql) -> None:
    """Copy to all replicas what they lack, as nodetool does: a read of all of them does it."""
    contact = replace(cql.contact, consistency="all")
    with closing(Cql(contact, SystemClock(), keyspace=KEYSPACE)) as session:
        session.read_many([(f"SELECT * FROM {name}", ()) for name in tables_of(session)])


def popped(client: cassq.Client, count: int) -> list[int]:
    with client.queue("mail").popper() as popper:
        messages = popper.pop(count, wait=DEADLINE_SECONDS)
        popper.commit(messages)
        return [int(message.payload) for message in messages]


def test_a_keyspace_is_known_at_every_node_when_it_is_made(cassandra3: CassandraCluster) -> None:
    """Whichever node is asked how far the others are: it may not know of the change yet."""
    where = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"
    with closing(open_session(cassandra3.url("many"), SystemClock())) as cql:
        eventually("all are connected", lambda: len(cql._session.get_pool_state()) == 3)
        nodes = list(cql._session.get_pool_state())
        asked = cql._cluster.get_control_connection_host()
        cql._schema_node = next(node for node in nodes if node != asked)
        for name in (f"made_{number}" for number in range(6)):
            cql.execute(
                f"CREATE KEYSPACE {name} WITH replication ="
                " {'class': 'SimpleStrategy', 'replication_factor': 1}"
            )
            known = [len(list(cql._session.execute(where, (name,), host=node))) for node in nodes]
            assert known == [1, 1, 1]


def test_one_replica_becomes_three_step_by_step_while_messages_are_there(
    cassandra3: CassandraCluster,
) -> None:
    url = cassandra3.url(KEYSPACE)
    with closing(open_session(url, SystemClock())) as cql:
        schema.apply(cql, SystemClock(), {"": 1})
        with cassq.connect(url) as client, client.create_queue("mail").pusher() as pusher:
            pusher.push_many([b"%d" % number for number in range(100)])
            with pytest.raises(UsageError, match="in one step.*begin with --replication dc1=2"):
                set_replication(cql, {"": 3}, repaired=False, tables=True)
            due = set_replication(cql, {"": 2}, repaired=False, tables=True)
            assert due is not None
            assert "nodetool repair" in due
            assert popped(client, 10) == list(range(10)), "the new servers outvote nobody"
            pusher.push(b"100")
            with pytest.raises(UsageError, match="a repair is due since .* changed to dc1=2"):
                set_replication(cql, {"": 3}, repaired=False, tables=True)
            assert schema_status.status(cql).repair_due == "dc1=2"
            repair(cql)
            assert set_replication(cql, {"": 3}, repaired=True, tables=True) is not None
            assert replicas_of(cql) == {"dc1": 3}
            assert popped(client, 10) == list(range(10, 20))
        found = schema_status.status(cql)
        assert (found.usable, found.repair_due) == (True, "dc1=3")
        assert [node.up for node in found.nodes] == [True] * 3
        with cassq.connect(url) as client:
            left: list[int] = []
            while len(left) < 81:
                left += popped(client, 100)
            assert sorted(left) == list(range(20, 101))


def test_the_status_counts_the_servers_that_answer(cassandra3: CassandraCluster) -> None:
    with closing(open_session(cassandra3.url("status"), SystemClock())) as cql:
        schema.apply(cql, SystemClock(), {"": 3})
        assert list(schema_status.status(cql).setting("paxos_variant")) == ["v2"]
        cassandra3.node(3).kill()
        assert [node.up for node in schema_status.status(cql).nodes] == [True, True, False]
        assert schema_status.status(cql).usable
        cassandra3.node(2).kill()
        found = schema_status.status(cql)
        assert not found.usable
        assert "only 1 of 3 servers in data centre dc1 answer" in found.trouble


def test_the_command_shows_three_servers_and_what_they_lack(
    cassandra3: CassandraCluster, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, cassandra3.url("shown"))
    shell.run("schema", "apply", "--replication", "3")
    addresses = [node.address for node in cassandra3.nodes]

    def shown(code: int = 0) -> tuple[Done, dict[str, Any]]:
        return shell.run("schema", "status", code=code), shell.run(
            "schema", "status", "--json", code=code
        ).json()

    text, found = shown()
    assert (found["replication"], found["nodes"], found["nodes_up"]) == ({"dc1": 3}, 3, 3)
    assert found["paxos_variant"] == dict.fromkeys(addresses, "v2")
    assert found["commitlog_sync"] == dict.fromkeys(addresses, "periodic")
    assert [each["address"] for each in found["servers"]] == addresses
    assert "3 of 3 up" in text.out.decode()
    assert f"commitlog_sync is periodic on {', '.join(addresses)}" in text.err
    cassandra3.node(3).kill()
    text, found = shown()
    assert [each["up"] for each in found["servers"]] == [True, True, False]
    assert "2 of 3 up" in text.out.decode()
    cassandra3.node(2).kill()
    text, found = shown(code=1)
    assert (found["nodes_up"], found["version"]) == (1, None)
    assert "it cannot be used now: only 1 of 3 servers in data centre dc1 answer" in text.err
    assert "nodetool status" in text.err
