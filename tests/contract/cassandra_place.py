"""A Cassandra catalog for the contract suites: one keyspace a run, emptied before each test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from cassq.base.clock import Clock, ManualClock
from cassq.cassandra.cluster_time import ClusterTime, Learn
from cassq.cassandra.session import Contact, Cql, Statement
from cassq.catalog import schema_files
from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.catalog.port import Catalog
from tests.contract.backends import CatalogPlace
from tests.contract.keyspaces import remove_all, tables_of

FOREIGN = "foreign"
# Their writes bear times of their own, below which a delete would hide what comes after.
_STAMPED = ("group_success", "sample_horizons")

stamped: set[str] = set()  # those of them that were written to


class Keyspace:
    """A keyspace, by a session that all share."""

    def __init__(self, cql: Cql) -> None:
        self.cql = cql

    def clean(self) -> None:
        """Remove every row."""
        remove_all(self.cql, [name for name in tables_of(self.cql) if name not in _STAMPED])
        for name in stamped:
            self.cql.execute(f"TRUNCATE {name}")
        stamped.clear()
        known = schema_files.latest_version("cassandra")
        self.set_version(known)

    def set_version(self, version: int) -> None:
        """The version that the keyspace says it has."""
        self.cql.write(
            "INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (str(version),)
        )


class BorrowedCql(Cql):
    """A keyspace's session, which stays open when this is closed."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.__dict__.update(keyspace.cql.__dict__)

    def write_many(self, statements: Iterable[Statement]) -> None:
        statements = list(statements)
        texts = " ".join(text for text, _ in statements)
        stamped.update(name for name in _STAMPED if name in texts)
        super().write_many(statements)

    def close(self) -> None:
        self._closed = True


class ServersClock:
    """A server's clock, for which time passes as it does for a manual one: it knows neither the
    jumps of that one's wall nor its boots."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._boot = clock.boot_id(), clock.boot_ms()
        self._now_ms = clock.wall_ms()

    def now_ms(self) -> int:
        boot_id, since_ms = self._boot
        self._boot = self._clock.boot_id(), self._clock.boot_ms()
        if boot_id == self._boot[0]:
            self._now_ms += self._boot[1] - since_ms
        return self._now_ms

    def ask(self, learn: Learn) -> None:
        """Tell the time at once."""
        learn(self._clock.boot_ms(), self.now_ms())


class ServersTime:
    """What catalogs of one place take for their servers' time."""

    def __init__(self) -> None:
        self._servers: ServersClock | None = None

    def of(self, clock: Clock) -> ClusterTime | None:
        """For a clock that the test moves: of servers that move with it. None: the real one."""
        if not isinstance(clock, ManualClock):
            return None
        if self._servers is None:
            self._servers = ServersClock(clock)
        time = ClusterTime(clock, self._servers.ask)
        self._servers.ask(time.learn)
        return time


class CassandraPlace(CatalogPlace):
    """The keyspace, emptied."""

    def __init__(self, keyspace: Keyspace) -> None:
        self.keyspace = keyspace
        self.time = ServersTime()
        self._occupied = False
        keyspace.clean()

    def open(self, clock: Clock, *, lock_wait: float = 15.0) -> Catalog:
        if self._occupied:
            contact = Contact(self.keyspace.cql.contact.hosts, FOREIGN)
            cql = Cql(contact, clock, keyspace=FOREIGN)
        else:
            cql = BorrowedCql(self.keyspace)
        try:
            return CassandraCatalog(cql, clock, time=self.time.of(clock))
        except BaseException:
            cql.close()
            raise

    def schema_version(self) -> int:
        return schema.read_version(self.keyspace.cql) or 0

    def set_schema_version(self, version: int) -> None:
        self.keyspace.set_version(version)

    def occupy(self) -> None:
        self._occupied = True
        cql = self.keyspace.cql
        options = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        cql.execute(f"CREATE KEYSPACE IF NOT EXISTS {FOREIGN} WITH replication = {options}")
        cql.execute(f"CREATE TABLE IF NOT EXISTS {FOREIGN}.recipes (name text PRIMARY KEY)")


C = TypeVar("C", bound=BorrowedCql)


@contextmanager
def processes(
    place: CassandraPlace, clock: Clock, session: Callable[[Keyspace], C]
) -> Iterator[Callable[[], tuple[CassandraCatalog, C]]]:
    """Makes catalogs as processes of their own have them, each with a session of its own."""
    made: list[CassandraCatalog] = []

    def connect() -> tuple[CassandraCatalog, C]:
        cql = session(place.keyspace)
        made.append(CassandraCatalog(cql, clock, time=place.time.of(clock)))
        return made[-1], cql

    try:
        yield connect
    finally:
        for catalog in made:
            catalog.close()
