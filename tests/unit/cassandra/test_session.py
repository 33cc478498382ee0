"""A session hands on what its URL says, and what it measures reaches the metrics."""

from __future__ import annotations

from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.base.counters import Requests, Tallies
from cassq.cassandra.connecting import ConnectBudget
from cassq.cassandra.contact import HELD_UP, Contact, cluster
from cassq.cassandra.session import Cql
from cassq.cassandra.speculation import OVERLOADED_MS, REMEMBERED, Speculation
from cassq.errors import BackendUnavailableError
from cassq.inspect.metrics import Meter
from cassq.inspect.prometheus import as_text
from cassq.lifecycle.ports import Ports
from tests.unit.cassandra.fake_driver import FakeDriver

READ = "SELECT a FROM claims WHERE k = ?"
WRITE = "INSERT INTO frames (k) VALUES (?)"
CONDITIONAL = "UPDATE pipes SET a = 1 WHERE k = ? IF a = 0"
TIMEOUT, SPECULATE, PATIENCE = 2.0, 0.7, 6.0
CONTACT = Contact(("127.0.0.1",), "k", timeout=TIMEOUT, speculate=SPECULATE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def requests() -> Requests:
    return Requests()


@pytest.fixture
def session(clock: ManualClock, driver: FakeDriver, requests: Requests) -> Cql:
    build: Any = driver.build
    return Cql(CONTACT, clock, keyspace="k", patience=PATIENCE, requests=requests, build=build)


def no_ports() -> Ports:
    raise BackendUnavailableError("the depths of queues are not asked for")


def scraped(requests: Requests) -> str:
    """What Prometheus reads of a client whose requests these are."""
    meter = Meter(no_ports, requests, Tallies(), dict, queues=False)
    return as_text(meter.read).decode()


# --- how long answers took --------------------------------------------------------------------


def test_how_long_each_statement_took_is_scraped(session: Cql, requests: Requests) -> None:
    for _ in range(3):
        session.read(READ, (1,))
    session.read(READ, (1,), serial=True)
    session.write(WRITE, (1,))
    session.apply(CONDITIONAL, (1,))
    text = scraped(requests)
    for operation, table, count in (
        ("read", "claims", 3),
        ("serial read", "claims", 1),
        ("write", "frames", 1),
        ("conditional write", "pipes", 1),
    ):
        labels = f'operation="{operation}",table="{table}"'
        assert f"cassq_client_request_seconds_count{{{labels}}} {count}.0" in text
        assert f'cassq_client_request_seconds_bucket{{le="+Inf",{labels}}} {count}.0' in text
    assert all(seconds > 0 for _, seconds in requests.latencies.by_kind().values())


def test_a_session_without_counters_of_its_client_has_its_own(
    clock: ManualClock, driver: FakeDriver
) -> None:
    build: Any = driver.build
    session = Cql(CONTACT, clock, build=build)
    session.read(READ, (1,))
    assert 'table="claims"' in scraped(session.requests)


# --- what the URL says ------------------------------------------------------------------------


def test_every_request_has_the_timeout_of_the_url(session: Cql, driver: FakeDriver) -> None:
    session.read(READ, (1,))
    session.write(WRITE, (1,))
    session.apply(CONDITIONAL, (1,))
    assert len(driver.session.timeouts) > 6, "those of connecting, and of preparing, are among them"
    assert set(driver.session.timeouts) == {TIMEOUT}


def test_connecting_has_the_patience_of_the_url(session: Cql, driver: FakeDriver) -> None:
    driver.budget.begin(1)
    assert driver.budget.share("a", known=False) == PATIENCE


def test_the_driver_speculates_as_the_url_says(session: Cql, driver: FakeDriver) -> None:
    assert driver.contact is CONTACT
    assert driver.speculation.delay() == SPECULATE


def test_the_drivers_profile_has_both(clock: ManualClock) -> None:
    speculation = Speculation(SPECULATE, clock.boot_ms)
    made = cluster(CONTACT, lambda: 0, speculation, ConnectBudget(PATIENCE, clock.boot_ms))
    profile = made.profile_manager.default
    assert profile.speculative_execution_policy is speculation
    assert profile.request_timeout == TIMEOUT


# --- when it stops to speculate ---------------------------------------------------------------


def test_many_doubled_requests_end_it(session: Cql, driver: FakeDriver, requests: Requests) -> None:
    driver.session.hosts_tried = ["a", "b"]
    for _ in range(20):
        session.read(READ, (1,))
    assert requests.doubled == 20
    assert driver.speculation.delay() == -1
    driver.session.hosts_tried = ["a"]
    for _ in range(REMEMBERED):
        session.read(READ, (1,))
    assert driver.speculation.delay() == SPECULATE, "the server is quick again"


def test_an_answer_of_an_overloaded_server_ends_it_for_a_while(
    session: Cql, driver: FakeDriver, clock: ManualClock
) -> None:
    driver.session.warnings = [f"{HELD_UP} the limit"]
    session.read(READ, (1,))
    driver.session.warnings = []
    assert driver.speculation.delay() == -1
    clock.advance(OVERLOADED_MS / 1000)
    assert driver.speculation.delay() == SPECULATE
