"""Where the queues of the behavioural suite live: in a directory, with `--on sidecars` in one whose
messages are on sidecars, or with `--on cassandra` in a keyspace, of which there is one a run.

What a test leaves behind is found by a name (of a queue, a lease, a table of samples) or by an id
that is never given again. So only what is found by a name is removed before the next test.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cassq.base.clock import Clock, SystemClock
from cassq.base.ids import Ids
from cassq.base.sharing import Sharing
from cassq.cassandra.session import Cql
from cassq.catalog.cassandra import CassandraCatalog, schema
from cassq.catalog.sqlite import SqliteCatalog
from cassq.client.backends.cluster import open_session
from cassq.client.backends.embedded import CATALOG, PIPES, Embedded, open_directory
from cassq.doorbell import PollingDoorbell
from cassq.extents.cassandra import CassandraStore
from cassq.extents.sidecar.settings import Settings
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.locks.turns import Turns
from cassq.message.frames import frame_seqs
from cassq.model.sidecar_rows import SidecarRow
from tests import needs
from tests.contract.cassandra_place import ServersTime
from tests.contract.keyspaces import remove_all
from tests.integration.on import CASSANDRA, EMBEDDED, KEYSPACE, SIDECARS
from tests.integration.sidecars import CLUSTER, Running
from tests.servers.kinds.cassandra import CassandraCluster

if TYPE_CHECKING:
    from cassq.sidecar.engine.rocksdb.engine import RocksEngine

# The tables that are read without an id that is never given again.
_NAMED = (
    "queue_ids", "queue_names", "consumed_pipes", "leases", "samples", "sample_slices",
    "sample_steps", "incidents", "pipes", "extents",
)  # fmt: skip
# Its writes bear times of their own, below which a delete would hide what comes after.
_STAMPED = "sample_horizons"
_FOR_EVER = 1 << 40
_ALL = 1 << 30


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


def on_sidecars(directory: Path, identity: str, rows: Sequence[SidecarRow]) -> str:
    """The URL of a directory with nothing but a catalog, which knows sidecars. They take what
    clients of any directory send them whose identity is that of their own catalog."""
    directory.mkdir()
    with closing(SqliteCatalog(directory / CATALOG, SystemClock())) as catalog:
        assert catalog.records.note("identity", identity) == identity
        for row in rows:
            catalog.sidecars.beat(replace(row, lease_ms=_FOR_EVER))
    return f"file://{directory}?store=sidecar&replicas={len(rows)}"


class SidecarsPlace(Place):
    """A directory whose messages are on the sidecars of the run: all of them on each that
    answers in time."""

    def __init__(self, directory: Path, sidecars: Sequence[Running]) -> None:
        self.url = on_sidecars(directory, CLUSTER, [each.row() for each in sidecars])
        self._directory = directory
        self._sidecars = sidecars

    def open(self, clock: Clock) -> Embedded:
        settings = Settings(replicas=len(self._sidecars))
        return open_directory(self._directory, clock, "disk", sidecars=settings)

    def damage(self, payload: bytes) -> str:
        with closing(SqliteCatalog(self._directory / CATALOG, SystemClock())) as catalog:
            pipe_ids = sorted(found.pipe_id for found in catalog.sidecars.placements())
        for pipe_id in pipe_ids:
            hit = [
                each.run(partial(damage_replica, each, pipe_id, payload)) for each in self._sidecars
            ]
            if any(hit):
                # One that stood still for a while may have been passed over.
                assert hit.count(True) * 2 > len(hit), "most have not what one has"
                return pipe_id
        raise AssertionError(f"{payload!r} is in no pipe")


def damage_replica(sidecar: Running, pipe_id: str, payload: bytes) -> bool:
    """Flip a bit of a payload where a sidecar has it; whether it has."""
    engine: RocksEngine = sidecar.engine  # type: ignore[assignment]
    kept = engine._kept.get(pipe_id)
    if kept is None:
        return False
    for frame in engine.read(pipe_id, 0, kept.replica.end, _ALL, _ALL):
        if payload in frame:
            engine._db[kept.frame_key(frame_seqs(frame)[0])] = damaged(frame, payload)
            return True
    return False


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
        turns = Turns(catalog.leases, locker, clock, ids.client)
        store = CassandraStore(cql, clock)
        ports = Ports(catalog, store, locker, clock, ids, Lifecycle(), Sharing(), turns=turns)
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
        """Remove what another test would find."""
        cql = self._session
        remove_all(cql, _NAMED)
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


@pytest.fixture(scope="session")
def behaviour_sidecars(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """The sidecars of the run, in threads of this process, each on a RocksDB of its own."""
    needs.require("module:rocksdict")
    from cassq.sidecar.engine.rocksdb.engine import RocksEngine
    from cassq.sidecar.engine.rocksdb.options import Tuning

    tuning = Tuning(cache_bytes=8 << 20, memtable_bytes=8 << 20)
    with ExitStack() as stack:
        running = []
        for name in ("a", "b", "c"):
            data = tmp_path_factory.mktemp(f"sidecar-{name}")
            engine = RocksEngine(data, catalog=CLUSTER, name=name, tuning=tuning)
            stack.callback(engine.close)
            running.append(Running(name, engine))
            stack.callback(running[-1].stop)
        yield running


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the queues of this test live."""
    on = request.config.getoption("--on")
    if on == EMBEDDED:
        return DirectoryPlace(tmp_path / "data")
    if on == SIDECARS:
        return SidecarsPlace(tmp_path / "data", request.getfixturevalue("behaviour_sidecars"))
    return KeyspacePlace(*request.getfixturevalue("behaviour_keyspace"))


@pytest.fixture
def directory(place: Place) -> Path:
    """The directory where the queues of this test live; not made yet."""
    if not isinstance(place, DirectoryPlace):
        pytest.fail("a test that asks for the directory is to be marked `embedded_only`")
    return place.directory
