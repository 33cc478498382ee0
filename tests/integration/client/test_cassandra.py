"""Queues in a Cassandra keyspace: connecting, what is refused at once, forks, and the command."""

from __future__ import annotations

import json
import logging
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result

import cassq
from cassq.base.clock import SystemClock
from cassq.cassandra.contact import REQUEST_SECONDS
from cassq.cassandra.session import Contact, Cql
from cassq.cassandra.speculation import SPECULATE_SECONDS
from cassq.catalog.cassandra import schema
from cassq.catalog.cassandra.notes import Notes
from cassq.cli.main import main
from cassq.client.backends.cluster import open_keyspace, open_session
from cassq.errors import (
    BackendUnavailableError,
    ConfigError,
    CorruptionError,
)
from cassq.extents.cassandra import CassandraStore
from cassq.locks.late import LateLocker
from cassq.locks.lease import LeaseLocker
from cassq.tasks import App, Context
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, joined
from tests.servers.fixtures import running
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.hazelcast import HazelcastCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster

KEYSPACE = "integration"
# Of the node with a certificate, which names its address.
SUBNET = f"127.{random.randrange(130, 250)}.{random.randrange(1, 250)}"


@pytest.fixture(scope="module")
def tables(cassandra1_for_the_session: CassandraCluster) -> Iterator[Cql]:
    """A session with a keyspace that has its tables."""
    servers = cassandra1_for_the_session
    cql = Cql(Contact(tuple(servers.contact_points), KEYSPACE, servers.port), SystemClock())
    schema.apply(cql, SystemClock(), {"": 1})
    yield cql
    cql.close()


@pytest.fixture
def url(cassandra1: CassandraCluster, tables: Cql) -> str:
    return cassandra1.url(KEYSPACE)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue's name that no other test has."""
    return request.node.name.replace("[", ".").replace("]", "")


# --- push and pop -----------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_what_one_client_pushes_another_pops(url: str, name: str, consistency: str) -> None:
    with cassq.connect(url) as pushing, cassq.connect(url) as popping:
        pushing.create_queue(name, consistency=consistency)
        payloads = [b"%d" % number for number in range(500)]
        with pushing.queue(name).pusher() as pusher:
            pusher.push_many(payloads[:499])
            pusher.push(payloads[499])
        queue = popping.queue(name)
        popped = []
        with queue.popper() as popper:
            while len(popped) < len(payloads):
                messages = popper.pop(100, wait=DEADLINE_SECONDS)
                assert messages
                popped += [bytes(message.payload) for message in messages]
                popper.commit(messages)
        assert popped == payloads
        audit = queue.audit()
        assert audit.balanced, audit.findings


def test_a_task_with_steps_sleeps_and_waits_for_a_signal(url: str, name: str) -> None:
    calls: list[str] = []
    with App(url, queue=name) as app:

        @app.task(results=True)
        def order(ctx: Context, number: int) -> list[object]:
            first = ctx.step("charge", lambda: calls.append("charge"))
            ctx.sleep("cool off", seconds=0.1)
            return [first, ctx.step("add", lambda: number + 1), ctx.wait("approved", timeout=3600)]

        handle = order.push(7)
        app.run(max_tasks=2, concurrency=1)
        assert handle.signal("approved", True)
        app.run(max_tasks=1, concurrency=1)
        assert handle.result(timeout=DEADLINE_SECONDS) == [None, 8, True]
        assert not handle.signal("approved", True)
        assert calls == ["charge"]
        assert app.client.queue(name).audit().balanced


def test_a_waiting_popper_gets_what_another_client_pushes(url: str, name: str) -> None:
    with cassq.connect(url) as pushing, cassq.connect(url) as popping:
        pushing.create_queue(name)
        found: list[bytes] = []
        waiting = threading.Event()

        def pop() -> None:
            with popping.queue(name).popper() as popper:
                waiting.set()
                messages = popper.pop(1, wait=DEADLINE_SECONDS)
                found.extend(bytes(message.payload) for message in messages)
                popper.commit(messages)

        thread = threading.Thread(target=pop)
        thread.start()
        assert waiting.wait(DEADLINE_SECONDS)
        with pushing.queue(name).pusher() as pusher:
            pusher.push(b"news")
        thread.join(DEADLINE_SECONDS)
        assert found == [b"news"]


