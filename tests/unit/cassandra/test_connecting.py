"""Connecting: servers that are silent hold up a client for its patience, all of them together."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any, NamedTuple

import pytest
from cassandra import OperationTimedOut
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException, DefaultEndPoint

import cassq
from cassq.base.clock import ManualClock
from cassq.cassandra.connecting import SHARE_SECONDS_MIN, ConnectBudget
from cassq.cassandra.connection import NodeConnection
from cassq.cassandra.contact import CONNECT_SECONDS, CONNECT_SECONDS_MIN, Contact, cluster
from cassq.cassandra.speculation import Speculation
from cassq.errors import BackendUnavailableError

PATIENCE = 2.0
TIMEOUT = 1.0
HOSTS = "127.0.0.1,127.0.0.2,127.0.0.3"


class Attempt(NamedTuple):
    """What the driver asked for: a connection to a server within some seconds."""

    host: str
    seconds: float


class Servers:
    """Servers without a network: each attempt takes as long as it may. refusing: those that refuse
    at once. meanwhile: called during each attempt."""

    def __init__(self, *hosts: str, timeout: float = TIMEOUT, patience: float = PATIENCE) -> None:
        self.clock = ManualClock()
        self.attempts: list[Attempt] = []
        self.refusing: set[str] = set()
        self.meanwhile: Callable[[], object] = lambda: None
        self._began_ms = self.clock.boot_ms()
        budget = ConnectBudget(patience, self.clock.boot_ms)
        speculation = Speculation(0, self.clock.boot_ms)
        self.driver = cluster(Contact(hosts, "k", timeout=timeout), lambda: 0, speculation, budget)
        self.driver.connection_class = self._connections()

    def _connections(self) -> type[NodeConnection]:
        servers = self

        class Unanswered(NodeConnection):
            """A connection that is never opened."""

            @classmethod
            def factory(cls, endpoint: Any, timeout: float, *_args: Any, **_kwargs: Any) -> None:
                servers.attempts.append(Attempt(endpoint.address, timeout))
                servers.meanwhile()
                if endpoint.address in servers.refusing:
                    raise ConnectionException("refused")
                servers.clock.advance(timeout)
                raise OperationTimedOut("Timed out creating connection")

        return Unanswered

    @property
    def waited(self) -> float:
        return (self.clock.boot_ms() - self._began_ms) / 1000

    def connect(self) -> NoHostAvailable:
        """The driver's error."""
        with pytest.raises(NoHostAvailable) as caught:
            self.driver.connect()
        return caught.value


Make = Callable[..., Servers]


@pytest.fixture
def make() -> Iterator[Make]:
    with ExitStack() as made:

        def servers(*hosts: str, **seconds: float) -> Servers:
            found = Servers(*hosts, **seconds)
            made.callback(found.driver.shutdown)
            return found

        yield servers


def test_one_silent_server_holds_up_for_the_timeout(make: Make) -> None:
    servers = make("10.0.0.1")
    servers.connect()
    assert servers.attempts == [("10.0.0.1", TIMEOUT)]


def test_silent_servers_are_all_tried_within_the_patience(make: Make) -> None:
    servers = make("10.0.0.1", "10.0.0.2", "10.0.0.3")
    error = servers.connect()
    assert {attempt.host for attempt in servers.attempts} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    assert len(error.errors) == len(servers.attempts) == 3
    assert max(attempt.seconds for attempt in servers.attempts) <= TIMEOUT
    assert servers.waited <= PATIENCE


def test_servers_that_refuse_at_once_leave_their_time_to_the_others(make: Make) -> None:
    servers = make("10.0.0.1", "10.0.0.2", "10.0.0.3", patience=1.2)
    servers.refusing = {"10.0.0.1", "10.0.0.2"}
    servers.connect()
    share = next(a.seconds for a in servers.attempts if a.host == "10.0.0.3")
    silent_at = [attempt.host for attempt in servers.attempts].index("10.0.0.3")
    assert share == pytest.approx(min(TIMEOUT, 1.2 / (3 - silent_at)))


def test_however_many_are_silent_none_gets_too_little_to_answer(make: Make) -> None:
    hosts = [f"10.0.1.{number}" for number in range(40)]
    servers = make(*hosts)
    error = servers.connect()
    assert servers.waited <= PATIENCE
    assert all(attempt.seconds >= SHARE_SECONDS_MIN for attempt in servers.attempts)
    assert len(servers.attempts) == PATIENCE / SHARE_SECONDS_MIN
    assert len(error.errors) == 40, "the others are named, too"


