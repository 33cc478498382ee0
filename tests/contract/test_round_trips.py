"""How many round trips to Cassandra each step of a message takes: as many as the docs say."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.catalog.cassandra import CassandraCatalog
from cassq.clock import ManualClock
from cassq.doorbell import PollingDoorbell
from cassq.embedded import Embedded
from cassq.ids import Ids
from cassq.locks.lease import LeaseLocker
from cassq.ports import Life, Ports
from cassq.sharing import Sharing

pytest.importorskip("cassandra")

from cassq.cql import Row, Statement
from cassq.extents.cassandra import CassandraStore
from tests.contract.cassandra_place import BorrowedCql, CassandraPlace, Keyspace

TABLE = Path(__file__).parents[2] / "docs" / "round_trips.md"
# "| push one | 2 | 1 |", with what they are in brackets.
LINE = re.compile(r"\| (?P<what>[a-z][^|]*?) \| (?P<ap>\d+)[^|]* \| (?P<cp>\d+)[^|]* \|")
KINDS = ("ap", "cp")


class CountingCql(BorrowedCql):
    """waited: how often the thread that made it has waited for an answer, or for several at
    once."""

    def __init__(self, keyspace: Keyspace) -> None:
        super().__init__(keyspace)
        self._thread = threading.get_ident()
        self.waited = 0

    def _count(self) -> None:
        self.waited += threading.get_ident() == self._thread

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        found = list(statements)
        if found:
            self._count()
        return super().read_many(found, serial=serial)

    def write_many(self, statements: Iterable[Statement]) -> None:
        found = list(statements)
        if found:
            self._count()
        super().write_many(found)

    def apply(self, text: str, values: Sequence[Any] = ()) -> tuple[bool, Row]:
        self._count()
        return super().apply(text, values)

    def apply_batch(self, statements: Sequence[Statement]) -> bool:
        self._count()
        return super().apply_batch(statements)

    def result(self, future: Any, *, conditional: bool = False) -> list[Row]:
        self._count()
        return super().result(future, conditional=conditional)


@pytest.fixture
def counting(cassandra_place: CassandraPlace) -> CountingCql:
    return CountingCql(cassandra_place.keyspace)


@pytest.fixture
def client(cassandra_place: CassandraPlace, counting: CountingCql) -> Iterator[cassq.Client]:
    """A client whose clock stands still: what is done once a second is not done here."""
    clock, ids = ManualClock(), Ids()
    catalog = CassandraCatalog(counting, clock, time=cassandra_place.time.of(clock))
    store, locker = CassandraStore(counting, clock), LeaseLocker(catalog, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, Life(), Sharing())
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    with cassq.Client("cassandra://", embedded, clock) as made:
        yield made


def told() -> dict[tuple[str, str], int]:
    """(step, kind of queue) → how many round trips the docs say it takes."""
    text = TABLE.read_text(encoding="utf-8")
    return {
        (found["what"], kind): int(found[kind]) for found in LINE.finditer(text) for kind in KINDS
    }


@pytest.mark.parametrize("kind", KINDS)
def test_no_step_takes_more_round_trips_than_the_docs_say(
    client: cassq.Client, counting: CountingCql, kind: str
) -> None:
    most: dict[tuple[str, str], int] = {}

    def count(what: str, act: Callable[[], object]) -> Any:
        before = counting.waited
        done = act()
        most[what, kind] = max(most.get((what, kind), 0), counting.waited - before)
        return done

    queue = client.create_queue("jobs", consistency=kind)
    with queue.pusher() as pusher, queue.popper() as popper:
        for _ in range(2):  # both begin
            pusher.push(b"first")
            popper.commit(popper.pop(1))
        for _ in range(3):
            count("push one", lambda: pusher.push(b"a"))
            messages = count("pop one", lambda: popper.pop(1))
            assert len(messages) == 1
            count("commit", partial(popper.commit, messages))
            count("push many, one frame", lambda: pusher.push_many([b"a"] * 100))
            messages = count("pop many of a frame", lambda: popper.pop(100))
            assert len(messages) == 100
            popper.commit(messages)
            assert not count("pop of nothing", lambda: popper.pop(1))
    assert most == {key: trips for key, trips in told().items() if key[1] == kind}