# --- requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_client_counts_how_long_each_kind_of_request_took(
    url: str, name: str, consistency: str
) -> None:
    write = "write" if consistency == "ap" else "conditional write"
    with cassq.connect(url) as client:
        queue = client.create_queue(name, consistency=consistency)
        requests = client.ports.requests
        assert requests is not None

        def counted(kind: tuple[str, str]) -> int:
            counts, seconds = requests.latencies.by_kind().get(kind, ([], 0.0))
            assert (seconds > 0) is (sum(counts) > 0)
            return sum(counts)

        with queue.pusher() as pusher:
            pusher.push(b"a")
            # The driver's thread counts an answer just after it has told of it.
            eventually("the frame's write is counted", lambda: counted((write, "frames")) == 1)
            pusher.push(b"b")
            eventually("each write is counted", lambda: counted((write, "frames")) == 2)
        with queue.popper() as popper:
            popper.commit(popper.pop(2, wait=DEADLINE_SECONDS))
            eventually("claims are counted", lambda: counted(("conditional write", "claims")))


@pytest.mark.parametrize(
    ("options", "timeout", "speculate"),
    [("", REQUEST_SECONDS, SPECULATE_SECONDS), ("?speculate=0&timeout=2", 2.0, -1)],
)
def test_what_the_url_says_of_requests_holds_for_each_of_them(
    url: str, options: str, timeout: float, speculate: float
) -> None:
    with cassq.connect(f"{url}{options}") as client:
        store = client.ports.store
        assert isinstance(store, CassandraStore)
        session = store._cql
        sent = session.send(session.bound("SELECT value FROM meta WHERE key = 'none'", ()))
        assert sent.timeout == timeout
        assert session._speculation.delay() == speculate
        assert session.result(sent) == []


# --- time -------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [-1, 1])
def test_clients_agree_on_the_time_whatever_their_wall_clocks_say(
    cassandra1: CassandraCluster, tables: Cql, days: int
) -> None:
    class WrongClock(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + days * 86_400_000

    wrong = Cql(tables.contact, WrongClock(), keyspace=KEYSPACE)
    try:
        # Each is off by half of the round trip in which it was measured, at most.
        assert abs(wrong.time.now_ms() - tables.time.now_ms()) < 30_000, "not a day"
        assert abs(wrong.stamp() - tables.stamp()) < 30_000_000, "microseconds: not a day either"
        write = "INSERT INTO meta (key, value) VALUES ('who was last', ?)"
        read = "SELECT value FROM meta WHERE key = 'who was last'"

        def stands(value: str) -> bool:
            wrong.write(write, (value,))
            return tables.read(read) == [(value,)]

        for number in range(5):
            tables.write(write, (f"right {number}",))
            # Two clients measure the same time within milliseconds, not a day.
            eventually("a write of the wrong clock stands", lambda n=number: stands(f"wrong {n}"))
    finally:
        wrong.close()


@pytest.mark.parametrize(("seconds", "message"), [(-3600, "behind"), (3600, "ahead of"), (2, "")])
def test_a_client_whose_clock_is_wrong_is_warned_of_it(
    url: str, caplog: pytest.LogCaptureFixture, seconds: int, message: str
) -> None:
    class WrongClock(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + seconds * 1000

    caplog.set_level(logging.WARNING, logger="cassq")
    rest, options = url.partition(":")[2], dict[str, str]()
    open_keyspace(rest, options, WrongClock()).ports.catalog.close()
    warnings = [each.getMessage() for each in caplog.records if "clock" in each.getMessage()]
    assert len(warnings) == (1 if message else 0)
    for warning in warnings:
        found = re.search(f"([0-9]+) seconds {message} that of Cassandra", warning)
        assert found is not None, warning
        assert abs(int(found[1]) - 3600) < 5, "the time is measured, in a round trip"


def test_a_stamp_that_asks_for_the_time_does_not_wait(
    cassandra1: CassandraCluster, tables: Cql
) -> None:
    tables.time._ask_at_ms = 0  # as when ten seconds have passed
    stamping = threading.Thread(target=tables.stamp, daemon=True)
    stamping.start()
    joined("a stamp", stamping, seconds=20)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "message"),
    [(0, "version 0; this cassq needs.*cassq schema apply"), (99, "version 99.*newer cassq")],
)
def test_a_schema_that_is_too_old_or_too_new_is_reported_with_what_to_do(
    url: str, tables: Cql, version: int, message: str
) -> None:
    write = "UPDATE meta SET value = ? WHERE key = 'schema_version' IF value != ?"
    known = schema.read_version(tables)
    tables.apply(write, (str(version), "never"))
    try:
        with pytest.raises(ConfigError, match=message):
            cassq.connect(url)
    finally:
        tables.apply(write, (str(known), "never"))
    cassq.connect(url).close()


