"""Fixtures of real servers: `cassandra1`, `zookeeper3`, `sidecars4`, ... and the mark `servers`.

A test that names one gets a whole cluster. Each is started at most once in a run, when the first
test asks for it, and ends with the run; what a test killed or paused is mended before the next
one. So tests keep apart by names (of keyspaces, queues, paths), not by servers. A server that is
not to be had skips the test at a desk and fails it in CI.

`pytest -m servers` selects these tests, `-m "not servers"` leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from tests import needs
from tests.servers.cluster import Cluster
from tests.servers.kinds import cassandra, hazelcast, sidecar, zookeeper
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.kinds.hazelcast import HazelcastCluster
from tests.servers.kinds.sidecar import SidecarCluster
from tests.servers.kinds.zookeeper import ZooKeeperCluster
from tests.servers.parts.errors import MissingServerError

C = TypeVar("C", bound=Cluster[Any])

_MARK = "servers"
_SESSION = "_for_the_session"


def running(cluster: C) -> Iterator[C]:
    """The cluster, started, and stopped at the end; for fixtures of other settings than these."""
    try:
        cluster.start()
    except MissingServerError as error:
        needs.missing(str(error))
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def cassandra1_for_the_session() -> Iterator[CassandraCluster]:
    yield from running(cassandra.cluster(nodes=1))


@pytest.fixture(scope="session")
def cassandra3_for_the_session() -> Iterator[CassandraCluster]:
    yield from running(cassandra.cluster(nodes=3))


@pytest.fixture(scope="session")
def zookeeper1_for_the_session() -> Iterator[ZooKeeperCluster]:
    yield from running(zookeeper.cluster(nodes=1))


@pytest.fixture(scope="session")
def zookeeper3_for_the_session() -> Iterator[ZooKeeperCluster]:
    yield from running(zookeeper.cluster(nodes=3))


@pytest.fixture(scope="session")
def hazelcast1_for_the_session() -> Iterator[HazelcastCluster]:
    yield from running(hazelcast.cluster(nodes=1))


@pytest.fixture(scope="session")
def hazelcast3_for_the_session() -> Iterator[HazelcastCluster]:
    yield from running(hazelcast.cluster(nodes=3))


@pytest.fixture(scope="session")
def sidecars4_for_the_session() -> Iterator[SidecarCluster]:
    yield from running(sidecar.cluster(nodes=4))


@pytest.fixture
def cassandra1(cassandra1_for_the_session: CassandraCluster) -> CassandraCluster:
    """One Cassandra node."""
    cassandra1_for_the_session.mend()
    return cassandra1_for_the_session


@pytest.fixture
def cassandra3(cassandra3_for_the_session: CassandraCluster) -> CassandraCluster:
    """Three Cassandra nodes in one data centre."""
    cassandra3_for_the_session.mend()
    return cassandra3_for_the_session


@pytest.fixture
def zookeeper1(zookeeper1_for_the_session: ZooKeeperCluster) -> ZooKeeperCluster:
    """One ZooKeeper server."""
    zookeeper1_for_the_session.mend()
    return zookeeper1_for_the_session


@pytest.fixture
def zookeeper3(zookeeper3_for_the_session: ZooKeeperCluster) -> ZooKeeperCluster:
    """An ensemble of three ZooKeeper servers."""
    zookeeper3_for_the_session.mend()
    return zookeeper3_for_the_session


@pytest.fixture
def hazelcast1(hazelcast1_for_the_session: HazelcastCluster) -> HazelcastCluster:
    """One Hazelcast member, without CP."""
    hazelcast1_for_the_session.mend()
    return hazelcast1_for_the_session


@pytest.fixture
def hazelcast3(hazelcast3_for_the_session: HazelcastCluster) -> HazelcastCluster:
    """Three Hazelcast members with CP."""
    hazelcast3_for_the_session.mend()
    return hazelcast3_for_the_session


@pytest.fixture
def sidecars4(sidecars4_for_the_session: SidecarCluster) -> SidecarCluster:
    """Four sidecars of four zones, over an embedded catalog."""
    sidecars4_for_the_session.mend()
    return sidecars4_for_the_session


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARK}(*names): the test uses real servers (set by itself), of these fixtures; for those"
        " that a parameter chooses",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name.endswith(_SESSION) for name in getattr(item, "fixturenames", ())):
            item.add_marker(_MARK)
