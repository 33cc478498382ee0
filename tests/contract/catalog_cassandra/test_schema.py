"""The schema of a Cassandra keyspace: made and upgraded by any number at once, checked, told of.

Small schemas stand in for the real one: every table costs a quarter of a second. The real one is
made by the fixture that the catalog's suites run over.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from cassq.base.clock import SystemClock
from cassq.cassandra.session import Contact, Cql
from cassq.catalog import schema_files
from cassq.catalog.cassandra import replication, schema, schema_status
from cassq.errors import BackendError, BrokenInvariantError, ConfigError, UsageError
from tests.contract.catalog.test_catalog import at_once
from tests.servers.kinds.cassandra import CassandraCluster

META = "CREATE TABLE meta (key text PRIMARY KEY, value text);\n"
ONE = {"": 1}
PATIENCE = 60.0

_numbers = count(1)

Open = Callable[..., Cql]


class Files:
    """The schema files of some release of cassq."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self.full("CREATE TABLE notes (name text PRIMARY KEY);")

    def full(self, statements: str) -> None:
        """The whole schema."""
        (self.directory / "cassandra.cql").write_text(f"-- {{comment; }}\n{META}{statements}\n")

    def adds(self, version: int, statements: str) -> None:
        """A migration."""
        folder = self.directory / "cassandra"
        folder.mkdir(exist_ok=True)
        (folder / f"{version:04}_step.cql").write_text(statements)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "schema")


@pytest.fixture
def open_cql(cassandra1: CassandraCluster) -> Iterator[Open]:
    """Opens sessions for one keyspace that is not there; it is dropped with the test."""
    keyspace = f"schema_{next(_numbers)}"
    opened: list[Cql] = []

    def connect() -> Cql:
        contact = Contact(tuple(cassandra1.contact_points), keyspace, cassandra1.port)
        opened.append(Cql(contact, SystemClock()))
        return opened[-1]

    yield connect
    opened[0].execute(f"DROP KEYSPACE IF EXISTS {keyspace}")
    for cql in opened:
        cql.close()


def apply(cql: Cql, files: Files, **options: object) -> list[str]:
    """What it tells of having done."""
    steps: list[str] = []
    replicas = options.pop("replication", ONE)
    schema.apply(cql, SystemClock(), replicas, done=steps.append, directory=files.directory)
    return steps


def tables(cql: Cql) -> dict[str, list[str]]:
    rows = cql.read(
        "SELECT table_name, column_name FROM system_schema.columns WHERE keyspace_name = ?",
        (cql.contact.keyspace,),
    )
    found: dict[str, list[str]] = {}
    for table, column in rows:
        found.setdefault(table, []).append(column)
    return found


# --- making and upgrading -----------------------------------------------------------------------