def test_a_keyspace_that_is_not_there_or_has_no_tables_is_reported_with_what_to_do(
    cassandra1: CassandraCluster, tables: Cql
) -> None:
    with pytest.raises(ConfigError, match="no keyspace 'absent'.*cassq schema apply"):
        cassq.connect(cassandra1.url("absent"))
    options = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    tables.execute(f"CREATE KEYSPACE IF NOT EXISTS bare WITH replication = {options}")
    with pytest.raises(ConfigError, match="'bare' lacks tables of cassq.*cassq schema apply"):
        cassq.connect(cassandra1.url("bare"))


def test_a_data_centre_that_is_not_there_is_reported_with_those_that_are(url: str) -> None:
    with pytest.raises(ConfigError, match="no data centre 'mars'.*dc1"):
        cassq.connect(f"{url}?dc=mars")
    cassq.connect(f"{url}?dc=dc1").close()


def test_servers_that_do_not_answer_are_named(cassandra1: CassandraCluster) -> None:
    host = cassandra1.contact_points[0]
    with pytest.raises(BackendUnavailableError, match=f"no node answers at {host}:1/k.*refused"):
        cassq.connect(f"cassandra://{host}:1/k")
    with pytest.raises(BackendUnavailableError, match="nowhere.invalid: no such host"):
        cassq.connect("cassandra://nowhere.invalid/k")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the key and certificate of a node on `SUBNET`, and another's."""
    directory = tmp_path_factory.mktemp("certificates")
    for name, address in (("node", f"{SUBNET}.1"), ("other", "127.0.0.2")):
        command = (
            "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=test"
            f" -addext subjectAltName=IP:{address} -keyout {name}.key -out {name}.pem"
        )
        subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    both = "".join((directory / name).read_text() for name in ("node.key", "node.pem"))
    (directory / "both.pem").write_text(both)
    return directory


@pytest.fixture(scope="module")
def guarded(certificates: Path) -> Iterator[CassandraCluster]:
    """A node that asks for a user and password, and offers TLS."""
    encryption = {
        "enabled": True,
        "optional": True,
        "keystore": str(certificates / "both.pem"),
        "ssl_context_factory": {
            "class_name": "org.apache.cassandra.security.PEMBasedSslContextFactory"
        },
    }
    options = {"client_encryption_options": encryption}
    for servers in running(cassandra.cluster(subnet=SUBNET, authentication=True, options=options)):
        assert isinstance(servers, CassandraCluster)
        yield servers


