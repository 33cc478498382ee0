"""The places that the suites run at, one after another over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cassq.base.clock import Clock, ManualClock, SystemClock
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra.pipes import listing, pipe_lists
from cassq.catalog.port import Catalog
from tests.contract.backends import (
    CASSANDRA_EXTENTS,
    CATALOGS,
    DOORBELLS,
    EXTENT_STORES,
    LOCKERS,
    BellPlace,
    CatalogPlace,
    ExtentPlace,
    LeaseLocks,
    LockerPlace,
    close_catalogs,
)
from tests.contract.cassandra_place import CassandraPlace, Keyspace
from tests.contract.keyspaces import on_servers, opened_keyspace
from tests.contract.lock_servers import (
    LAPSES,
    LEASE,
    LOCK_SERVERS,
    LONG,
    RealLocks,
    ServerLocks,
    on_lock_servers,
    server_place,
)
from tests.servers.kinds.cassandra import CassandraCluster

OpenCatalog = Callable[..., Catalog]


@pytest.fixture(autouse=True)
def catalogs_are_closed() -> Iterator[None]:
    yield
    close_catalogs()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def keyspace(cassandra1_for_the_session: CassandraCluster) -> Iterator[Cql]:
    """A session with the tables of this source tree."""
    yield from opened_keyspace(cassandra1_for_the_session, "contract")


@pytest.fixture
def cassandra_place(cassandra1: CassandraCluster, keyspace: Cql) -> CatalogPlace:
    """The keyspace without a row."""
    return CassandraPlace(Keyspace(keyspace))


@pytest.fixture
def midday(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the hour is, pipes are listed as in the middle of a day: in its first minutes a list
    has no lower bound yet, which takes a write less, and leaves some tombstones."""
    now_us = SystemClock().wall_ms() * 1000
    days = now_us // listing.DAY_US
    for module in (listing, pipe_lists):
        monkeypatch.setattr(module, "DAY_US", 2 * now_us // (2 * days + 1))


@pytest.fixture(params=[*CATALOGS, *on_servers(["cassandra"])])
def catalog_place(request: pytest.FixtureRequest, tmp_path: Path) -> CatalogPlace:
    if request.param == "cassandra":
        return request.getfixturevalue("cassandra_place")
    return CATALOGS[request.param](tmp_path)


@pytest.fixture
def open_catalog(catalog_place: CatalogPlace, clock: ManualClock) -> Iterator[OpenCatalog]:
    """Opens further connections to the catalog; they are closed with the test."""
    opened: list[Catalog] = []

    def connect(with_clock: Clock = clock, *, lock_wait: float = 15.0) -> Catalog:
        opened.append(catalog_place.open(with_clock, lock_wait=lock_wait))
        return opened[-1]

    yield connect
    for catalog in opened:
        catalog.close()


@pytest.fixture
def catalog(open_catalog: OpenCatalog) -> Catalog:
    return open_catalog()


@pytest.fixture
def other(catalog: Catalog, open_catalog: OpenCatalog) -> Catalog:
    """A second connection, as another process has."""
    return open_catalog()


@pytest.fixture(params=[*EXTENT_STORES, *on_servers(CASSANDRA_EXTENTS)])
def extent_place(request: pytest.FixtureRequest, tmp_path: Path) -> ExtentPlace:
    if request.param in EXTENT_STORES:
        return EXTENT_STORES[request.param](tmp_path)
    return CASSANDRA_EXTENTS[request.param](request.getfixturevalue("keyspace"))


@pytest.fixture(params=[*LOCKERS, *on_servers(["lease in cassandra"])])
def open_locker_place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[Clock], LockerPlace]]:
    """Opens a place whose lockers go by a clock; it is closed with the test."""
    opened: list[LockerPlace] = []

    def open_place(clock: Clock) -> LockerPlace:
        if request.param == "lease in cassandra":
            catalogs: CatalogPlace = request.getfixturevalue("cassandra_place")
            opened.append(LeaseLocks(catalogs, clock))
        else:
            opened.append(LOCKERS[request.param](tmp_path, clock))
        return opened[-1]

    yield open_place
    for place in opened:
        place.close()


@pytest.fixture
def locker_place(
    open_locker_place: Callable[[Clock], LockerPlace], clock: ManualClock
) -> LockerPlace:
    return open_locker_place(clock)


@pytest.fixture(
    params=[
        *LOCKERS,
        # Three servers look like one until some fail.
        *on_lock_servers(name for name in LOCK_SERVERS if "three" not in name),
    ]
)
def any_locker_place(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[LockerPlace]:
    """Also those whose time cannot be turned."""
    name = request.param
    place: LockerPlace
    if name in LOCKERS:
        place = LOCKERS[name](tmp_path, clock)
    else:
        place = server_place(name, request, tmp_path)
        place.ask_for_sessions(LONG)
    yield place
    place.close()


@pytest.fixture(params=on_lock_servers(LOCK_SERVERS))
def server_locker_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerLocks]:
    """Those of which something can be killed or paused."""
    place = server_place(request.param, request, tmp_path)
    yield place
    place.close()


@pytest.fixture(params=[LEASE, *on_lock_servers(LOCK_SERVERS, LAPSES)])
def real_locker_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealLocks]:
    """Those that processes share, on the machine's clock."""
    place: RealLocks
    if request.param == LEASE:
        place = RealLocks(LEASE, tmp_path)
    else:
        place = server_place(request.param, request, tmp_path)
    yield place
    place.close()


@pytest.fixture(params=DOORBELLS)
def bell_place(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> BellPlace:
    return DOORBELLS[request.param](tmp_path, clock)
