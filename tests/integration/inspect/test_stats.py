"""Statistics: how old the oldest message is, and what counts while a pipe is being retired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cassq
from cassq.base.clock import ManualClock
from cassq.extents.port import ExtentReader, ExtentStore
from cassq.inspect.stats import LOOKS_MAX, GroupStats, queue_stats
from tests.catalog_parts import WithRoles
from tests.integration.fronts import FrontStore, client_with
from tests.integration.places import Place
from tests.integration.stage import drain, numbers, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


class FleetingStore(FrontStore):
    """Whose pipes go when somebody has begun to look."""

    fleeting = False

    def __init__(self, store: ExtentStore) -> None:
        super().__init__(store, lambda append: append())

    def reader(self, pipe_id: str) -> ExtentReader:
        reader: ExtentReader = self._store.reader(pipe_id)
        if self.fleeting:
            self._store.drop([pipe_id])
        return reader


def group_of(queue: cassq.Queue) -> GroupStats:
    return queue.stats().groups["default"]


def test_the_oldest_age_is_that_of_what_was_pushed_first(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    assert group_of(queue).oldest_age is None
    push(queue, b"1")
    clock.advance(10)
    push(queue, b"2")
    clock.advance(5)
    assert group_of(queue).oldest_age == 15
    popper = queue.popper()
    popper.commit(popper.pop(1))
    assert group_of(queue).oldest_age == 5


def test_a_delayed_message_has_no_age_until_it_is_due(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Nobody has scheduled it, nobody pops it."""
    queue = timed.create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push(b"x", delay=100)
    clock.advance(99)
    assert group_of(queue).oldest_age is None
    clock.advance(8)
    assert group_of(queue).oldest_age == 7


def test_the_age_of_delayed_messages_is_that_of_the_one_due_first(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    with queue.pusher() as pusher:
        for delay in (30, 40, 10, 20):
            pusher.push(b"%d" % delay, delay=delay)
    popper = queue.popper()
    assert popper.pop() == []  # which schedules them
    clock.advance(25)
    assert group_of(queue).oldest_age == 15
    held = popper.pop()
    assert [message.payload for message in held] == [b"10"]
    popper.commit(held)
    assert group_of(queue).oldest_age == 5


def test_a_delayed_message_that_failed_is_as_old_as_it_was(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """In front of the line, held, and waiting for its next delivery."""
    queue = timed.create_queue("jobs", claim_timeout=600)
    with queue.pusher() as pusher:
        pusher.push(b"x", delay=10)
    clock.advance(12)
    popper = queue.popper()
    held = popper.pop()
    assert group_of(queue).oldest_age == 2
    popper.release(held)
    assert group_of(queue).oldest_age == 2
    popper.rollback(popper.pop(), delay=100)
    clock.advance(3)
    assert group_of(queue).oldest_age == 5
    clock.advance(100)
    popper.commit(popper.pop())
    assert group_of(queue).oldest_age is None


class Between:
    """A catalog's pipes: something happens right after the pipes were listed."""

    def __init__(self, pipes: Any, happens: Callable[[], None]) -> None:
        self._pipes = pipes
        self._happens = happens
        self.looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipes, name)

    def live(self, queue_id: str) -> Any:
        found = self._pipes.live(queue_id)
        self.looks += 1
        self._happens()
        return found


def test_a_pipe_retired_during_a_look_counts_once(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    push(queue, *numbers(10))
    drain(queue.popper())
    between = Between(client.ports.catalog.pipes, lambda: reap(client))
    catalog: Any = WithRoles(client.ports.catalog, pipes=between)
    stats = queue_stats(client.ports._replace(catalog=catalog), queue.row)
    assert stats.pipes["retired"] == 1
    group = stats.groups["default"]
    assert (stats.pushed, group.pushed, group.waiting, group.committed) == (10, 10, 0, 10)


def test_a_queue_that_changes_all_the_time_still_has_statistics(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    push(queue, *numbers(10))
    names = iter(numbers(100))
    between = Between(
        client.ports.catalog.pipes, lambda: queue.create_group(next(names).decode()) and None
    )
    catalog: Any = WithRoles(client.ports.catalog, pipes=between)
    stats = queue_stats(client.ports._replace(catalog=catalog), queue.row)
    assert stats.groups["default"].waiting == 10
    assert between.looks == LOOKS_MAX


def test_a_pipe_that_goes_while_it_is_looked_at_is_not_an_obstacle(place: Place) -> None:
    """Where nothing is held open it is missed at the read, not before."""
    with client_with(place, store=FleetingStore) as client:
        queue = client.create_queue("jobs")
        push(queue, *numbers(3))
        store: Any = client.ports.store
        store.fleeting = True
        assert group_of(queue).waiting == 3
        assert list(store.extents()) == []