@pytest.mark.long(reason="a Cassandra node with settings of its own")
@pytest.mark.servers
@pytest.mark.needs("openssl")
def test_a_server_is_spoken_to_in_secret_if_its_certificate_is_trusted(
    guarded: CassandraCluster, certificates: Path
) -> None:
    url = f"cassandra://cassandra:cassandra@{guarded.contact_points[0]}/k"
    for options in ("ca={}/node.pem", "ca={}/node.pem&tls=ca"):
        found = options.format(certificates)
        with closing(open_session(f"{url}?{found}", SystemClock())) as session:
            used = session.read("SELECT driver_name, ssl_enabled FROM system_views.clients")
            assert used
            assert {secret for name, secret in used if name} == {True}
    for options in (f"ca={certificates}/other.pem", "tls=full"):
        with pytest.raises(ConfigError, match="certificate.*not trusted.*ca=") as caught:
            cassq.connect(f"{url}?{options}")
        assert "cassandra:cassandra" not in str(caught.value)


@pytest.mark.long(reason="a Cassandra node with settings of its own")
@pytest.mark.servers
@pytest.mark.needs("openssl")
def test_a_certificate_for_another_address_is_reported_and_may_be_let_pass(
    guarded: CassandraCluster, certificates: Path
) -> None:
    url = f"cassandra://cassandra:cassandra@{guarded.contact_points[0]}/k"
    own = (certificates / "both.pem").read_text()
    others = "".join((certificates / name).read_text() for name in ("other.key", "other.pem"))
    try:
        (certificates / "both.pem").write_text(others)
        guarded.node(1).restart()
        with pytest.raises(
            ConfigError, match="is for another host.*not valid for.*tls=ca"
        ) as found:
            cassq.connect(f"{url}?ca={certificates}/other.pem")
        assert guarded.contact_points[0] in str(found.value)
        assert "cassandra:cassandra" not in str(found.value)
        with closing(
            open_session(f"{url}?ca={certificates}/other.pem&tls=ca", SystemClock())
        ) as cql:
            assert cql.read("SELECT key FROM system.local"), "who signed it is trusted"
        with pytest.raises(ConfigError, match="not trusted"):
            cassq.connect(f"{url}?ca={certificates}/node.pem&tls=ca")
    finally:
        (certificates / "both.pem").write_text(own)
        guarded.node(1).restart()


@pytest.mark.long(reason="a Cassandra node with settings of its own")
@pytest.mark.servers
@pytest.mark.needs("openssl")
def test_a_user_needs_the_right_password(guarded: CassandraCluster) -> None:
    host = guarded.contact_points[0]
    for who in ("", "cassandra:wrong@", "nobody:cassandra@"):
        with pytest.raises(ConfigError, match="rejects the user.*USER:PASSWORD@") as caught:
            cassq.connect(f"cassandra://{who}{host}/k")
        assert "wrong" not in str(caught.value)
    with pytest.raises(ConfigError, match="no keyspace 'k'"):
        cassq.connect(f"cassandra://cassandra:cassandra@{host}/k")


def test_a_server_without_tls_is_reported(cassandra1: CassandraCluster) -> None:
    with pytest.raises(ConfigError, match="refuses TLS.*client_encryption_options"):
        cassq.connect(f"{cassandra1.url(KEYSPACE)}?tls=full")


def test_a_cp_queue_with_one_replica_is_warned_of_once(
    url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        own = [record for record in caplog.records if record.name.startswith("cassq")]
        return [record.getMessage() for record in own if record.levelno == logging.WARNING]

    caplog.set_level(logging.WARNING, logger="cassq")
    with cassq.connect(url) as client:
        client.create_queue(f"{name}.ap")
        assert warnings() == []
        client.create_queue(name, consistency="cp")
        client.queue(name)
        client.create_queue(f"{name}.other", consistency="cp")
    (found,) = warnings()
    assert name in found
    assert "one replica" in found


# --- locks ------------------------------------------------------------------------------------


@pytest.fixture
def no_locks(tables: Cql) -> Iterator[None]:
    """As if nobody had connected to the keyspace yet."""
    forget = "DELETE FROM meta WHERE key = 'locks' IF EXISTS"
    tables.apply(forget)
    yield
    tables.apply(forget)


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.servers(f"{name}1_for_the_session"))
        for name in ("zookeeper", "hazelcast")
    ]
)
def locks(request: pytest.FixtureRequest) -> str:
    """The URL of a service of locks, as in `locks=`."""
    if request.param == "zookeeper":
        keeper: ZooKeeperCluster = request.getfixturevalue("zookeeper1")
        return keeper.url("cassq")
    members: HazelcastCluster = request.getfixturevalue("hazelcast1")
    return quote(f"{members.url()}?cp=no", safe=":/")


