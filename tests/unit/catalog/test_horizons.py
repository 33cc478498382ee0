"""Listings to which one client adds while another hides what went: in every order of their steps.

The tables are in memory. `contract/catalog_cassandra/test_horizons.py` does some of it on a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("cassandra")

from cassq.base.clock import ManualClock
from cassq.base.ids import Ids
from cassq.catalog.cassandra.claims.cursor_tables import (
    COVER_PIPES,
    LIST_PIPES,
    NOTE_PIPE,
    UNNOTE_PIPE,
    Cursors,
)
from cassq.catalog.cassandra.partition import tombstones
from cassq.catalog.cassandra.partition.catalog_rows import CatalogRows
from cassq.catalog.cassandra.partition.consumed import (
    COVER_CONSUMED,
    DROP_CONSUMED,
    LIST_CONSUMED,
    NOTE_CONSUMED,
    consumed_key,
)
from cassq.catalog.cassandra.partition.horizons import HORIZON, RAISE_HORIZON
from cassq.catalog.cassandra.partition.keyspace import Keyspace
from cassq.catalog.cassandra.partition.partition_cache import PartitionCaches
from cassq.catalog.cassandra.partition.tombstones import TombstoneCompactor
from cassq.catalog.cassandra.pipes.listing import (
    COVER_ENTRIES,
    DAY_US,
    DROP_ENTRY,
    ENTRIES,
    FLOOR,
    NOTE_ENTRY,
    NOTE_SLICE,
    RAISE_FLOOR,
    Listing,
    PipeEntry,
)
from tests.unit.catalog.stepped import Actor, orders, play

START_US = 100 * DAY_US + DAY_US // 2
ATTEMPTS = 20
LONG_US = 3_000_000


class Rows:
    """The rows of a listing, as a server keeps them: the latest time stands."""

    def __init__(self) -> None:
        self._put: dict[Any, int] = {}
        self._gone: list[tuple[int, Callable[[Any], bool]]] = []

    def put(self, key: Any, at_us: int) -> None:
        self._put[key] = max(at_us, self._put.get(key, 0))

    def remove(self, which: Callable[[Any], bool], at_us: int) -> None:
        self._gone.append((at_us, which))

    def there(self) -> list[Any]:
        return sorted(
            key
            for key, put_us in self._put.items()
            if not any(at_us >= put_us and which(key) for at_us, which in self._gone)
        )


class Server:
    """The listings of one queue, one group and one slice of consumed pipes, their horizons, and a
    floor."""

    def __init__(self) -> None:
        self.now_us = START_US
        self.queue, self.group, self.consumed = Rows(), Rows(), Rows()
        self.horizons: dict[str, int] = {}
        self.floor = (0, 0)  # and when it was written
        self.has_slice = False

    def write(self, text: str, values: Sequence[Any], at_us: int) -> None:
        match text, tuple(values):
            case str(text), (owner, horizon_us, _) if text == RAISE_HORIZON:
                self.horizons[owner] = max(horizon_us, self.horizons.get(owner, 0))
            case str(text), _ if text == NOTE_SLICE:
                self.has_slice = True
            case str(text), (_, _, floor) if text == RAISE_FLOOR:
                self.floor = max(self.floor, (floor, at_us), key=lambda each: each[1])
            case str(text), (_, pipe_id) if text == NOTE_PIPE:
                self.group.put(pipe_id, at_us)
            case str(text), (_, pipe_id) if text == UNNOTE_PIPE:
                self.group.remove(lambda key: key == pipe_id, at_us)
            case str(text), (before_us, _, low, high) if text == COVER_PIPES:
                self.group.remove(lambda key: low < key < high, before_us)
            case str(text), (_, pipe_id) if text == NOTE_CONSUMED:
                self.consumed.put(pipe_id, at_us)
            case str(text), (_, pipe_id) if text == DROP_CONSUMED:
                self.consumed.remove(lambda key: key == pipe_id, at_us)
            case str(text), (before_us, _, low, high) if text == COVER_CONSUMED:
                self.consumed.remove(lambda key: low < key < high, before_us)
            case str(text), (_, _, *entry) if text == NOTE_ENTRY:
                self.queue.put(tuple(entry), at_us)
            case str(text), (_, _, *entry) if text == DROP_ENTRY:
                self.queue.remove(lambda key: key == tuple(entry), at_us)
            case str(text), (before_us, _, _, low, high) if text == COVER_ENTRIES:
                self.queue.remove(lambda key: low < key[0] < high, before_us)
            case _:
                raise AssertionError(text)

    def read(self, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        if text == HORIZON:
            horizon_us = self.horizons.get(values[0])
            return [(horizon_us,)] if horizon_us is not None else []
        if text == LIST_CONSUMED:
            return [(pipe_id,) for pipe_id in self.consumed.there()]
        if text == LIST_PIPES:
            return [(pipe_id,) for pipe_id in self.group.there()]
        if text == FLOOR:
            return [(self.floor[0] or None,)] if self.has_slice else []
        assert text == ENTRIES
        return [key for key in self.queue.there() if key[0] >= values[2]]


class Session:
    """A client's session. ahead_us: by how much its clock is ahead of others'."""

    def __init__(self, server: Server, ahead_us: int = 0) -> None:
        self.pause: Callable[[], None] = lambda: None
        self._server = server
        self._ahead_us = ahead_us
        self._stamp_us = 0

    def stamp(self, after: int = 0) -> int:
        self._server.now_us += 1
        now_us = self._server.now_us + self._ahead_us
        self._stamp_us = max(now_us, self._stamp_us + 1, after + 1)
        return self._stamp_us

    def attempts(self) -> Iterator[None]:
        return iter([None] * ATTEMPTS)

    def read(self, text: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self.read_many([(text, values)])[0]

    def read_many(
        self, statements: Iterable[tuple[str, Sequence[Any]]]
    ) -> list[list[tuple[Any, ...]]]:
        self.pause()
        return [self._server.read(text, values) for text, values in statements]

    def write(self, text: str, values: Sequence[Any]) -> None:
        self.write_many([(text, values)])

    def write_many(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        found = list(statements)
        if found:
            self.pause()
        for text, values in found:
            self._server.write(text, values, self.stamp())


class Process:
    """A client, as far as it lists pipes and cursors."""

    def __init__(self, server: Server, ahead_us: int = 0) -> None:
        self.session = Session(server, ahead_us)
        cql: Any = self.session
        time: Any = None
        keyspace = Keyspace(cql, ManualClock(), time, Ids(), TombstoneCompactor(cql))
        self.listing = Listing(keyspace)
        rows = CatalogRows(keyspace)
        self.consumed = rows.consumed
        self.cursors = Cursors(rows, PartitionCaches())


@pytest.fixture(autouse=True)
def gaps_are_covered_after_each_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "REMOVED_MOST", 1)


def listed(server: Server) -> list[PipeEntry]:
    return [PipeEntry(*row) for row in server.read(ENTRIES, ("q", 0, server.floor[0]))]


# A stamp is taken, an entry written, a horizon read; an entry removed, a horizon raised, the floor
# and the entries read, the floor raised, a gap covered.
QUEUE_ORDERS = list(orders(3, 7))
GROUP_ORDERS = list(orders(3, 5))
AHEAD = [0, LONG_US, -LONG_US]


@pytest.mark.parametrize("stuck", [True, False])
@pytest.mark.parametrize("ahead_us", AHEAD)
def test_a_pipe_that_is_listed_while_others_go_stays(ahead_us: int, stuck: bool) -> None:
    for order in QUEUE_ORDERS:
        server = Server()
        one, two = Process(server, ahead_us), Process(server)
        kept = [(two.listing.announce("q", "kept"), "kept")] if stuck else []
        gone = PipeEntry(two.listing.announce("q", "gone"), "gone")
        adds = Actor(one.session, lambda of=one: of.listing.announce("q", "new"))  # type: ignore[misc]
        removes = Actor(two.session, lambda of=two, at=gone: of.listing.unlist("q", at))  # type: ignore[misc]
        play(order, adds, removes)
        assert listed(server) == sorted([*kept, (adds.result, "new")]), order


@pytest.mark.parametrize("ahead_us", AHEAD)
def test_a_cursor_that_is_noted_while_others_go_stays(ahead_us: int) -> None:
    """The ids of pipes are in no particular order: it may be before all others."""
    for order in GROUP_ORDERS:
        server = Server()
        one, two = Process(server, ahead_us), Process(server)
        two.cursors._note("g", ["5", "7"])
        adds = Actor(one.session, lambda of=one: of.cursors._note("g", ["1", "6"]))  # type: ignore[misc]
        removes = Actor(two.session, lambda of=two: of.cursors.unnote(("g", "5")))  # type: ignore[misc]
        play(order, adds, removes)
        assert server.group.there() == ["1", "6", "7"], order


@pytest.mark.parametrize("ahead_us", AHEAD)
def test_a_consumed_pipe_that_is_noted_while_others_go_stays(ahead_us: int) -> None:
    """Else its frames would be kept for ever, and its totals missing."""
    same = [name for name in map(str, range(200)) if consumed_key(name)[0] == consumed_key("0")[0]]
    new, kept, gone = same[:3]
    for order in GROUP_ORDERS:
        server = Server()
        one, two = Process(server, ahead_us), Process(server)
        two.consumed.note([kept, gone])
        adds = Actor(one.session, lambda of=one: of.consumed.note([new]))  # type: ignore[misc]
        removes = Actor(two.session, lambda of=two: of.consumed.drop(gone))  # type: ignore[misc]
        play(order, adds, removes)
        assert server.consumed.there() == sorted([new, kept]), order


def test_a_pipe_that_is_listed_while_another_client_goes_on_removing_is_listed_once() -> None:
    """The horizon is raised again between an attempt and its check, time after time."""
    server = Server()
    one, two = Process(server), Process(server)
    others = [PipeEntry(two.listing.announce("q", f"{n}"), f"{n}") for n in range(ATTEMPTS)]
    adds = Actor(one.session, lambda: one.listing.announce("q", "new"))
    while not adds.over:
        adds.step()
        if len(others) > ATTEMPTS // 2:
            two.listing.unlist("q", others.pop(0))
    assert listed(server) == [*others, (adds.result, "new")]


def test_what_went_is_not_read_again() -> None:
    server = Server()
    one = Process(server)
    entries = [PipeEntry(one.listing.announce("q", name), name) for name in "abc"]
    for entry in entries[:-1]:
        one.listing.unlist("q", entry)
    assert server.floor[0] == entries[-1].position
