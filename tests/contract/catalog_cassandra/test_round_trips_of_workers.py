"""How many round trips a worker waits for, in real time and with its client's housekeeping: no more
than the docs say, however long it works on a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.base.sharing import Background, Sharing
from cassq.catalog.cassandra import CassandraCatalog
from cassq.client.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.lifecycle.ports import Life, Ports
from cassq.locks.lease import LeaseLocker
from cassq.locks.turns import Turns

pytest.importorskip("cassandra")

from cassq.extents.cassandra import CassandraStore
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog_cassandra.counting import CountingCql
from tests.contract.catalog_cassandra.test_round_trips import KINDS, told

WARM = 5
# A step may meet a pass of its own client at work on the same pipe, and then tries again.
SPARED_SHARE = 0.15


@pytest.fixture
def counting(cassandra_place: CassandraPlace) -> CountingCql:
    return CountingCql(cassandra_place.keyspace)


@pytest.fixture
def client(counting: CountingCql) -> Iterator[cassq.Client]:
    """A client as `connect` makes them, with all its threads."""
    clock, ids = SystemClock(), Ids()
    catalog = CassandraCatalog(counting, clock)
    store, locker = CassandraStore(counting, clock), LeaseLocker(catalog, ids.client)
    sharing = Sharing[Any, Any, Any](Background())
    turns = Turns(catalog.leases, locker, clock, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, Life(), sharing, turns=turns)
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    with cassq.Client("cassandra://", embedded, clock) as made:
        yield made


@pytest.mark.waits(reason="the worker works, for seconds")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("work", "rounds"), [(0.005, 150), (0.05, 40), (1.1, 8)])
def test_a_worker_waits_for_no_more_round_trips_than_the_docs_say(
    client: cassq.Client, counting: CountingCql, work: float, rounds: int, kind: str
) -> None:
    clock, counts = SystemClock(), dict[str, list[int]]()

    def count(what: str, act: Callable[[], object]) -> Any:
        before = counting.waited
        done = act()
        counts.setdefault(what, []).append(counting.waited - before)
        return done

    queue = client.create_queue("jobs", consistency=kind)
    with queue.pusher() as pusher, queue.popper() as popper:
        for number in range(WARM + rounds):
            if number == WARM:
                counts.clear()
            count("push one", lambda: pusher.push(b"a"))
            messages = count("pop one", partial(popper.pop, 1))
            assert len(messages) == 1
            clock.sleep(work)
            count("commit", partial(popper.commit, messages))
    for what, found in counts.items():
        more = [each for each in found if each > told()[what, kind]]
        assert len(more) <= SPARED_SHARE * rounds, f"{what}: {found}"


BACKLOG = 1000


def _until(popper: cassq.Popper, payload: bytes) -> int:
    """Pop and commit one message after another; how many came before that one."""
    for before in range(BACKLOG + 2):
        messages = popper.pop(1)
        assert len(messages) == 1
        popper.commit(messages)
        if messages[0].payload == payload:
            return before
    raise AssertionError(f"{payload!r} did not come")


def test_a_message_that_another_popper_releases_does_not_wait_for_new_ones(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher, queue.popper() as popper, queue.popper() as another:
        pusher.push(b"released")
        pusher.push_many([b"a"] * BACKLOG)
        released = another.pop(1)
        popper.commit(popper.pop(1))
        another.release(released)
        assert _until(popper, b"released") < BACKLOG - 1


def test_a_pipe_that_is_new_gets_its_turn_while_another_has_a_backlog(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher, queue.popper() as popper:
        pusher.push_many([b"a"] * BACKLOG)
        popper.commit(popper.pop(1))
        with queue.pusher() as another:
            another.push(b"of a new pipe")
            assert _until(popper, b"of a new pipe") < BACKLOG - 1
