"""A locker that is opened when its first lock is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendUnavailableError
from cassq.locks.late import LateLocker
from cassq.locks.lease import LeaseLocker
from cassq.locks.port import Locker


class Service:
    """A lock service, and how often it was asked for."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self.opened = 0
        self.down = False

    def open(self) -> Locker:
        self.opened += 1
        if self.down:
            raise BackendUnavailableError("the service is down")
        return LeaseLocker(self.catalog, "mine")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    catalog = SqliteCatalog(tmp_path / "catalog.db", ManualClock())
    yield Service(catalog)
    catalog.close()


def test_it_is_opened_once_for_the_first_lock(service: Service) -> None:
    locker = LateLocker(service.open)
    assert not service.opened
    assert locker.acquire("a", 1000)
    assert locker.acquire("b", 1000)
    assert service.opened == 1


def test_a_service_that_is_down_is_asked_again_by_the_next_lock(service: Service) -> None:
    locker = LateLocker(service.open)
    service.down = True
    with pytest.raises(BackendUnavailableError):
        locker.acquire("a", 1000)
    service.down = False
    assert locker.acquire("a", 1000)


def test_closing_releases_its_locks_and_opens_nothing(service: Service) -> None:
    LateLocker(service.open).close()
    assert not service.opened
    locker = LateLocker(service.open)
    locker.acquire("a", 1000)
    other = LeaseLocker(service.catalog, "other")
    assert other.acquire("a", 1000) is None
    locker.close()
    assert other.acquire("a", 1000)
