"""Where the queues of the behavioural suite live: in a directory, or with `--on cassandra` in a
keyspace, of which there is one a run.

What a test leaves behind is found by a name (of a queue, a lease, a table of samples) or by an id
that is never given again. So only what is found by a name is removed before the next test.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.clock import Clock, SystemClock
from cassq.cluster import open_session
from cassq.cql import Cql
from cassq.doorbell import PollingDoorbell
from cassq.embedded import PIPES, Embedded, open_directory
from cassq.extents.cassandra import CassandraStore
from cassq.ids import Ids
from cassq.locks.lease import LeaseLocker
from cassq.ports import Life, Ports
from cassq.sharing import Sharing
from tests.contract.cassandra_place import ServersTime
from tests.integration.on import CASSANDRA, EMBEDDED, KEYSPACE
from tests.servers.cassandra import CassandraCluster

# The tables that are read without an id that is never given again.
_NAMED = (
    "queue_ids", "queue_names", "consumed_pipes", "leases", "samples", "sample_slices",
    "sample_steps", "incidents", "pipes", "extents",
)  # fmt: skip
# Its writes bear times of their own, below which a delete would hide what comes after.
_STAMPED = "sample_horizons"


class Place(abc.ABC):
    """A place of queues, without any; `url` names it."""

    url: str

    @abc.abstractmethod
    def open(self, clock: Clock) -> Embedded:
        """What `cassq.connect` puts together, on a clock of the test's own."""

    @abc.abstractmethod
    def damage(self, payload: bytes) -> str:
        """Flip a bit of a payload, or of what goes with it, where it is stored first; the pipe."""


def damaged(content: bytes, payload: bytes) -> bytes:
    """The same with a bit of `payload` flipped."""
    at = content.index(payload)
    return content[:at] + bytes([content[at] ^ 0x20]) + content[at + 1 :]


class DirectoryPlace(Place):
    """A directory that is not there yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = f"file://{directory}"

    def open(self, clock: Clock) -> Embedded:
        return open_directory(self.directory, clock, "disk")

    def damage(self, payload: bytes) -> str:
        for file in sorted((self.directory / PIPES).glob("*.pipe")):
            if payload in (content := file.read_bytes()):
                file.write_bytes(damaged(content, payload))
                return file.stem
        raise AssertionError(f"{payload!r} is in no pipe")


class KeyspacePlace(Place):
    """The keyspace of the run. session: with it, to clear it."""

    def __init__(self, url: str, session: Cql) -> None:
        self.url = url
        self._session = session
        self._time = ServersTime()
        self._clear()

    def open(self, clock: Clock) -> Embedded:
        # The session goes by the machine's clock, since its stamps are compared with the servers'.
        cql = Cql(self._session.contact, SystemClock(), keyspace=self._session.contact.keyspace)
        catalog = CassandraCatalog(cql, clock, time=self._time.of(clock))
        ids = Ids()
        locker = LeaseLocker(catalog, ids.client)
        ports = Ports(catalog, CassandraStore(cql, clock), locker, clock, ids, Life(), Sharing())
        return Embedded(ports, lambda _queue_id: PollingDoorbell(), cql.abandon)

    def damage(self, payload: bytes) -> str:
        cql = self._session
        for pipe_id, extent in sorted(cql.read("SELECT pipe_id, extent FROM extents")):
            of_extent = "extent = ? AND bucket = 0"
            for base_seq, part, frame in cql.read(
                f"SELECT base_seq, part, frame FROM frames WHERE {of_extent}", (extent,)
            ):
                if payload in frame:
                    cql.write(
                        f"UPDATE frames SET frame = ? WHERE {of_extent} AND base_seq = ?"
                        " AND part = ?",
                        (damaged(frame, payload), extent, base_seq, part),
                    )
                    return str(pipe_id)
        raise AssertionError(f"{payload!r} is in no pipe")

    def _clear(self) -> None:
        """Remove what another test would find. Cost: a read of each table side by side, and a
        write for each partition that was found."""
        cql = self._session
        tables = cql.cluster.metadata.keyspaces[cql.contact.keyspace].tables
        keys = {name: [c.name for c in tables[name].partition_key] for name in _NAMED}
        found = cql.read_many(
            [(f"SELECT DISTINCT {', '.join(key)} FROM {name}", ()) for name, key in keys.items()]
        )
        writes = []
        for (name, key), rows in zip(keys.items(), found, strict=True):
            named = " AND ".join(f"{column} = ?" for column in key)
            writes += [(f"DELETE FROM {name} WHERE {named}", row) for row in rows]
        cql.write_many(writes)
        if cql.read(f"SELECT step_ms FROM {_STAMPED}"):  # few tests write any
            cql.execute(f"TRUNCATE {_STAMPED}")


# --- which one --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def behaviour_keyspace(request: pytest.FixtureRequest) -> Iterator[tuple[str, Cql]]:
    """The keyspace of the run: its URL, and a session with it. DDL is slow."""
    url: str = request.config.getoption("--on")
    if url == CASSANDRA:
        cluster: CassandraCluster = request.getfixturevalue("cassandra1_for_the_session")
        url = cluster.url(KEYSPACE)
    clock = SystemClock()
    with closing(open_session(url, clock)) as session:
        schema.apply(session, clock, {session.contact.data_centre: 1})
        yield url, session


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the queues of this test live."""
    if request.config.getoption("--on") == EMBEDDED:
        return DirectoryPlace(tmp_path / "data")
    return KeyspacePlace(*request.getfixturevalue("behaviour_keyspace"))


@pytest.fixture
def directory(place: Place) -> Path:
    """The directory where the queues of this test live; not made yet."""
    if not isinstance(place, DirectoryPlace):
        pytest.fail("a test that asks for the directory is to be marked `embedded_only`")
    return place.directory