@pytest.mark.usefixtures("no_locks")
def test_all_clients_lock_by_what_the_first_has_used(url: str, name: str, locks: str) -> None:
    elsewhere = f"{url}?locks={locks}"
    with cassq.connect(elsewhere) as client, cassq.connect(elsewhere) as other:
        queue = client.create_queue(name)
        queue.create_group("one", exclusive=True)
        with queue.pusher() as pusher:
            pusher.push_many([b"1", b"2"])
        with queue.popper("one") as popper, other.queue(name).popper("one") as late:
            messages = popper.pop(1, wait=DEADLINE_SECONDS)
            assert len(messages) == 1
            assert not late.pop(1), "the lock is held"
            popper.commit(messages)
    with pytest.raises(
        ConfigError, match="locks of the clients.*://.*not 'leases'.*leave locks= out"
    ):
        cassq.connect(f"{url}?locks=leases")
    with cassq.connect(url) as client, client.queue(name).popper("one") as popper:
        assert popper.pop(1, wait=DEADLINE_SECONDS), "it locks as the others do"
        assert isinstance(client.ports.locker, LateLocker)


@pytest.mark.usefixtures("no_locks")
def test_a_locker_that_comes_later_is_refused_without_its_password(url: str) -> None:
    cassq.connect(url).close()
    with pytest.raises(ConfigError, match="are 'leases', not 'zookeeper://zk:2181/x'") as caught:
        cassq.connect(f"{url}?locks=zookeeper://ann:secret@zk:2181/x")
    assert "secret" not in str(caught.value)


@pytest.mark.usefixtures("no_locks")
def test_a_locker_that_cannot_be_opened_is_not_kept_as_what_all_use(url: str) -> None:
    with pytest.raises(ConfigError, match="not a supported lock service"):
        cassq.connect(f"{url}?locks=zookeper://zk/x")
    cassq.connect(url).close()


@pytest.mark.waits(reason="ZooKeeper's client gives up on a service that refuses it")
@pytest.mark.usefixtures("no_locks")
def test_a_service_that_only_the_keyspace_names_is_asked_for_the_first_lock(
    url: str, name: str, tables: Cql
) -> None:
    Notes(tables).note("locks", "zookeeper://127.0.0.1:1/x")
    with cassq.connect(url) as client:
        client.create_queue(name)
        assert not client.queue(name).stats().groups["default"].waiting
        with pytest.raises(BackendUnavailableError, match="127.0.0.1:1"):
            client.ports.locker.acquire("a", 1000)


@pytest.mark.usefixtures("no_locks")
def test_the_locker_changes_while_nobody_pops(
    url: str, name: str, zookeeper1: ZooKeeperCluster
) -> None:
    service = zookeeper1.url("changed")
    change = ("schema", "change", "--url", url, "--locks")
    with cassq.connect(url) as client:
        queue = client.create_queue(name)
        with queue.popper():
            eventually("it has left a trace", lambda: there(client, queue))
            refused = run(*change, service, code=2)
            assert f"consumers are popping: default of queue {name}" in refused.stderr
        run(*change, "zookeper://zk/x", code=2)
        assert isinstance(client.ports.locker, LeaseLocker)
    assert f"all clients use the locks {service}" in run(*change, service).stdout
    with cassq.connect(url) as client:
        assert isinstance(client.ports.locker, LateLocker)
        assert client.ports.locker.acquire("a", 1000)
    status = json.loads(run("schema", "status", "--url", url, "--json").stdout)
    assert (status["locks"], status["store"]) == (service, "cassandra")
    assert "all clients use the locks leases" in run(*change, "leases").stdout
    cassq.connect(f"{url}?locks=leases").close()


