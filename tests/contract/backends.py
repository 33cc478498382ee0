"""The backends that the contract suites run over: a new one joins by a factory in a table here.

Each port has a `…Place`: somewhere a backend can be opened any number of times, as several
processes would. Its methods are what a suite needs besides the port itself.
"""

from __future__ import annotations

import abc
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from cassq.base.clock import Clock, ManualClock
from cassq.base.ids import Ids
from cassq.cassandra.session import Cql
from cassq.catalog.port import Catalog
from cassq.catalog.sqlite import SqliteCatalog
from cassq.doorbell import Doorbell, FifoDoorbell, PollingDoorbell
from cassq.extents.cassandra import CassandraStore
from cassq.extents.cassandra.writer import Sizes
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.extents.port import ExtentStore
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.reader import SLICE_BYTES
from cassq.extents.sidecar.settings import Settings
from cassq.locks.lease import LeaseLocker
from cassq.locks.port import Locker
from tests.contract.memory_sidecars import MemoryNetwork, MemorySidecar

# --- catalogs ---------------------------------------------------------------------------------

_opened: list[SqliteCatalog] = []
_Opened = TypeVar("_Opened", bound=SqliteCatalog)


def closed_later(catalog: _Opened) -> _Opened:
    """A catalog that nothing ends but the test: `close_catalogs` closes it."""
    _opened.append(catalog)
    return catalog


def close_catalogs() -> None:
    """Close what the places have opened. SQLite's connections are not closed by being forgotten:
    Python 3.13 warns of it, and a warning fails a test."""
    while _opened:
        _opened.pop().close()


class CatalogPlace(abc.ABC):
    """A place for one catalog."""

    @abc.abstractmethod
    def open(self, clock: Clock, *, lock_wait: float = 15.0) -> Catalog:
        """A connection of its own; the first makes the catalog."""

    @abc.abstractmethod
    def schema_version(self) -> int:
        """The version of the schema that is there."""

    @abc.abstractmethod
    def set_schema_version(self, version: int) -> None:
        """As if another version of cassq had been here."""

    @abc.abstractmethod
    def occupy(self) -> None:
        """As if another program had been here first."""


