"""The places that the suites run at, one after another over every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cassq.catalog.port import Catalog
from cassq.clock import Clock, ManualClock
from tests.contract.backends import (
    CATALOGS,
    DOORBELLS,
    EXTENT_STORES,
    LOCKERS,
    BellPlace,
    CatalogPlace,
    ExtentPlace,
    LockerPlace,
)

OpenCatalog = Callable[..., Catalog]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=CATALOGS)
def catalog_place(request: pytest.FixtureRequest, tmp_path: Path) -> CatalogPlace:
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


@pytest.fixture(params=EXTENT_STORES)
def extent_place(request: pytest.FixtureRequest, tmp_path: Path) -> ExtentPlace:
    return EXTENT_STORES[request.param](tmp_path)


@pytest.fixture(params=LOCKERS)
def locker_place(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock
) -> Iterator[LockerPlace]:
    place = LOCKERS[request.param](tmp_path, clock)
    yield place
    place.close()


@pytest.fixture(params=DOORBELLS)
def bell_place(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> BellPlace:
    return DOORBELLS[request.param](tmp_path, clock)