def test_a_keyspace_is_made_with_its_tables_once(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    steps = apply(cql, files)
    assert steps == [
        f"created keyspace {cql.contact.keyspace} with replication 1",
        "created table notes",
        "recorded schema version 1",
    ]
    assert tables(cql) == {"meta": ["key", "value"], "notes": ["name"]}
    schema.check(cql, directory=files.directory)
    assert apply(cql, files) == []
    assert apply(open_cql(), files, replication=None) == []


def test_an_older_keyspace_is_brought_up_to_date_and_keeps_what_it_holds(
    open_cql: Open, files: Files
) -> None:
    cql = open_cql()
    apply(cql, files)
    cql.write("INSERT INTO notes (name) VALUES (?)", ("before",))
    files.adds(
        2,
        "ALTER TABLE notes ADD IF NOT EXISTS size int; -- more\nCREATE TABLE b (x int,\n"
        "PRIMARY KEY (x)) WITH comment = 'b';",
    )
    files.adds(3, "DROP TABLE IF EXISTS b;")
    with pytest.raises(ConfigError, match="version 1; this cassq needs 3.*schema apply"):
        schema.check(cql, directory=files.directory)
    assert apply(cql, files) == [
        "recorded schema version 2, by cassandra/0002_step.cql",
        "recorded schema version 3, by cassandra/0003_step.cql",
    ]
    assert tables(cql)["notes"] == ["name", "size"]
    assert "b" not in tables(cql)
    assert cql.read("SELECT name, size FROM notes") == [("before", None)]
    schema.check(cql, directory=files.directory)
    assert apply(cql, files) == []


def test_many_may_apply_it_at_once(open_cql: Open, files: Files) -> None:
    files.full("".join(f"CREATE TABLE t{n} (x int PRIMARY KEY);" for n in range(3)))
    sessions = [open_cql() for _ in range(5)]
    steps: list[str] = []

    def work(cql: Cql) -> None:
        steps.extend(apply(cql, files))

    at_once([lambda cql=cql: work(cql) for cql in sessions])
    made = sorted(line for line in steps if line.startswith("created table"))
    assert made == [f"created table t{n}" for n in range(3)], "each by one"
    assert steps.count("recorded schema version 1") == 1
    for number, cql in enumerate(sessions):
        cql.write("INSERT INTO t0 (x) VALUES (?)", (number,))
    assert len(sessions[0].read("SELECT x FROM t0")) == len(sessions)
    files.adds(2, "ALTER TABLE t0 ADD IF NOT EXISTS y int;")
    steps.clear()
    at_once([lambda cql=cql: work(cql) for cql in sessions])
    assert steps == ["recorded schema version 2, by cassandra/0002_step.cql"]


def test_the_next_process_after_a_crash_goes_on(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    files.full("CREATE TABLE a (x int PRIMARY KEY); CREATE TABLE b (x nonsense PRIMARY KEY);")
    with pytest.raises(BrokenInvariantError, match="nonsense"):
        apply(cql, files)
    with pytest.raises(ConfigError, match="lacks tables of cassq"):
        schema.check(cql, directory=files.directory)
    files.full("CREATE TABLE a (x int PRIMARY KEY); CREATE TABLE b (x int PRIMARY KEY);")
    assert apply(cql, files) == ["created table b", "recorded schema version 1"]
    files.adds(2, "ALTER TABLE a ADD IF NOT EXISTS y int; ALTER TABLE IF EXISTS a ADD z nonsense;")
    with pytest.raises(BrokenInvariantError):
        apply(cql, files)
    assert schema.read_version(cql) == 1
    files.adds(2, "ALTER TABLE a ADD IF NOT EXISTS y int; ALTER TABLE a ADD IF NOT EXISTS z int;")
    apply(cql, files)
    assert tables(cql)["a"] == ["x", "y", "z"]


def test_a_schema_change_at_work_is_waited_for_and_a_dead_one_only_until_its_lease_ends(
    open_cql: Open, files: Files
) -> None:
    cql = open_cql()
    apply(cql, files)
    files.adds(2, "ALTER TABLE notes ADD IF NOT EXISTS size int;")
    dead = "INSERT INTO meta (key, value) VALUES ('schema_lease', 'dead') IF NOT EXISTS"
    assert cql.apply(dead)[0]
    waited = threading.Event()

    class WaitingClock(SystemClock):
        def sleep(self, seconds: float) -> None:
            assert schema.read_version(cql) == 1
            if not waited.is_set():  # from now on it lasts a second, however late this is
                assert cql.apply(schema.DROP_LEASE, ("dead",))[0]
                assert cql.apply(f"{dead} USING TTL 1")[0]
            waited.set()
            super().sleep(seconds)

    schema.apply(open_cql(), WaitingClock(), directory=files.directory)
    assert waited.is_set()
    assert schema.read_version(cql) == 2


# --- what is refused ----------------------------------------------------------------------------


def test_a_keyspace_that_is_not_there_needs_its_replication(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    with pytest.raises(ConfigError, match="no keyspace.*--replication"):
        apply(cql, files, replication=None)
    with pytest.raises(ConfigError, match="no data centre 'mars'.*dc1"):
        apply(cql, files, replication={"mars": 3, "dc1": 1})
    assert replication.replicas_of(cql) is None
    with pytest.raises(ConfigError, match=f"no keyspace '{cql.contact.keyspace}'.*schema apply"):
        Cql(cql.contact, SystemClock(), keyspace=cql.contact.keyspace)


def test_replicas_that_the_servers_cannot_keep_are_refused_and_leave_nothing(
    open_cql: Open, files: Files
) -> None:
    cql = open_cql()
    with pytest.raises(ConfigError, match="dc1 has 1 server: it cannot keep 3 replicas.*--rep"):
        apply(cql, files, replication={"": 3})
    assert replication.replicas_of(cql) is None


def too_many_replicas(cql: Cql) -> None:
    """Make the keyspace as no cassq does: one server cannot have a quorum of it."""
    options = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    cql.execute(f"CREATE KEYSPACE {cql.contact.keyspace} WITH replication = {options}")


def test_a_keyspace_without_a_quorum_is_reported_at_once_and_can_be_changed(
    open_cql: Open, files: Files
) -> None:
    cql = open_cql()
    too_many_replicas(cql)
    with pytest.raises(ConfigError, match="1 server, but 3 replicas need 2.*--replication 1"):
        apply(cql, files, replication=None)
    found = schema_status.status(cql, directory=files.directory)
    assert not found.usable
    assert "3 replicas need 2" in schema_status.advice(found)[0]
    assert cql.requests.unanswered == cql.requests.repeated == 0, "nothing waited for a quorum"
    assert replication.set_replication(cql, {"": 1}, repaired=False, tables=False) is None
    apply(cql, files, replication={"dc1": 1})
    assert schema_status.status(cql, directory=files.directory).usable


def test_tables_that_no_quorum_can_read_are_read_again_with_fewer_replicas(
    open_cql: Open, files: Files
) -> None:
    cql = open_cql()
    apply(cql, files)
    options = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    cql.execute(f"ALTER KEYSPACE {cql.contact.keyspace} WITH replication = {options}")
    assert "3 replicas need 2" in schema_status.status(cql, directory=files.directory).trouble
    assert replication.set_replication(cql, {"": 1}, repaired=False, tables=True) is None
    assert apply(cql, files) == []


def test_the_replication_that_is_there_needs_no_change(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    apply(cql, files)
    cql.write(replication.SET_REPAIR_DUE, ("dc1=1",))
    with pytest.raises(UsageError, match="repair is due since .* changed to dc1=1.*--repaired"):
        replication.set_replication(cql, {"": 1}, repaired=False, tables=True)
    found = schema_status.status(cql, directory=files.directory)
    assert any("a repair is due" in line for line in schema_status.advice(found))
    assert replication.set_replication(cql, {"": 1}, repaired=True, tables=True) is None
    assert replication.repair_due(cql) is None


def test_another_replication_is_not_changed_in_passing(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    apply(cql, files, replication={"dc1": 1})
    assert apply(cql, files, replication={"": 1}) == [], "the same in other words"
    with pytest.raises(ConfigError, match="has replication dc1=1, not dc1=3.*schema change --rep"):
        apply(cql, files, replication={"dc1": 3})
    assert replication.replicas_of(cql) == {"dc1": 1}


def test_another_program_s_keyspace_is_left_alone(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    keyspace = cql.contact.keyspace
    options = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cql.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {options}")
    cql.use(keyspace)
    with pytest.raises(ConfigError, match="lacks tables of cassq"):
        schema.check(cql, directory=files.directory)
    cql.execute(f"CREATE TABLE {keyspace}.recipes (name text PRIMARY KEY)")
    for call in (lambda: apply(cql, files), lambda: schema.check(cql, directory=files.directory)):
        with pytest.raises(ConfigError, match="another program.*of its own"):
            call()
    assert list(tables(cql)) == ["recipes"]


def test_a_keyspace_of_a_newer_cassq_is_refused(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    files.full("CREATE TABLE notes (name text PRIMARY KEY, size int);")
    files.adds(2, "ALTER TABLE notes ADD IF NOT EXISTS size int;")
    apply(cql, files)
    (files.directory / "cassandra" / "0002_step.cql").unlink()
    for call in (lambda: apply(cql, files), lambda: schema.check(cql, directory=files.directory)):
        with pytest.raises(ConfigError, match="version 2; this cassq supports 1.*newer cassq"):
            call()
    assert tables(cql)["notes"] == ["name", "size"]


def test_a_statement_that_cannot_be_repeated_is_our_bug() -> None:
    with pytest.raises(BrokenInvariantError, match="not repeatable"):
        schema.repeatable("ALTER TABLE a ADD b int")


def test_the_statements_of_this_release_can_all_be_repeated() -> None:
    statements = schema.create_statements()
    assert len(statements) == len(set(re.findall(r"NOT EXISTS (\w+)", " ".join(statements))))
    for step in schema_files.migrations("cassandra"):
        for statement in schema.split(schema_files.read(step.name)):
            schema.repeatable(statement)


# --- how it is told -----------------------------------------------------------------------------


def test_its_status_is_reported_before_and_after(open_cql: Open, files: Files) -> None:
    cql = open_cql()
    before = schema_status.status(cql, directory=files.directory)
    assert (before.exists, before.version, before.replicas) == (False, None, {})
    apply(cql, files, replication={"dc1": 1})
    after = schema_status.status(open_cql(), directory=files.directory)
    assert (after.exists, after.version, after.known_version) == (True, 1, 1)
    assert (after.replicas, after.agreed, after.usable) == ({"dc1": 1}, True, True)
    assert [(node.data_centre, node.up) for node in after.nodes] == [("dc1", True)]
    assert list(after.setting("commitlog_sync")) == ["periodic"]
    assert list(after.setting("paxos_variant")) == ["v2"]


def test_requests_go_to_servers_that_have_what_they_are_about(open_cql: Open, files: Files) -> None:
    """The driver needs the replication of the keyspace for that, and is not told of any other."""
    cql = open_cql()
    apply(cql, files)
    keyspace = cql.contact.keyspace
    session = Cql(cql.contact, SystemClock(), keyspace=keyspace)
    try:
        assert session.cluster.metadata.get_replicas(keyspace, b"key")
        assert set(session.cluster.metadata.keyspaces) == {keyspace}
    finally:
        session.close()


@pytest.mark.parametrize(
    ("text", "replicas"), [("3", {"": 3}), ("dc1=3,dc-2=2", {"dc1": 3, "dc-2": 2})]
)
def test_replication_is_written_as_it_is_read(text: str, replicas: dict[str, int]) -> None:
    assert replication.parse_replication(text) == replicas
    assert replication.as_text(replicas) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "x",
        "dc1",
        "dc1=",
        "=3",
        "3,3",
        "dc1=1,dc1=2",
        "a=-1",
        "dc1=3,2",
        "d'c=1",
        "100",
        "²",
    ],
)
def test_what_says_no_replication_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a valid replication|create it"):
        replication.parse_replication(text)


def test_a_wait_for_the_schema_s_lease_is_bounded(
    open_cql: Open, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    cql = open_cql()
    apply(cql, files)
    files.adds(2, "ALTER TABLE notes ADD IF NOT EXISTS size int;")
    assert cql.apply("INSERT INTO meta (key, value) VALUES ('schema_lease', 'x') IF NOT EXISTS")[0]
    monkeypatch.setattr(schema, "WAIT_SECONDS", 0.5)
    with pytest.raises(BackendError, match="is changing the schema"):
        apply(cql, files)