def there(client: cassq.Client, queue: cassq.Queue) -> bool:
    """Whether a popper of the queue's first group is seen."""
    records, group = client.ports.catalog.records, client.ports.catalog.queues.groups(queue.id)[0]
    return bool(records.members(group.id, 0))


# --- forks ------------------------------------------------------------------------------------

FORK = """
import os, sys, cassq
from cassq.errors import ForkedClientError
url, name = sys.argv[1:]
client = cassq.connect(url)
queue = client.create_queue(name)
pusher = queue.pusher()
pusher.push(b"parent")
child = os.fork()
if child == 0:
    try:
        pusher.push(b"never")
    except ForkedClientError:
        with cassq.connect(url) as own:
            own.queue(name).pusher().push(b"child")
        sys.exit(7)
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pusher.push(b"parent again")
client.close()
"""


def test_a_child_of_a_fork_opens_a_client_of_its_own_and_leaves_the_parent_s_alone(
    url: str, name: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, url, name],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS * 2,
    )
    assert done.returncode == 0, done.stderr
    with cassq.connect(url) as client, client.queue(name).popper() as popper:
        popped: list[bytes] = []
        while messages := popper.pop(10):
            popped += [bytes(message.payload) for message in messages]
    assert sorted(popped) == [b"child", b"parent", b"parent again"]


# --- the command ------------------------------------------------------------------------------


def run(*words: str, stdin: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(words), input=stdin)
    assert result.exit_code == code, result.output
    return result


def test_the_command_works_with_a_keyspace_as_with_a_directory(url: str, name: str) -> None:
    run("queue", "create", name, "--url", url)
    run("push", name, "--url", url, stdin="hello")
    assert run("pop", name, "--url", url).stdout == "hello\n"
    assert "no queue 'nothing'" in run("pop", "nothing", "--url", url, code=2).stderr


def test_the_command_makes_and_shows_a_schema(cassandra1: CassandraCluster, tables: Cql) -> None:
    made, absent = cassandra1.url(KEYSPACE), cassandra1.url("absent")
    assert run("schema", "apply", "--url", made).stdout == (
        f"keyspace {KEYSPACE} has schema version 7: nothing to do\n"
    )
    status = json.loads(run("schema", "status", "--url", made, "--json").stdout)
    assert (status["exists"], status["version"], status["needed"]) == (True, 7, 7)
    assert (status["replication"], status["agreed"], status["nodes_up"]) == ({"dc1": 1}, True, 1)
    assert list(status["commitlog_sync"].values()) == ["periodic"]
    shown = run("schema", "status", "--url", made)
    assert "commitlog_sync       periodic" in shown.stdout
    assert "with fewer than 3 replicas, queues stop when a server fails" in shown.stderr
    assert (
        "`cassq schema apply --replication"
        in run("schema", "status", "--url", absent, code=1).stderr
    )
    assert "--replication 3" in run("schema", "apply", "--url", absent, code=2).stderr
    run("schema", "apply", "--url", absent, "--replication", "dc1=", code=2)
    run("schema", "status", "--url", "file:cassq-data", code=2)
    many = run("schema", "apply", "--url", absent, "--replication", "3", code=2).stderr
    assert "dc1 has 1 server: it cannot keep 3 replicas" in many
    assert run("schema", "change", "--url", made, "--replication", "1").stdout == (
        f"keyspace {KEYSPACE} has replication 1\n"
    )
    both = run("schema", "change", "--url", made, "--replication", "1", "--locks", "x", code=2)
    assert "give one of" in both.stderr
    queues = run("schema", "change", "--url", made, "--store", "sidecar", code=2).stderr
    assert "cannot be changed while it has queues" in queues