@pytest.mark.parametrize(
    ("timeout", "expected"), [(0.1, CONNECT_SECONDS_MIN), (2.5, 2.5), (10.0, CONNECT_SECONDS)]
)
def test_the_drivers_own_limits_follow_the_timeout(
    make: Make, timeout: float, expected: float
) -> None:
    driver = make("10.0.0.1", timeout=timeout).driver
    assert (driver.connect_timeout, driver.control_connection_timeout) == (expected, expected)


# --- once one has answered --------------------------------------------------------------------


def test_a_server_that_was_silent_is_not_waited_for_again() -> None:
    clock = ManualClock()
    budget = ConnectBudget(PATIENCE, clock.boot_ms)
    budget.begin(2)
    assert budget.share("a", known=False) == PATIENCE / 2
    clock.advance(PATIENCE / 2)
    budget.was_silent("a")
    assert budget.share("b", known=False) == PATIENCE / 2
    with pytest.raises(OperationTimedOut):
        budget.share("a", known=True)
    assert budget.share("b", known=True) == PATIENCE / 4, "there may be others after it"


def test_a_server_that_answers_late_may_still_be_used() -> None:
    clock = ManualClock()
    budget = ConnectBudget(PATIENCE, clock.boot_ms)
    budget.begin(1)
    clock.advance(PATIENCE)
    assert budget.share("a", known=True) == SHARE_SECONDS_MIN
    with pytest.raises(OperationTimedOut):
        budget.share("a", known=False)


def test_later_connections_have_the_drivers_own_limit(make: Make) -> None:
    """Nobody waits for them."""
    servers = make("10.0.0.1", "10.0.0.2", "10.0.0.3")
    servers.connect()
    del servers.attempts[:]
    with pytest.raises(OperationTimedOut):
        servers.driver.connection_factory(DefaultEndPoint("10.0.0.1"))
    assert servers.attempts == [("10.0.0.1", TIMEOUT)]


def test_a_server_that_comes_back_is_not_bound_by_what_was_left(make: Make) -> None:
    """The driver reads its limit once for all attempts to reconnect, also while it connects."""
    servers = make("10.0.0.1", "10.0.0.2", "10.0.0.3")
    seen: list[float] = []

    def read_elsewhere() -> None:
        thread = threading.Thread(target=lambda: seen.append(servers.driver.connect_timeout))
        thread.start()
        thread.join()

    servers.meanwhile = read_elsewhere
    servers.connect()
    assert min(attempt.seconds for attempt in servers.attempts) < TIMEOUT
    assert seen == [TIMEOUT] * 3


# --- with sockets -----------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[list[socket.socket]]:
    """Three servers on one port that accept nothing."""
    with ExitStack() as opened:
        found: list[socket.socket] = []
        for number in (1, 2, 3):
            each = opened.enter_context(closing(socket.socket()))
            each.bind((f"127.0.0.{number}", found[0].getsockname()[1] if found else 0))
            each.listen()
            found.append(each)
        yield found


def connect_to(silent: list[socket.socket], options: str) -> tuple[BackendUnavailableError, int]:
    """The error, and to how many of the servers the client tried to connect."""
    port = silent[0].getsockname()[1]
    with pytest.raises(BackendUnavailableError) as caught:
        cassq.connect(f"cassandra://{HOSTS}:{port}/k?{options}")
    tried = 0
    for each in silent:
        each.setblocking(False)
        with suppress(BlockingIOError):
            each.accept()[0].close()
            tried += 1
    return caught.value, tried


def test_the_error_says_that_servers_are_silent_and_what_to_do(
    silent: list[socket.socket],
) -> None:
    error, _ = connect_to(silent, "timeout=1&patience=1")
    assert f"no node answers at {HOSTS}" in error.message
    assert "did not answer in time" in error.message
    assert "is Cassandra running there" in error.hint


def test_what_cannot_be_tried_within_the_patience_of_the_url_is_not_tried(
    silent: list[socket.socket],
) -> None:
    error, tried = connect_to(silent, "timeout=1&patience=0.5")
    assert HOSTS in error.message
    assert tried < 3
