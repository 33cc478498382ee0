"""How many round trips a worker waits for, in real time and with its client's housekeeping: no more
than the docs say, however long it works on a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.base.ids import Ids
from cassq.base.sharing import Background, Sharing
from cassq.catalog.cassandra import CassandraCatalog
from cassq.client.backends.embedded import Embedded
from cassq.doorbell import PollingDoorbell
from cassq.lifecycle.ports import Lifecycle, Ports
from cassq.locks.lease import LeaseLocker
from cassq.locks.port import Lock, Locker
from cassq.locks.turns import Turns

pytest.importorskip("cassandra")

from cassq.extents.cassandra import CassandraStore
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog_cassandra.counting import CountingCql
from tests.contract.catalog_cassandra.test_round_trips import KINDS, documented
from tests.contract.lock_servers import LOCK_SERVERS, on_lock_servers, server_place

WARM, ACK_WARM = 5, 50
# A step may meet a pass of its own client at work on the same pipe, and then tries again.
SPARED_SHARE = 0.15
BACKLOG = 1000


@pytest.fixture
def counting(cassandra_place: CassandraPlace) -> CountingCql:
    return CountingCql(cassandra_place.keyspace)


class CountingLock(Lock):
    """A lock of a service, whose requests the counting session counts as well."""

    def __init__(self, lock: Lock, count: Callable[[], None]) -> None:
        self.name, self.token = lock.name, lock.token
        self._lock, self._count = lock, count

    def held(self) -> bool:
        return self._lock.held()

    def renew(self, ttl_ms: int) -> bool:
        self._count()
        return self._lock.renew(ttl_ms)

    def release(self) -> None:
        self._count()
        self._lock.release()


class CountingLocker(Locker):
    """Counts a request for each call; there may be more."""

    def __init__(self, locker: Locker, count: Callable[[], None]) -> None:
        self._locker, self._count = locker, count

    def acquire(
        self,
        name: str,
        ttl_ms: int,
        on_loss: Callable[[Lock], None] | None = None,
        *,
        wait_ms: int = 0,
    ) -> Lock | None:
        self._count()
        lock = self._locker.acquire(name, ttl_ms, on_loss, wait_ms=wait_ms)
        return None if lock is None else CountingLock(lock, self._count)

    def close(self) -> None:
        self._locker.close()


def connected(counting: CountingCql, locker: Locker | None = None) -> cassq.Client:
    """A client as `connect` makes them, with all its threads."""
    clock, ids = SystemClock(), Ids()
    catalog = CassandraCatalog(counting, clock)
    store, locker = CassandraStore(counting, clock), locker or LeaseLocker(catalog, ids.client)
    sharing = Sharing[Any, Any, Any](Background())
    turns = Turns(catalog.leases, locker, clock, ids.client)
    ports = Ports(catalog, store, locker, clock, ids, Lifecycle(), sharing, turns=turns)
    embedded = Embedded(ports, lambda _queue_id: PollingDoorbell(), lambda: None)
    return cassq.Client("cassandra://", embedded, clock)


@pytest.fixture
def client(counting: CountingCql) -> Iterator[cassq.Client]:
    with connected(counting) as made:
        yield made


class Worker:
    """Works on one message after another, and counts how often it waits for an answer.

    counts: of each step, one for each message.
    """

    def __init__(self, counting: CountingCql) -> None:
        self._counting = counting
        self.counts: dict[str, list[int]] = {}

    def work(self, queue: cassq.Queue, seconds: float, rounds: int) -> None:
        """Push, pop and commit, `rounds` times once it is warm."""
        clock = SystemClock()
        with queue.pusher() as pusher, queue.popper() as popper:
            for number in range(WARM + rounds):
                if number == WARM:
                    self.counts.clear()
                self._count("push one", lambda: pusher.push(b"a"))
                messages = self._count("pop one", partial(popper.pop, 1))
                assert len(messages) == 1
                clock.sleep(seconds)
                self._count("commit", partial(popper.commit, messages))

    def ack_one_after_another(self, queue: cassq.Queue, seconds: float, rounds: int) -> None:
        """Pop and ack what waits, `rounds` times once it is warm."""
        clock = SystemClock()
        with queue.popper() as popper:
            for number in range(ACK_WARM + rounds):
                if number == ACK_WARM:
                    self.counts.clear()
                messages = self._count("pop one", partial(popper.pop, 1))
                assert len(messages) == 1
                clock.sleep(seconds)
                self._count("ack", messages[0].ack)

    def _count(self, what: str, act: Callable[[], object]) -> Any:
        before = self._counting.waited
        done = act()
        self.counts.setdefault(what, []).append(self._counting.waited - before)
        return done

    def check(self, kind: str) -> None:
        """No step takes more than the docs say."""
        for what, found in self.counts.items():
            more = [each for each in found if each > documented()[what, kind]]
            assert len(more) <= SPARED_SHARE * len(found), f"{what}: {found}"


@pytest.mark.waits(reason="the worker works, for seconds")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("work", "rounds"),
    [
        (0.005, 50),
        (0.05, 30),
        pytest.param(1.1, 8, marks=pytest.mark.long(reason="eight tasks of more than a second")),
    ],
)
def test_a_worker_waits_for_at_most_the_round_trips_that_the_docs_say(
    client: cassq.Client, counting: CountingCql, work: float, rounds: int, kind: str
) -> None:
    worker = Worker(counting)
    worker.work(client.create_queue("jobs", consistency=kind), work, rounds)
    worker.check(kind)


# A popper claims ahead as many as it finishes in a tenth of a second at least, and writes acks half
# as often: with work of 5 ms, two round trips in some twenty messages. A pop waits for a claim, and
# for acks that are due, if it comes before the client's own thread.
ACKED, WAITS_A_MESSAGE = 100, {"ap": 0.25, "cp": 1.25}


@pytest.mark.waits(reason="the worker works, for seconds")
@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_acks_one_after_another_of_many_hardly_waits(
    client: cassq.Client, counting: CountingCql, kind: str
) -> None:
    queue = client.create_queue("jobs", consistency=kind)
    with queue.pusher() as pusher:
        pusher.push_many([b"a"] * BACKLOG)
    worker = Worker(counting)
    worker.ack_one_after_another(queue, 0.005, ACKED)
    pops, acks = worker.counts["pop one"], worker.counts["ack"]
    print(f"{sum(pops)} waits of {len(pops)} pops, {sum(acks)} of {len(acks)} acks")
    more = [each for each in acks if each > documented()["ack", kind]]
    assert len(more) <= 0.1 * ACKED, acks
    assert sum(pops) + sum(acks) <= WAITS_A_MESSAGE[kind] * ACKED, (pops, acks)


@pytest.mark.long(reason="workers on servers of locks, counted one after another")
@pytest.mark.waits(reason="the worker works, for seconds")
@pytest.mark.parametrize(
    "locks", on_lock_servers(name for name in LOCK_SERVERS if "three" not in name)
)
@pytest.mark.parametrize(("work", "rounds"), [(0.005, 100), (1.1, 5)])
def test_so_it_is_with_locks_on_servers(
    counting: CountingCql,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    locks: str,
    work: float,
    rounds: int,
) -> None:
    place = server_place(locks, request, tmp_path)
    worker = Worker(counting)
    with connected(counting, CountingLocker(place.open("worker"), counting.count)) as client:
        worker.work(client.create_queue("jobs", consistency="cp"), work, rounds)
    place.close()
    worker.check("cp")


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
