"""Groups that expire in Cassandra: whoever ends in the middle of removing one leaves the record of
it to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cassq.base.clock import ManualClock
from cassq.inspect.history import HOUR_MS
from cassq.model.rows import Sample

pytest.importorskip("cassandra")

from cassq.catalog.cassandra import CassandraCatalog
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.catalog.test_queues import make_expiring
from tests.contract.catalog_cassandra.test_pipes import killed_at
from tests.contract.rows import Consumer, make_group, make_queue, pipe_row
from tests.contract.trouble import TroubledCql

Open = Callable[[], tuple[CassandraCatalog, TroubledCql]]
STEPS_MAX = 60


@pytest.fixture
def open_one(cassandra_place: CassandraPlace) -> Iterator[Open]:
    """Catalogs as processes of their own have them."""
    with processes(cassandra_place, ManualClock(), TroubledCql) as connect:
        yield connect


@pytest.mark.long(reason="a client dies at each of many steps")
def test_a_client_that_dies_while_a_group_expires_loses_no_record_of_it(open_one: Open) -> None:
    catalog, own = open_one()
    queue = make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    told: list[str] = []
    for step in range(STEPS_MAX):
        row = make_expiring(catalog, f"a{step}")
        Consumer(catalog, row.id).claim(5)
        theirs, cql = open_one()
        data = f'"{row.name}"'
        expire = partial(theirs.queues.expire_group, row, Sample("gone", HOUR_MS, 5 + step, data))
        killed = killed_at(cql, step, expire)
        there = row in catalog.queues.groups(queue.id)
        if not there:
            told.append(data)
        # Whoever deletes the next group of the queue goes on.
        for other in (make_group(catalog, "other"), *([row] if there else [])):
            assert catalog.queues.delete_group(other.id)
        found = [sample.data for sample in catalog.records.samples("gone", HOUR_MS, 0)]
        assert sorted(found) == sorted(told)
        assert catalog.claims.cursors(row.id) == []
        assert catalog.claims.rows(row.id, "p") == []
        assert [group.name for group in catalog.queues.groups(queue.id)] == ["default"]
        assert len(own.read("SELECT group_name FROM queues")) == 1
        if not killed:
            break
    assert not killed
    assert 1 < len(told) <= step, "it died before the decision, and after it"