def test_the_command_mends_a_replication_that_the_servers_cannot_keep(
    cassandra1: CassandraCluster, tables: Cql
) -> None:
    """Of a keyspace with tables, and of one that was made by hand."""
    made = "WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    tables.execute(f"ALTER KEYSPACE {KEYSPACE} {made}")
    tables.execute(f"CREATE KEYSPACE IF NOT EXISTS by_hand {made}")
    for keyspace in (KEYSPACE, "by_hand"):
        url = cassandra1.url(keyspace)
        hint = "`cassq schema change --replication 1`"
        assert hint in run("schema", "status", "--url", url, code=1).stderr
        assert hint in run("schema", "apply", "--url", url, code=2).stderr
        assert run("schema", "change", "--url", url, "--replication", "1").stdout == (
            f"keyspace {keyspace} has replication 1\n"
        )
        found = run("schema", "status", "--url", url, "--json", code=int(keyspace != KEYSPACE))
        assert json.loads(found.stdout)["replication"] == {"dc1": 1}
    cassq.connect(cassandra1.url(KEYSPACE)).close()


# --- damage -----------------------------------------------------------------------------------


def popped(queue: cassq.Queue) -> tuple[list[bytes], int]:
    """What a new popper gets and commits, and how many errors it meets."""
    found: list[bytes] = []
    errors = empty = 0
    with queue.popper() as popper:
        while empty < 2:
            try:
                messages = popper.pop(100)
            except CorruptionError:
                errors += 1
                continue
            empty = 0 if messages else empty + 1
            popper.commit(messages)
            found += [message.payload for message in messages]
    return found, errors


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_damaged_pipe_has_a_way_forward(
    url: str, name: str, tables: Cql, consistency: str
) -> None:
    with cassq.connect(url) as client:
        queue = client.create_queue(name, consistency=consistency)
        with queue.pusher() as pusher:
            ids = [pusher.push(b"%d" % number) for number in range(6)]
        pipe_id = ids[0].partition(":")[0]
        ((extent,),) = tables.read("SELECT extent FROM extents WHERE pipe_id = ?", (pipe_id,))
        spoil = "UPDATE frames SET frame = ? WHERE extent = ? AND bucket = 0 AND base_seq = ?"
        tables.write(f"{spoil} AND part = 0", (b"rubbish", extent, 2))
        assert popped(queue) == ([b"0", b"1"], 1)
        assert queue.look_into_pipe(pipe_id).damaged[0][:2] == (2, 3)
        assert popped(queue)[0] == []
        assert queue.skip_damage(pipe_id).lost == 1
        assert popped(queue) == ([b"3", b"4", b"5"], 0)
        stats = queue.stats().groups["default"]
        assert (stats.committed, stats.lost, stats.pushed) == (5, 1, 6)
        assert queue.audit().findings == []
        client.reap([name])
        assert queue.stats().groups["default"].lost == 1
        assert queue.audit().findings == []


def test_a_wedged_group_is_found_and_mended(url: str, name: str, tables: Cql) -> None:
    with cassq.connect(url) as client:
        queue = client.create_queue(name)
        with queue.pusher() as pusher:
            ids = pusher.push_many([b"%d" % number for number in range(9)])
        (group,) = client.ports.catalog.queues.groups(queue.id)
        popper = queue.popper()
        batches = [popper.pop(3) for _ in range(3)]
        key = (group.id, ids[0].partition(":")[0])
        drop = "DELETE FROM claims WHERE group_id = ? AND pipe_id = ? AND kind = 0 AND seq = 3"
        tables.write(drop, key)
        popper.commit(batches[2])
    with cassq.connect(url) as client:
        queue = client.queue(name)
        (finding,) = [each for each in queue.audit().findings if "is wedged in" in each]
        assert "no claim row covers seq 3" in finding
        (planned,) = client.reaper.reap([queue.row], only=["mend"], dry_run=True)
        assert planned.outcome == "planned"
        (done,) = client.reaper.reap([queue.row], only=["mend"])
        assert done.outcome == "done"
        assert sorted(popped(queue)[0]) == [b"%d" % number for number in range(6)]
        assert queue.audit().findings == []
