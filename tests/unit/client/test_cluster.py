"""URLs of Cassandra: what they say, and what is wrong with those that cannot be used."""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.base.tls import tls_of
from cassq.cassandra.connecting import ConnectBudget, PatientCluster
from cassq.cassandra.contact import (
    AGAIN_SECONDS_MAX,
    NO_SIGN_SECONDS,
    SILENT_SECONDS,
    STALE_SECONDS,
    Contact,
    cluster,
)
from cassq.cassandra.speculation import Speculation
from cassq.cassandra.tries import PATIENCE_SECONDS
from cassq.client.backends.agreement import quorums_of
from cassq.client.backends.cluster import (
    PATIENCE_SECONDS_MAX,
    PATIENCE_SECONDS_MIN,
    SPILL_PATIENCE_SECONDS,
    TIMEOUT_SECONDS_MIN,
    contact_of,
    open_session,
    patience_of,
)
from cassq.client.client import Client
from cassq.errors import ConfigError

# --- where it leads ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "hosts", "port"),
    [
        ("//db/k", ("db",), 9042),
        ("//db1,db2,db3/k", ("db1", "db2", "db3"), 9042),
        ("//db1,db2:9142/k", ("db1", "db2"), 9142),
        ("//db1:9142,db2:9142/k", ("db1", "db2"), 9142),
        ("//10.0.0.1,[2001:db8::1]:19042/k", ("10.0.0.1", "2001:db8::1"), 19042),
    ],
)
def test_a_url_names_servers_and_their_port(rest: str, hosts: tuple[str, ...], port: int) -> None:
    assert contact_of(rest, {}) == Contact(hosts, "k", port)


def test_a_url_has_credentials_and_options() -> None:
    options = {"dc": "east", "consistency": "QUORUM", "serial": "serial"}
    contact = contact_of("//ann:p%40ss%2F:w@db/cassq_2", options)
    assert contact == Contact(
        ("db",), "cassq_2", 9042, "east", "ann", "p@ss/:w", None, "quorum", "serial"
    )
    assert "p@ss" not in contact.label


def test_a_url_sets_how_long_requests_and_calls_may_take() -> None:
    contact = contact_of("//db/k", {"timeout": "2.5", "speculate": "0", "patience": "3"})
    assert (contact.timeout, contact.speculate) == (2.5, 0)
    assert patience_of({"patience": "3"}) == 3
    assert patience_of({}) == PATIENCE_SECONDS
    assert patience_of({"spill": "x"}) == SPILL_PATIENCE_SECONDS
    assert patience_of({"spill": "x", "patience": "20"}) == 20
    with pytest.raises(ConfigError, match=r"patience must be .* from 0.5 to 600, not '0'"):
        patience_of({"patience": "0"})


OPERATIONS = Path(__file__).resolve().parents[3] / "docs" / "operations.md"


def page_numbers(option: str) -> list[float]:
    """The numbers in what docs/operations.md says about an option of the URL."""
    match = re.search(rf"^\| `{option}` \|(.*)\|$", OPERATIONS.read_text(), re.MULTILINE)
    assert match is not None
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", match[1])]


def test_the_page_says_how_long_a_request_and_a_call_may_take() -> None:
    """Operators plan with these numbers: a change of one is news."""
    usual = contact_of("//db/k", {})
    assert [TIMEOUT_SECONDS_MIN, STALE_SECONDS, usual.timeout] == [0.1, 10, 5]
    assert page_numbers("timeout") == [0.1, 10, 5]
    limits = [PATIENCE_SECONDS_MIN, PATIENCE_SECONDS_MAX]
    assert [*limits, patience_of({}), patience_of({"spill": "x"})] == [0.5, 600, 10, 3]
    assert page_numbers("patience") == [0.5, 600, 10, 3]
    assert usual.speculate == 0.15
    assert page_numbers("speculate") == [0.15, 0]


