"""Extents on three Cassandra nodes, of which one is killed or stopped while frames are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.cassandra.session import Cql
from cassq.errors import BackendError, PipeSealedError
from cassq.extents.cassandra import CassandraStore
from cassq.extents.cassandra.writer import Sizes
from cassq.extents.port import ExtentStore
from tests.contract.extents.test_extents import MUCH, START, expected, frame, said
from tests.contract.keyspaces import opened_keyspace
from tests.integration.deadlines import eventually
from tests.servers.kinds.cassandra import CassandraCluster
from tests.servers.parts.node import Node

PATIENCE = 120.0
pytestmark = pytest.mark.long(reason="three Cassandra nodes that are killed and stopped")
SMALL = Sizes(bucket_frames=10)


@pytest.fixture(scope="module")
def cql(cassandra3_for_the_session: CassandraCluster) -> Iterator[Cql]:
    yield from opened_keyspace(cassandra3_for_the_session, "faults")


class Pushing:
    """A thread that appends; after an error it goes on in another extent, as a pusher does."""

    def __init__(self, store: ExtentStore, *, strict: bool) -> None:
        self._store = store
        self._strict = strict
        self._ids = Ids()
        self._clock = SystemClock()
        self._enough = threading.Event()
        self.acknowledged: dict[str, int] = {}
        self.errors: list[Exception] = []
        self.total = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._enough.is_set():
            try:
                self._fill_one()
            except (BackendError, PipeSealedError) as exc:
                self.errors.append(exc)

    def _fill_one(self) -> None:
        pipe_id = self._ids.new(self._clock.wall_ms())
        writer = self._store.create(pipe_id, "q", strict=self._strict)
        self.acknowledged[pipe_id] = 0
        try:
            while not self._enough.is_set():
                base = writer.end.seq
                frames = [frame(base + at, 1, pipe_id, 500) for at in range(3)]
                writer.append(frames, base + 3)
                self.acknowledged[pipe_id] = base + 3
                self.total += 3
        finally:
            writer.close()

    def goes_on(self) -> None:
        """It appends some more: a few, since a conditional write that a stopped node was to
        coordinate takes seconds, until the node is known to be down."""
        least = self.total + 30
        eventually("more is appended", lambda: self.total >= least, seconds=PATIENCE)

    def stop(self) -> None:
        self._enough.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def all_is_there(cql: Cql, pushing: Pushing) -> None:
    """Every extent ends at or past what was acknowledged of it, and holds all of it."""
    elsewhere = CassandraStore(cql, SystemClock())
    assert pushing.total > 0
    for pipe_id, acknowledged in pushing.acknowledged.items():
        end = elsewhere.seal(pipe_id)
        assert acknowledged <= end.seq <= acknowledged + 3
        assert elsewhere.seal(pipe_id) == end
        found = said(elsewhere.reader(pipe_id).read(START, end.seq, MUCH, MUCH))
        assert found == expected(0, end.seq, 500)
    elsewhere.drop(list(pushing.acknowledged))


def killed(node: Node, while_down: Callable[[], None]) -> None:
    node.kill()
    while_down()
    node.start()


def stopped(node: Node, while_down: Callable[[], None]) -> None:
    node.pause()
    while_down()
    node.resume()


@pytest.mark.parametrize("trouble", [killed, stopped])
@pytest.mark.parametrize("strict", [False, True], ids=["ap", "cp"])
def test_nothing_acknowledged_is_lost_with_one_node_of_three(
    cassandra3: CassandraCluster,
    cql: Cql,
    strict: bool,
    trouble: Callable[[Node, Callable[[], None]], None],
) -> None:
    pushing = Pushing(CassandraStore(cql, SystemClock(), SMALL), strict=strict)
    try:
        pushing.goes_on()
        trouble(cassandra3.node(2), pushing.goes_on)
        pushing.goes_on()
    finally:
        pushing.stop()
    all_is_there(cql, pushing)


@pytest.mark.parametrize("strict", [False, True], ids=["ap", "cp"])
def test_pipes_are_sealed_during_pushes_while_a_node_is_gone(
    cassandra3: CassandraCluster, cql: Cql, strict: bool
) -> None:
    elsewhere = CassandraStore(cql, SystemClock())
    pushing = Pushing(CassandraStore(cql, SystemClock(), SMALL), strict=strict)
    ends: dict[str, int] = {}
    try:
        pushing.goes_on()
        cassandra3.node(3).kill()
        for _ in range(10):
            count = len(pushing.acknowledged)
            pipe_id = list(pushing.acknowledged)[-1]
            eventually(
                "something is appended", lambda p=pipe_id: pushing.acknowledged[p], seconds=PATIENCE
            )
            ends[pipe_id] = elsewhere.seal(pipe_id).seq
            eventually(
                "it goes on in another",
                lambda n=count: len(pushing.acknowledged) > n,
                seconds=PATIENCE,
            )
    finally:
        pushing.stop()
    for pipe_id, end in ends.items():
        assert pushing.acknowledged[pipe_id] <= end
    all_is_there(cql, pushing)
