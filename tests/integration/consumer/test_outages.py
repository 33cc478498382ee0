"""Poppers whose servers do not answer for a while, or slowly, go on nevertheless."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock, SystemClock
from cassq.consumer.keyed import take_over
from cassq.consumer.keyed.lane import HELD_FOR
from cassq.errors import BackendError
from cassq.lifecycle.ports import TimedLife
from cassq.locks.lease import LeaseLocker
from cassq.model.rows import Cursor
from tests.contract.keyspaces import opened_keyspace
from tests.integration.deadlines import eventually
from tests.integration.places import Place
from tests.integration.stage import numbers, payloads, push
from tests.integration.timed import clock, timed
from tests.servers.kinds.cassandra import CassandraCluster

__all__ = ["clock", "timed"]

PATIENCE = 60.0


@pytest.fixture
def life() -> TimedLife:
    return TimedLife(SystemClock())


@pytest.fixture
def popper(place: Place, life: TimedLife) -> Iterator[cassq.Popper]:
    """Of ten messages, in a client that counts its calls, as those of servers do."""
    clock = SystemClock()
    embedded = place.open(clock)
    counting = embedded._replace(ports=embedded.ports._replace(life=life))
    with cassq.Client(place.url, counting, clock) as client:
        queue = client.create_queue("jobs")
        push(queue, *numbers(10))
        yield queue.popper()


Act = Callable[[cassq.Popper], object]
CALLS: dict[str, Act] = {
    "pop": lambda popper: popper.pop(),
    "iterate": lambda popper: next(iter(popper)),
    "commit": lambda popper: popper.commit([]),
    "ack": lambda popper: next(iter(popper)).ack(),
    "nack": lambda popper: next(iter(popper)).nack(),
    "flush": lambda popper: popper.flush(),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_a_popper_has_its_own_patience(
    popper: cassq.Popper, life: TimedLife, name: str
) -> None:
    """It is told from the one before by its number; else a thread whose call used all of it up
    would get nothing ever after."""
    seen = []
    for _ in range(3):
        CALLS[name](popper)
        seen.append(life.mine.calls)
    assert seen[0] < seen[1] < seen[2]


@pytest.fixture
def keyspace(cassandra1: CassandraCluster) -> Iterator[str]:
    for cql in opened_keyspace(cassandra1, "outages"):
        yield cassandra1.url(cql.contact.keyspace)


@pytest.mark.servers
@pytest.mark.long(reason="the servers do not answer for longer than a call waits")
def test_a_popper_that_had_no_answer_goes_on_when_there_is_one(
    cassandra1: CassandraCluster, keyspace: str
) -> None:
    found: list[cassq.Message] = []
    with cassq.connect(f"{keyspace}?patience=1") as client:
        queue = client.create_queue("jobs")
        push(queue, *numbers(3))
        popper = queue.popper()

        def all_came() -> bool:
            try:
                found.extend(popper.pop(10))
            except BackendError:
                return False
            return len(found) == 3

        def all_are_done() -> bool:
            """On a busy machine the driver may take the node for down once more."""
            try:
                popper.commit(found)
            except BackendError:
                return False
            return True

        cassandra1.node(1).pause()
        for _ in range(2):
            with pytest.raises(BackendError):
                popper.pop()
        cassandra1.node(1).resume()
        eventually("all came", all_came, seconds=PATIENCE)
        eventually("all are done", all_are_done, seconds=PATIENCE)
    assert payloads(found) == numbers(3)


def test_a_lane_is_taken_over_however_long_that_takes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lock is renewed; else who is slower than that would begin again without end."""
    clock, pipes = ManualClock(), 12
    embedded = place.open(clock)
    catalog = embedded.ports.catalog
    locker = LeaseLocker(catalog, embedded.ports.ids.client)
    leased = embedded._replace(ports=embedded.ports._replace(locker=locker))
    with cassq.Client(place.url, leased, clock) as client:
        client.runtime.housekeeper.stop()
        queue = client.create_queue("jobs", claim_timeout=6)
        queue.create_group("keyed", order="key")
        for number in range(pipes):
            with queue.pusher() as pusher:
                pusher.push(b"%d" % number, key=b"key %d" % number)
        assert len(queue.popper("keyed").pop(pipes)) == pipes
        clock.advance(60)
        fence_all, slow = catalog.claims.fence_all, []

        def fence_slowly(cursors: Sequence[Cursor], owner: str) -> Any:
            clock.advance(3)
            slow.extend(cursors)
            return fence_all(cursors, owner)

        monkeypatch.setattr(catalog.claims, "fence_all", fence_slowly)
        monkeypatch.setattr(take_over, "PIPES_TOGETHER", 1)
        heir = queue.popper("keyed")
        found = [message.payload for _ in range(3) for message in heir.pop(pipes)]
        assert len(slow) == pipes, "it is taken over once"
    assert sorted(map(int, found)) == list(range(pipes))


def test_a_takeover_that_is_slow_to_free_the_last_claims_succeeds(
    timed: cassq.Client, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt finds that nothing is left to free; by then there is no time for more."""
    queue = timed.create_queue("jobs", claim_timeout=30)
    queue.create_group("keyed", order="key")
    push(queue, *numbers(3))
    first, second = queue.popper("keyed"), queue.popper("keyed")
    assert len(first.pop(2)) == 2
    clock.advance(HELD_FOR * 30 + 1)
    monkeypatch.setattr(take_over, "attempts", lambda clock: range(2))
    assert len(second.pop(10)) == 3
