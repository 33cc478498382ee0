"""Listings whose entries come and go: a removal leaves hardly a tombstone, and hides nothing that
another client is just adding, whichever of their steps come first.

See `cassq.catalog.cassandra.partition.horizons`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count

import pytest

pytest.importorskip("cassandra")

from cassq.base.clock import SystemClock
from cassq.cassandra.cluster_time import KEPT
from cassq.cassandra.session import Cql, Row, Statement
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.claims.cursor_tables import LIST_PIPES, Cursors
from cassq.catalog.cassandra.partition import tombstones
from cassq.catalog.cassandra.partition.tombstones import REMOVED_MOST, SETTLED_US
from cassq.catalog.cassandra.pipes import listing
from cassq.catalog.cassandra.pipes.listing import (
    DROP_ENTRY,
    ENTRIES,
    FLOOR,
    Listing,
    PipeEntry,
)
from cassq.catalog.cassandra.pipes.pipe_lists import DROP_SLICES
from tests.contract.catalog_cassandra.traced import Read, Traced
from tests.contract.rows import make_queue, pipe_row
from tests.unit.catalog.stepped import Actor, orders, play

pytestmark = pytest.mark.usefixtures("midday")

names = map("{}".format, count(1))


class Stepped(Traced):
    """pause: called before each request. ahead_us: by how much its clock is ahead of others'."""

    pause: Callable[[], None] = staticmethod(lambda: None)
    ahead_us = 0

    def stamp(self, after: int = 0) -> int:
        return super().stamp(after - self.ahead_us) + self.ahead_us

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        self.pause()
        return super().read_many(statements, serial=serial)

    def write_many(self, statements: Iterable[Statement]) -> None:
        self.pause()
        super().write_many(statements)


class Process:
    """A client of its own, with its session."""

    def __init__(self, cql: Stepped) -> None:
        self.cql = cql
        self.catalog = CassandraCatalog(cql, SystemClock())
        self.listing = Listing(self.catalog._keyspace)

    @property
    def cursors(self) -> Cursors:
        return self.catalog.claims._cursors  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def sessions(keyspace: Cql) -> Iterator[list[Stepped]]:
    name = keyspace.contact.keyspace
    made = [Stepped(keyspace.contact, SystemClock(), keyspace=name) for _ in range(2)]
    yield made
    for cql in made:
        cql.close()


@pytest.fixture
def adder(cassandra_place: object, sessions: list[Stepped]) -> Process:
    sessions[0].ahead_us = 0
    return Process(sessions[0])


@pytest.fixture
def remover(sessions: list[Stepped], monkeypatch: pytest.MonkeyPatch) -> Process:
    """Covers the gaps after each removal."""
    monkeypatch.setattr(tombstones, "REMOVED_MOST", 1)
    return Process(sessions[1])


def listed(cql: Cql, queue_id: str, slice_: int) -> list[PipeEntry]:
    """As clients read a slice."""
    floor = cql.read(FLOOR, (queue_id, slice_))[0][0] or 0
    return [PipeEntry(*row) for row in cql.read(ENTRIES, (queue_id, slice_, floor))]


# A stamp is taken, an entry written, a horizon read; an entry removed, a horizon raised, the floor
# and the entries read, and the floor or a deletion written.
# All orders are played in `unit/catalog/test_horizons.py`.
QUEUE_ORDERS = list(orders(3, 7))[::5]
GROUP_ORDERS = list(orders(3, 5))[::2]