class SqlitePlace(CatalogPlace):
    def __init__(self, directory: Path) -> None:
        self.path = directory / "catalog.sqlite"

    def open(self, clock: Clock, *, lock_wait: float = 15.0) -> Catalog:
        return SqliteCatalog(self.path, clock, durable=False, lock_wait=lock_wait)

    def schema_version(self) -> int:
        with self._plain() as connection:
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            return version

    def set_schema_version(self, version: int) -> None:
        with self._plain() as connection:
            connection.execute(f"PRAGMA user_version={version}")

    def occupy(self) -> None:
        with self._plain() as connection:
            connection.execute("CREATE TABLE recipes (name TEXT)")

    @contextmanager
    def held_by_another(self) -> Iterator[None]:
        """While somebody else keeps everybody from writing."""
        with self._plain() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    @contextmanager
    def _plain(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()


CATALOGS: dict[str, Callable[[Path], CatalogPlace]] = {"sqlite": SqlitePlace}


# --- extent stores ----------------------------------------------------------------------------


class ExtentPlace(abc.ABC):
    """A place for the extents of one store."""

    # Whether extents are made for cp queues.
    strict = False
    # Seconds until one process certainly knows what another did to an extent.
    lag = 0.0

    @abc.abstractmethod
    def open(self, clock: Clock) -> ExtentStore:
        """The store as another process has it."""


class FilesPlace(ExtentPlace):
    """The files store, with either durability. disk: what stands between it and the system."""

    def __init__(self, directory: Path, durability: str = "disk") -> None:
        self.directory = directory
        self.durability = durability

    def open(self, clock: Clock, disk: Disk | None = None) -> ExtentStore:
        return FilesStore(self.directory, clock, durability=self.durability, disk=disk or Disk())


class SidecarPlace(ExtentPlace):
    """Sidecars in memory, one in each zone, and a catalog in a file. The last store that was
    opened has `network`."""

    lag = 1.0

    def __init__(
        self, directory: Path, sidecars: int = 4, replicas: int = 3, *, strict: bool = False
    ) -> None:
        self.strict = strict
        self.settings = Settings(replicas)
        self.look_ms = 0
        self.slice_bytes = SLICE_BYTES
        self.clock = ManualClock()
        self.catalog = closed_later(
            SqliteCatalog(directory / "catalog.sqlite", self.clock, durable=False)
        )
        self.sidecars = [
            MemorySidecar(f"s{number}", f"zone{number}", self.clock)
            for number in range(1, sidecars + 1)
        ]
        self.beat()

    def beat(self) -> None:
        """All sidecars that are there tell of themselves."""
        for sidecar in self.sidecars:
            if not sidecar.down:
                self.catalog.sidecars.beat(sidecar.row())

    def open(self, clock: Clock) -> SidecarStore:
        for sidecar in self.sidecars:
            sidecar.clock = clock
        self.network = MemoryNetwork(self.sidecars, clock)
        return SidecarStore(
            *(self.catalog, clock, Ids(), self.settings, self.network),
            look_ms=self.look_ms,
            slice_bytes=self.slice_bytes,
        )


EXTENT_STORES: dict[str, Callable[[Path], ExtentPlace]] = {
    "files": FilesPlace,
    "files, unsynced": lambda directory: FilesPlace(directory, "os"),
    "one sidecar": lambda directory: SidecarPlace(directory, 1, 1),
    "sidecars": SidecarPlace,
    "sidecars, cp": lambda directory: SidecarPlace(directory, strict=True),
}


class CassandraExtents(ExtentPlace):
    """A keyspace, emptied of extents. Every store has memory of its own, as a process has."""

    lag = 10.0

    def __init__(self, cql: Cql, *, strict: bool) -> None:
        self.cql = cql
        self.strict = strict
        store = CassandraStore(cql, ManualClock())
        store.drop([info.pipe_id for info in store.extents()])

    def open(self, clock: Clock, sizes: Sizes | None = None) -> CassandraStore:
        return CassandraStore(self.cql, clock, sizes)


CASSANDRA_EXTENTS: dict[str, Callable[[Cql], ExtentPlace]] = {
    "cassandra, ap": lambda cql: CassandraExtents(cql, strict=False),
    "cassandra, cp": lambda cql: CassandraExtents(cql, strict=True),
}


# --- lockers ----------------------------------------------------------------------------------


class LockerPlace(abc.ABC):
    """A place where lockers contend."""

    # How long a lock is held in the suite: long enough for a few calls, short enough to wait for.
    ttl_ms: int = 1000
    # Whether a loss is also told to a holder that asks for nothing.
    tells_unasked: bool = False

    @abc.abstractmethod
    def open(self, owner: str) -> Locker:
        """A locker of its own."""

    @abc.abstractmethod
    def pass_ms(self, ms: int) -> None:
        """Return when so much time has passed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what the lockers stand on."""


class TimedPlace(LockerPlace):
    """Lockers on a clock that the test turns."""

    _clock: ManualClock

    def pass_ms(self, ms: int) -> None:
        self._clock.advance(ms / 1000)


class LeaseLocks(TimedPlace):
    """Leases in any catalog; each locker has a connection of its own, as a process has."""

    def __init__(self, catalogs: CatalogPlace, clock: ManualClock) -> None:
        self._catalogs = catalogs
        self._clock = clock
        self._opened: list[Catalog] = []

    def open(self, owner: str) -> Locker:
        catalog = self._catalogs.open(self._clock)
        self._opened.append(catalog)
        return LeaseLocker(catalog, owner)

    def close(self) -> None:
        for catalog in self._opened:
            catalog.close()


LOCKERS: dict[str, Callable[[Path, ManualClock], LockerPlace]] = {
    "lease in sqlite": lambda directory, clock: LeaseLocks(SqlitePlace(directory), clock),
}


# --- doorbells --------------------------------------------------------------------------------


class BellPlace(abc.ABC):
    """A place for the bells of queues."""

    @abc.abstractmethod
    def open(self, queue_id: str) -> Doorbell:
        """The bell of a queue."""


class PollingBells(BellPlace):
    def __init__(self, directory: Path, clock: Clock) -> None:
        self._bells: dict[str, Doorbell] = {}

    def open(self, queue_id: str) -> Doorbell:
        # So rarely that rings alone bring the suites to their end in time.
        return self._bells.setdefault(queue_id, PollingDoorbell(pause=30.0))


class FifoBells(BellPlace):
    def __init__(self, directory: Path, clock: Clock) -> None:
        self.directory = directory
        self._clock = clock

    def open(self, queue_id: str) -> Doorbell:
        return FifoDoorbell(self.directory, queue_id, self._clock)


DOORBELLS: dict[str, Callable[[Path, Clock], BellPlace]] = {
    "polling": PollingBells,
    "fifo": FifoBells,
}
