"""The roles of operators and clients, made and granted as docs/operations.md says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.session import Cql
from cassq.client.backends.cluster import open_session
from cassq.errors import CassqError
from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.servers.fixtures import running
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster
from tests.shell import ROOT, Shell

pytestmark = [
    pytest.mark.servers,
    pytest.mark.long(reason="a Cassandra node with settings of its own"),
]
KEYSPACE = "cassq"
SECTION = re.compile(r"^### Roles and grants$(.*?)^### ", re.MULTILINE | re.DOTALL)
STATEMENT = re.compile(r"^ {4}(CREATE ROLE|GRANT) .*;$", re.MULTILINE)


def documented() -> list[str]:
    """The statements of the page, in their order, with passwords: a role's is its name."""
    section = SECTION.search((ROOT / "docs" / "operations.md").read_text(encoding="utf-8"))
    assert section is not None
    statements = [found[0].strip() for found in STATEMENT.finditer(section[1])]
    return [re.sub(r"(ROLE (\w+) .*)'\.\.\.'", r"\1'\2'", each) for each in statements]


@pytest.fixture(scope="module")
def node() -> Iterator[CassandraCluster]:
    for servers in running(cassandra.cluster(authentication=True)):
        assert isinstance(servers, CassandraCluster)
        yield servers


def url(node: CassandraCluster, role: str, keyspace: str = KEYSPACE) -> str:
    return f"cassandra://{role}:{role}@{node.contact_points[0]}/{keyspace}"


def session(node: CassandraCluster, role: str) -> Cql:
    return open_session(url(node, role), SystemClock())


def test_an_operator_makes_the_tables_and_a_worker_only_uses_them(
    node: CassandraCluster, tmp_path: Path
) -> None:
    statements = documented()
    of_keyspace = [each for each in statements if f"KEYSPACE {KEYSPACE} " in each]
    assert 0 < len(of_keyspace) < len(statements)
    with closing(session(node, "cassandra")) as superuser:
        for statement in statements:
            if statement not in of_keyspace:
                superuser.execute(statement)
    shell = Shell(tmp_path, url(node, "operator"))
    shell.run("schema", "apply", "--replication", "1")
    with closing(session(node, "operator")) as operator:
        for statement in of_keyspace:
            operator.execute(statement)
    status = shell.run("schema", "status", "--json").json()
    assert list(status["commitlog_sync"].values()) == ["periodic"]

    def connected() -> cassq.Client | None:
        """A node remembers for two seconds which rights a role lacks."""
        try:
            return cassq.connect(url(node, "worker"))
        except CassqError:
            return None

    with eventually("the worker may connect", connected) as client:
        queue = client.create_queue("mail")
        with queue.pusher() as pusher, queue.popper() as popper:
            pusher.push_many([b"a", b"b"])
            messages = popper.pop(2, wait=DEADLINE_SECONDS)
            assert messages.payloads == [b"a", b"b"]
            popper.commit(messages)
        assert queue.stats().groups["default"].committed == 2
    older = str(int(status["needed"]) - 1)
    with closing(session(node, "worker")) as worker:
        worker.use(KEYSPACE)
        worker.write("UPDATE meta SET value = ? WHERE key = 'schema_version'", (older,))
    for keyspace, words, right in (
        (KEYSPACE, (), f"<all tables in {KEYSPACE}>"),
        ("another", ("--replication", "1"), "<all keyspaces>"),
    ):
        of_worker = Shell(tmp_path, url(node, "worker", keyspace))
        refused = of_worker.run("schema", "apply", *words, code=1).err
        assert f"User worker has no CREATE permission on {right}" in refused
        assert "docs/operations.md" in refused
    applied = shell.run("schema", "apply").out.decode()
    assert f"recorded schema version {status['needed']}" in applied