@pytest.mark.parametrize(
    ("rest", "options", "message"),
    [
        ("db/k", {}, "names no server.*cassandra://host1"),
        ("///k", {}, "names no server"),
        ("//user:secret@/k", {}, "names no server"),
        ("//user@db/k", {}, "of db has no user and password"),
        ("//:secret@db/k", {}, "no user and password.*%40"),
        ("//db", {}, "the URL of db names no keyspace "),
        ("//db/", {}, "the URL of db names no keyspace "),
        ("//db/a-b", {}, "'a-b' in the URL of db is not the name of a keyspace"),
        ("//db/" + 49 * "k", {}, "is not the name of a keyspace"),
        ("//db,/k", {}, "'' is not a host name"),
        ("//db:0/k", {}, "'db:0' is not a host name"),
        ("//db:99999/k", {}, "is not a host name"),
        ("//d b/k", {}, "is not a host name"),
        ("//a:1,b:2/k", {}, "several ports"),
        ("//db/k", {"speed": "1"}, "of db has an unknown option 'speed'.*consistency"),
        ("//db/k", {"consistency": "one"}, "local_quorum or quorum, not 'one'.*miss"),
        ("//db/k", {"serial": "all"}, "local_serial or serial, not 'all'"),
        ("//db/k", {"tls": "maybe"}, "tls must be one of full, ca, no, not 'maybe'"),
        ("//db/k", {"timeout": "11"}, "timeout must be a number of seconds from 0.1 to 10, not '1"),
        ("//db/k", {"timeout": "soon"}, "timeout must be .* not 'soon' .leave it out for 5"),
        ("//db/k", {"timeout": "nan"}, "not 'nan'"),
        ("//db/k", {"speculate": "-1"}, "speculate must be a number of seconds from 0 to 10"),
    ],
)
def test_a_url_that_cannot_be_used_is_reported_without_its_password(
    rest: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        contact_of(rest, options)
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client.__new__(Client)
    client.url = "cassandra://ann:p@db,db2/cassq"
    assert repr(client) == "<Client cassandra://ann:...@db,db2/cassq>"
    with pytest.raises(ConfigError) as caught:
        cassq.connect("cassandr://ann:secret@db/cassq")
    assert "secret" not in str(caught.value)


def test_durability_is_refused() -> None:
    for url, durability in (("cassandra://db/k?durability=os", None), ("cassandra://db/k", "disk")):
        with pytest.raises(
            ConfigError, match="durability cannot be set for Cassandra.*commitlog_sync"
        ):
            cassq.connect(url, durability=durability)


@pytest.mark.parametrize("url", [None, "file:cassq-data", "//db/k"])
def test_only_a_keyspace_has_a_schema(url: str | None) -> None:
    with pytest.raises(ConfigError, match="only a Cassandra keyspace.*cassandra://"):
        open_session(url, ManualClock())


def test_a_missing_driver_is_named() -> None:
    code = (
        "import sys; sys.modules['cassandra'] = None; import cassq\n"
        "try: cassq.connect('cassandra://db/k')\n"
        "except cassq.errors.MissingExtraError as exc: print(exc)\n"
        "from cassq.cli.main import main; main(['schema', 'status', '--url', 'cassandra://db/k'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "package cassandra-driver (pip install 'cassq[cassandra]')" in done.stdout
    assert "error: cassandra: URLs need the package cassandra-driver" in done.stderr
    assert done.returncode == 2


# --- nodes that are gone ----------------------------------------------------------------------


def driver_of(contact: Contact) -> PatientCluster:
    """The driver's cluster of a URL, not connected."""
    clock = ManualClock()
    budget = ConnectBudget(PATIENCE_SECONDS, clock.boot_ms)
    return cluster(contact, lambda: 0, Speculation(0, clock.boot_ms), budget)


def test_a_node_that_is_gone_is_tried_again_every_few_seconds_without_end() -> None:
    driver = driver_of(Contact(("127.0.0.1",), "k"))
    pauses = list(islice(driver.reconnection_policy.new_schedule(), 5000))
    assert len(pauses) == 5000, "the driver gives up after 64 tries unless told otherwise"
    assert max(pauses) <= AGAIN_SECONDS_MAX <= 5


def test_a_node_that_is_paused_is_left_alone_within_a_quarter_of_a_minute() -> None:
    driver = driver_of(Contact(("127.0.0.1",), "k"))
    found = (driver.idle_heartbeat_interval, driver.idle_heartbeat_timeout)
    assert found == (SILENT_SECONDS, NO_SIGN_SECONDS)
    assert sum(found) <= 15, "until then every conditional write over it takes its full time"


# --- quorums ----------------------------------------------------------------------------------


def test_quorums_meet_of_themselves_within_one_data_centre() -> None:
    near, far = Contact(("db",), "k"), Contact(("db",), "k", consistency="quorum")
    assert quorums_of(near, {"east": 3}) == quorums_of(far, {"": 3}) == ""


def test_of_several_data_centres_local_quorums_meet_only_in_the_same_one() -> None:
    replicas = {"east": 3, "west": 3}

    def used(data_centre: str, **levels: str) -> str:
        return quorums_of(Contact(("db",), "k", data_centre=data_centre, **levels), replicas)

    everywhere = {"consistency": "quorum", "serial": "serial"}
    assert used("east", **everywhere) == used("west", **everywhere) == "quorum, serial"
    assert used("east") == "local_quorum, local_serial of east" != used("west")
    for levels in ({"consistency": "quorum"}, {"serial": "serial"}):
        assert used("east", **levels) != used("west", **levels)


# --- TLS --------------------------------------------------------------------------------------

CERTIFICATE, KEY = "certificate.pem", "key.pem"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate of its own authority, and its key."""
    command = (
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
        f" -subj /CN=test -keyout {KEY} -out {CERTIFICATE}"
    )
    directory = tmp_path_factory.mktemp("certificates")
    subprocess.run(command.split(), cwd=directory, check=True, capture_output=True)
    return directory


needs_openssl = pytest.mark.needs("openssl")


@pytest.mark.parametrize("options", [{}, {"tls": "no"}, {"tls": "0"}, {"tls": "false"}])
def test_without_an_option_there_is_no_tls(options: dict[str, str]) -> None:
    assert tls_of(options) is None


@pytest.mark.parametrize("message", ["1", "yes", "true", "full"])
def test_tls_verifies_the_server_and_its_address(message: str) -> None:
    context = tls_of({"tls": message})
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@needs_openssl
def test_the_address_alone_may_be_left_unverified(files: Path) -> None:
    context = tls_of({"tls": "ca", "ca": str(files / CERTIFICATE)})
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert len(context.get_ca_certs()) == 1, "and no other authority is trusted"


@needs_openssl
def test_files_turn_tls_on(files: Path) -> None:
    certificate, key = str(files / CERTIFICATE), str(files / KEY)
    assert tls_of({"ca": certificate}) is not None
    assert tls_of({"cert": certificate, "key": key}) is not None


@needs_openssl
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ca": "absent.pem"}, "ca=absent.pem: there is no such file"),
        ({"ca": KEY}, f"ca={KEY} cannot be used.*PEM"),
        ({"cert": CERTIFICATE}, "cannot be used"),
        ({"cert": CERTIFICATE, "key": CERTIFICATE}, "cannot be used"),
        ({"key": KEY}, "key=, but no cert="),
        ({"ca": CERTIFICATE, "tls": "no"}, "tls is off, but the URL has ca="),
    ],
)
def test_files_that_cannot_be_used_are_named(
    files: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(files)
    with pytest.raises(ConfigError, match=message):
        tls_of(options)