@pytest.mark.parametrize(
    ("ahead_us", "stuck"),
    [(0, True), (-3_000_000, False)],
    ids=["behind one that stays", "first, by a clock that is behind"],
)
def test_a_pipe_that_is_listed_while_others_go_stays(
    adder: Process, remover: Process, ahead_us: int, stuck: bool
) -> None:
    for order in QUEUE_ORDERS:
        queue_id = f"q{next(names)}"
        adder.cql.ahead_us = 0
        kept = [remover.listing.announce(queue_id, "kept")] if stuck else []
        gone = PipeEntry(remover.listing.announce(queue_id, "gone"), "gone")
        adder.cql.ahead_us = ahead_us
        adds = Actor(adder.cql, lambda of=queue_id: adder.listing.announce(of, "new"))  # type: ignore[misc]
        removes = Actor(
            remover.cql,
            lambda of=queue_id, entry=gone: remover.listing.unlist(of, entry),  # type: ignore[misc]
        )
        play(order, adds, removes)
        assert isinstance(adds.result, int), order
        expected = sorted([*((at, "kept") for at in kept), (adds.result, "new")])
        assert listed(adder.cql, queue_id, gone.position // listing.DAY_US) == expected, order


@pytest.mark.parametrize("ahead_us", [0, -3_000_000], ids=["same clock", "clock behind"])
def test_a_cursor_that_is_noted_while_others_go_stays(
    adder: Process, remover: Process, ahead_us: int
) -> None:
    """The ids of pipes are in no particular order: it may be before all others."""
    for order in GROUP_ORDERS:
        group_id = f"g{next(names)}"
        remover.cursors._note(group_id, ["5", "7"])
        adder.cql.ahead_us = ahead_us
        adds = Actor(adder.cql, lambda of=group_id: adder.cursors._note(of, ["1", "6"]))  # type: ignore[misc]
        removes = Actor(remover.cql, lambda of=group_id: remover.cursors.unnote((of, "5")))  # type: ignore[misc]
        play(order, adds, removes)
        there = [pipe_id for (pipe_id,) in adder.cql.read(LIST_PIPES, (group_id,))]
        assert there == ["1", "6", "7"], order


def test_a_pipe_that_is_listed_while_several_clients_cover_gaps_is_listed_once(
    adder: Process, remover: Process
) -> None:
    """The horizon is raised again between its second attempt and that one's check."""
    queue_id = f"q{next(names)}"
    others = [remover.listing.announce(queue_id, f"gone {number}") for number in range(3)]
    adds = Actor(adder.cql, lambda: adder.listing.announce(queue_id, "new"))
    left = [PipeEntry(at, f"gone {number}") for number, at in enumerate(others)]
    while not adds.over:
        adds.step()
        if left:
            remover.listing.unlist(queue_id, left.pop())
    found = listed(adder.cql, queue_id, others[0] // listing.DAY_US)
    assert found == [(adds.result, "new"), *sorted(left)]


# --- what is left to read -------------------------------------------------------------------------


def reads_of(cql: Traced, statement: str, values: Sequence[object]) -> list[Read]:
    """One, or more: a busy node's reads are sent again."""
    with cql.traced() as reads:
        cql.read(statement, values)
    assert reads
    return reads


def test_a_pipe_that_comes_and_goes_leaves_no_tombstone_to_be_read(adder: Process) -> None:
    queue_id, group_id = f"q{next(names)}", f"g{next(names)}"
    before = adder.listing.announce(queue_id, "stuck")
    adder.cursors._note(group_id, ["0"])
    most = {"queue_pipes": 0, "group_pipes": 0}
    for number in range(5 * REMOVED_MOST):
        at = adder.listing.announce(queue_id, "pipe")
        adder.cursors._note(group_id, [f"{number:04}"])
        adder.listing.unlist(queue_id, PipeEntry(at, "pipe"))
        adder.cursors.unnote((group_id, f"{number:04}"))
        reads = reads_of(adder.cql, LIST_PIPES, (group_id,))
        floor = adder.cql.read(FLOOR, (queue_id, at // listing.DAY_US))[0][0] or 0
        reads += reads_of(adder.cql, ENTRIES, (queue_id, at // listing.DAY_US, floor))
        for read in reads:
            if read.table not in most:
                continue  # the driver asks for what it connects to, meanwhile
            most[read.table] = max(most[read.table], read.tombstones)
    # One tombstone of a range has two ends.
    assert most["queue_pipes"] <= REMOVED_MOST + 2
    assert most["group_pipes"] <= REMOVED_MOST + 2
    assert listed(adder.cql, queue_id, before // listing.DAY_US) == [(before, "stuck")]


def test_pipes_are_forgotten_in_listed_order(
    adder: Process, remover: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those that are still listed keep the gaps between them apart."""
    queue, pipes = make_queue(remover.catalog, f"q{next(names)}"), remover.catalog.pipes
    pipe_ids = [f"{queue.id}.{number}" for number in range(9)]
    for pipe_id in pipe_ids:
        assert pipes.add(pipe_row(pipe_id, queue.name))
    assert pipes.consume_all(queue.id) == pipe_ids
    slice_ = pipes.consumed()[-1].ordinal // listing.DAY_US
    seen: list[list[str]] = []

    def look() -> None:
        seen.append([each.pipe_id for each in listed(adder.cql, queue.id, slice_)])

    monkeypatch.setattr(remover.cql, "pause", look)
    pipes.forget([*pipe_ids[1::2], *pipe_ids[::2]])
    assert len(seen) >= len(pipe_ids)
    assert all(left == pipe_ids[len(pipe_ids) - len(left) :] for left in seen)


def test_the_floor_of_a_queue_rises_with_its_oldest_pipe(adder: Process) -> None:
    """At once: what is below it costs no later read anything."""
    queue_id = f"q{next(names)}"
    entries = [
        PipeEntry(adder.listing.announce(queue_id, "pipe"), "pipe") for _ in range(REMOVED_MOST + 1)
    ]
    for entry in entries[:-1]:
        adder.listing.unlist(queue_id, entry)
    ((floor,),) = adder.cql.read(FLOOR, (queue_id, entries[-1].position // listing.DAY_US))
    assert floor == entries[-1].position


def test_the_horizon_of_a_deleted_queue_and_of_its_groups_is_forgotten(remover: Process) -> None:
    catalog = remover.catalog
    queue = make_queue(catalog)
    (group,) = catalog.queues.groups(queue.id)
    remover.listing.unlist(queue.id, PipeEntry(remover.listing.announce(queue.id, "pipe"), "pipe"))
    remover.cursors._note(group.id, ["pipe"])
    remover.cursors.unnote((group.id, "pipe"))
    owners = "SELECT owner_id FROM listing_horizons"
    mine = {queue.id, group.id}
    assert {owner for (owner,) in remover.cql.read(owners)} >= mine
    catalog.queues.delete(queue.id)
    catalog.queues.forget(queue.id)
    assert not {owner for (owner,) in remover.cql.read(owners)} & mine


AHEAD_MS = 7_200_000  # an entry without a row is old by then


@contextmanager
def servers_set_back(ahead: Process, other: Process, queue_id: str) -> Iterator[None]:
    """Within it, a client is ahead of another, and of the servers."""
    clock, time = ahead.cql._clock, ahead.cql.time
    before = time._slew
    for told_ms in (AHEAD_MS, 0):
        now_ms = other.cql.time.now_ms()
        for _ in range(KEPT):
            time.learn(clock.boot_ms(), now_ms + told_ms)
    assert time.now_ms() > other.cql.time.now_ms() + AHEAD_MS // 2
    try:
        yield
    finally:
        ahead.cql.write(DROP_SLICES, (queue_id,))  # what it wrote is of a later time
        time._slew, ahead.cql._stamp_us = before, 0


def test_after_the_servers_clocks_were_set_back_a_running_client_hides_nothing_of_new_ones(
    adder: Process, remover: Process
) -> None:
    """It is ahead of them for long, and what it lists is old by its own time."""
    queue = make_queue(remover.catalog, f"q{next(names)}")
    gone = PipeEntry(remover.listing.announce(queue.id, "gone"), "gone")
    with servers_set_back(remover, adder, queue.id):
        assert not remover.catalog.pipes.live(queue.id)  # there is no row
        remover.cql.write(DROP_ENTRY, (queue.id, gone.position // listing.DAY_US, *gone))
        for _ in range(2):
            assert not remover.catalog.pipes.live(queue.id)
            remover.cql._stamp_us += SETTLED_US
        at = adder.listing.announce(queue.id, "new")
        assert listed(adder.cql, queue.id, at // listing.DAY_US) == [(at, "new")]


def test_after_the_servers_clocks_were_set_back_a_running_client_waits_for_rows_of_new_ones(
    adder: Process, remover: Process
) -> None:
    queue = make_queue(remover.catalog, f"q{next(names)}")
    with servers_set_back(remover, adder, queue.id):
        at = adder.listing.announce(queue.id, "new")
        assert not remover.catalog.pipes.live(queue.id)  # there is no row yet
        assert listed(adder.cql, queue.id, at // listing.DAY_US) == [(at, "new")]
