"""A real Cassandra node with tiny limits, and clients that push and pop more than it takes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import cassq
from cassq.base.counters import REQUESTS, Requests
from tests.contract.keyspaces import opened_keyspace
from tests.integration.deadlines import joined
from tests.servers.fixtures import running
from tests.servers.kinds import cassandra
from tests.servers.kinds.cassandra import CassandraCluster

pytest.importorskip("cassandra")

from cassandra.protocol import StartupMessage

KEYSPACE = "overload"
PATIENCE = 120.0
# The bytes of one large frame at a time, in requests that are not yet answered.
FEW_BYTES = {
    "native_transport_max_request_data_in_flight": "1500KiB",
    "native_transport_max_request_data_in_flight_per_ip": "1200KiB",
}
# Requests a second that a node takes. On a busy machine clients may send fewer than the first.
RATES = 100, 25
PUSHERS, BATCH, SIZE_BYTES = 3, 1500, 2000  # a batch is three frames of a megabyte
MESSAGES = PUSHERS * BATCH
# A client that sends more than these to a second server adds to the load that makes them slow.
DOUBLED_SHARE_MAX = 0.1

pytestmark = [
    pytest.mark.servers,
    pytest.mark.long(reason="Cassandra nodes with settings of their own, which are overloaded"),
]


def few_requests(a_second: int) -> dict[str, Any]:
    return {
        "native_transport_rate_limiting_enabled": True,
        "native_transport_max_requests_per_second": a_second,
    }


class Limited:
    """A node of this module's own."""

    def __init__(self, servers: CassandraCluster, options: dict[str, Any]) -> None:
        self._servers = servers
        self._options = options
        self.url = servers.url(KEYSPACE)

    def limit(self, limits: dict[str, Any]) -> None:
        """Have it run with these limits, and no others."""
        if self._options != limits:
            self._options.clear()
            self._options.update(limits)
            self._servers.node(1).restart()


@pytest.fixture(scope="module")
def node() -> Iterator[Limited]:
    options: dict[str, Any] = {}
    for servers in running(cassandra.cluster(options=options)):
        assert isinstance(servers, CassandraCluster)
        for session in opened_keyspace(servers, KEYSPACE):
            session.close()
            yield Limited(servers, options)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver asks servers to refuse what is too much, for which it has no option."""
    write = StartupMessage.send_body

    def send_body(self: Any, *args: Any) -> None:
        self.options["THROW_ON_OVERLOAD"] = "1"
        write(self, *args)

    monkeypatch.setattr(StartupMessage, "send_body", send_body)


def answered(requests: Requests) -> int:
    """How many requests of one client were answered."""
    return sum(sum(counts) for counts, _ in requests.latencies.by_kind().values())


def flood(url: str, name: str, consistency: str) -> tuple[dict[str, int], dict[str, int]]:
    """Push and pop side by side, by two clients; every message comes once. What they counted of
    their requests, and what more is told of them afterwards."""
    payloads = [b"%06d" % number + bytes(SIZE_BYTES) for number in range(MESSAGES)]
    failed: list[BaseException] = []
    popped: list[bytes] = []

    def pop() -> None:
        while len(popped) < MESSAGES:
            messages = popper.pop(500, wait=PATIENCE)
            assert messages, "nothing came for too long"
            popped.extend(bytes(message.payload) for message in messages)
            popper.commit(messages)

    def push(at: int) -> None:
        with queue.pusher() as pusher:
            pusher.push_many(payloads[at : at + BATCH])

    def watched(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as exc:
            failed.append(exc)

    with cassq.connect(url) as pushing, cassq.connect(url) as popping:
        queue = pushing.create_queue(name, consistency=consistency)
        before = queue.stats().requests
        popper = popping.queue(name).popper()
        acts = [pop, *(partial(push, at) for at in range(0, MESSAGES, BATCH))]
        threads = [threading.Thread(target=watched, args=(act,), daemon=True) for act in acts]
        for thread in threads:
            thread.start()
        for thread in threads:
            joined("pushing or popping", thread, seconds=PATIENCE)
        counts = [each.ports.requests for each in (pushing, popping)]
        counted = {what: sum(getattr(each, what) for each in counts) for what in REQUESTS}
        counted["answered"] = sum(map(answered, counts))
    assert not failed, failed
    assert sorted(popped) == payloads
    with cassq.connect(url) as client:
        stats = client.queue(name).stats()
        audit = client.queue(name).audit()
    assert audit.balanced, audit.findings
    assert stats.troubles == {}
    found = {what: stats.requests.get(what, 0) - before.get(what, 0) for what in REQUESTS}
    return counted, found


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_node_that_delays_its_clients_slows_them_and_fails_nothing(
    node: Limited, consistency: str
) -> None:
    for rate in RATES:
        node.limit(FEW_BYTES | few_requests(rate))
        counted, found = flood(node.url, f"held.{consistency}.{rate}", consistency)
        if counted["held_up"]:
            break
    assert counted["held_up"] > 0
    # (The driver may refuse to send while its socket is full; that is counted as overloaded.)
    assert found["held_up"] >= counted["held_up"]


@pytest.mark.usefixtures("refused")
def test_a_node_that_refuses_excess_requests_slows_its_clients_and_fails_nothing(
    node: Limited,
) -> None:
    node.limit(FEW_BYTES)
    counted, found = flood(node.url, "refused", "ap")
    assert counted["overloaded"] > 0
    assert counted["repeated"] >= counted["overloaded"]
    assert found["overloaded"] >= counted["overloaded"]


@pytest.fixture(scope="module")
def three() -> Iterator[str]:
    """Three nodes that are all slow, as each takes few requests."""
    options = FEW_BYTES | few_requests(min(RATES))
    for servers in running(cassandra.cluster(nodes=3, options=options)):
        assert isinstance(servers, CassandraCluster)
        for session in opened_keyspace(servers, KEYSPACE):
            session.close()
            yield servers.url(KEYSPACE)


def test_servers_that_are_all_overloaded_get_few_requests_twice(three: str) -> None:
    """Where another server is no quicker, most requests are slow enough to be sent to it too."""
    counted, _ = flood(f"{three}?speculate=0.02", "doubled", "ap")
    assert counted["held_up"] > 0
    assert counted["doubled"] <= DOUBLED_SHARE_MAX * counted["answered"]
