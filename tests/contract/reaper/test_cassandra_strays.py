"""Strays: extents in Cassandra whose pusher ended, or stood still, before their pipe had a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.errors import BackendTimeoutError
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.lifecycle.sealing import STRAY_MS
from cassq.locks.lease import LeaseLocker
from cassq.message.batches import Batch
from cassq.model.rows import QueueRow
from cassq.pipes import PipeWriter
from cassq.reaper.actions import DONE, FAILED, PLANNED, Scope
from cassq.reaper.sweep import LOOK_MS, Sweep

pytest.importorskip("cassandra")

from cassq.extents.cassandra import CassandraStore
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.extents.test_extents import frame
from tests.contract.rows import make_queue
from tests.contract.trouble import Killed, TroubledCql

Open = Callable[[], tuple[Ports, TroubledCql]]
STEPS_MAX = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_one(cassandra_place: CassandraPlace, clock: ManualClock) -> Iterator[Open]:
    """Ports as processes of their own have them."""
    with processes(cassandra_place, clock, TroubledCql) as connect:

        def ports() -> tuple[Ports, TroubledCql]:
            catalog, cql = connect()
            ids = Ids()
            locker = LeaseLocker(catalog, ids.client)
            store = CassandraStore(cql, clock)
            return Ports(catalog, store, locker, clock, ids, Lifecycle()), cql

        yield ports


def push(ports: Ports, queue: QueueRow) -> str:
    """Push a message by a new pusher; the pipe it went to."""
    appender = PipeWriter(ports, lambda: queue)
    (receipt,) = appender.append(Batch([b"x"], 0))
    appender.close()
    return receipt.pipe_id


def sweep(ports: Ports, *, dry_run: bool = False) -> list[tuple[str, str]]:
    """What a reaper that has just begun sweeps, and what became of that."""
    actions = Sweep(ports).run(Scope(ports), dry_run=dry_run)
    return [(action.subject, action.outcome) for action in actions]


def extents(ports: Ports) -> set[str]:
    return {info.pipe_id for info in ports.store.extents()}


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_client_that_dies_while_it_creates_a_pipe_leaves_nothing_permanently(
    open_one: Open, clock: ManualClock, consistency: str
) -> None:
    ports, _ = open_one()
    queue = make_queue(ports.catalog, consistency=consistency)
    strays = 0
    for step in range(STEPS_MAX):
        theirs, cql = open_one()
        cql.rounds.clear()
        cql.kill_at = step
        killed = False
        try:
            push(theirs, queue)
        except Killed:
            killed = True
        rows = ports.catalog.pipes.ids()
        left = extents(ports) - rows
        strays += len(left)
        clock.advance(LOOK_MS / 1000 + 1)
        assert sweep(ports) == [], "it may be about to have a row"
        clock.advance(STRAY_MS / 1000)
        assert sweep(ports, dry_run=True) == [(pipe_id, PLANNED) for pipe_id in left]
        assert sweep(ports) == [(pipe_id, DONE) for pipe_id in left]
        assert extents(ports) == rows, "those with a row stay"
        if consistency == "cp":
            for pipe_id in rows:
                ports.catalog.pipes.record_end(pipe_id, ports.store.seal(pipe_id))
        if not killed:
            assert strays > 0
            return
    raise AssertionError("a push does not end")


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_pusher_paused_while_a_pipe_begins_pushes_to_another(
    open_one: Open, clock: ManualClock, consistency: str
) -> None:
    ports, cql = open_one()
    other, _ = open_one()
    queue = make_queue(other.catalog, consistency=consistency)
    swept: list[tuple[str, str]] = []

    def stand_still() -> None:
        if not swept and extents(other) - other.catalog.pipes.ids():
            clock.advance(STRAY_MS / 1000)
            swept.extend(sweep(other))

    cql.before_round = stand_still
    if consistency == "cp":
        with pytest.raises(BackendTimeoutError, match="no turn"):
            push(ports, queue)
    pipe_id = push(ports, queue)
    ((stray, outcome),) = swept
    assert outcome == DONE
    assert stray != pipe_id
    assert other.store.seal(pipe_id).seq == 1
    row = other.catalog.pipes.by_id(stray)
    assert row is not None
    assert row.end is not None, "nobody waits for more in it"
    assert row.end.seq == 0


def test_strays_are_looked_for_now_and_then_by_all_reapers_together(
    open_one: Open, clock: ManualClock
) -> None:
    ports, _ = open_one()
    other, _ = open_one()
    mine, theirs = Sweep(ports), Sweep(other)
    assert mine.run(Scope(ports), dry_run=False) == []
    stray = Ids().new(ports.catalog.now_ms() - STRAY_MS)
    ports.store.create(stray, "q")
    for each in (theirs, mine, theirs):
        assert each.run(Scope(ports), dry_run=False) == [], "somebody looked a moment ago"
    clock.advance(LOOK_MS / 1000 + 1)
    (action,) = theirs.run(Scope(other), dry_run=False)
    assert (action.subject, action.outcome) == (stray, DONE)
    assert mine.run(Scope(ports), dry_run=False) == []


def test_what_has_messages_and_what_is_of_another_data_centre_is_left_alone(
    open_one: Open, clock: ManualClock
) -> None:
    ports, cql = open_one()
    full, elsewhere = (Ids().new(ports.catalog.now_ms() - STRAY_MS) for _ in range(2))
    ports.store.create(full, "q").append([frame(0, 1, full, 10)], 1)
    ports.store.create(elsewhere, "q")
    cql.apply("UPDATE extents SET home = 'mars' WHERE pipe_id = ? IF EXISTS", (elsewhere,))
    for _ in range(2):
        assert sweep(ports) == [(full, FAILED)]
        clock.advance(LOOK_MS / 1000 + 1)
    assert ports.store.seal(full).seq == 1
    assert sorted(cql.read("SELECT pipe_id FROM extents")) == sorted([(full,), (elsewhere,)])
