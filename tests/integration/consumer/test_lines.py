"""The line for a turn: clients that wait for a cp queue get their turns in the order in which they
came."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.catalog.port import line_name, pipe_lock
from cassq.locks.line import LENGTH_MAX, PATIENCE_MS, REQUEST_MS, WaitingLine, turn_lease
from cassq.locks.turns import LINE_SECONDS, LOOK_MS, OVERSTAY_MS, TURN_MS
from tests.integration.consumer.test_turns import jobs, keeping, one
from tests.integration.places import Place
from tests.integration.stage import numbers, push
from tests.integration.timed import clock

__all__ = ["clock"]

STEP_MS = 20


class Worker:
    """A client that pops and commits one message after another."""

    def __init__(self, client: cassq.Client) -> None:
        self.client = client
        queue, catalog = client.queue("jobs"), client.ports.catalog
        self.popper = queue.popper()
        (group,) = catalog.queues.groups(queue.id)
        (pipe,) = catalog.pipes.live(queue.id)
        self._lock = pipe_lock(group.id, pipe.id), group.id
        self._next_ms = 0

    def step(self, now_ms: int) -> bool:
        """Pop if it is time to try again; whether something came."""
        if now_ms < self._next_ms:
            return False
        found = one(self.popper) is not None
        turns = self.client.ports.turns
        assert turns is not None
        self._next_ms = now_ms
        if not found:
            self._next_ms += round(1000 * turns.line_seconds(*self._lock))
        self.popper.maintain()
        return found


@pytest.fixture
def opened(place: Place, clock: ManualClock) -> Iterator[Callable[[], Worker]]:
    """Workers on one queue with more than they take."""
    with ExitStack() as clients:

        def open_one() -> Worker:
            client = clients.enter_context(keeping(place, clock))
            client.runtime.housekeeper.stop()
            if not client.queues():
                jobs(client, 0)
            queue = client.queue("jobs")
            if not client.ports.catalog.pipes.live(queue.id):
                push(queue, *numbers(1500))
            return Worker(client)

        yield open_one


def turns_of(workers: list[Worker], clock: ManualClock, seconds: float) -> list[tuple[int, int]]:
    """Who had the turns while all wanted them for so long, and when each began. Chance decides who
    looks first."""
    turns: list[tuple[int, int]] = []
    by_chance = random.Random(7)
    for _ in range(round(seconds * 1000 / STEP_MS)):
        clock.advance(STEP_MS / 1000)
        now_ms = clock.boot_ms()
        for who, worker in by_chance.sample([*enumerate(workers)], len(workers)):
            if worker.step(now_ms) and [who] != [last for last, _ in turns[-1:]]:
                turns.append((who, now_ms))
    return turns


def line_of(worker: Worker) -> list[str]:
    """The clients in line."""
    leases = worker.client.ports.catalog.leases
    (group,) = worker.client.ports.catalog.queues.groups(worker.client.queue("jobs").id)
    return leases.shared(line_name(group.id)).split()[1:]


def test_no_waiting_client_is_passed_over(opened: Callable[[], Worker], clock: ManualClock) -> None:
    """Between two turns of one that always wants the next, each other has one."""
    workers = [opened() for _ in range(4)]
    turns = turns_of(workers, clock, 4)
    order = [who for who, _ in turns]
    for who in range(len(workers)):
        mine = [at for at, other in enumerate(order) if other == who]
        assert len(mine) >= 2
        for begin, end in pairwise(mine):
            between = order[begin + 1 : end]
            assert sorted(between) == sorted({*range(len(workers))} - {who})
    longest = max(after - before for (_, before), (_, after) in pairwise(turns))
    assert longest <= TURN_MS + LOOK_MS + OVERSTAY_MS


def test_a_client_that_stopped_waiting_is_passed_over(
    opened: Callable[[], Worker], clock: ManualClock
) -> None:
    workers = [opened() for _ in range(4)]
    while not (line := line_of(workers[0])):
        turns_of(workers, clock, 0.05)
    gone = next(each for each in workers if each.client.ports.ids.client == line[0])
    workers.remove(gone)  # nobody calls it from here on
    turns = turns_of(workers, clock, 3)
    assert {who for who, _ in turns} == {0, 1, 2}
    longest = max(after - before for (_, before), (_, after) in pairwise(turns))
    most = REQUEST_MS + PATIENCE_MS + 2 * 1000 * LINE_SECONDS
    assert longest <= TURN_MS + LOOK_MS + OVERSTAY_MS + most
    assert gone.client.ports.ids.client not in line_of(gone)
    workers.append(gone)
    assert {who for who, _ in turns_of(workers, clock, 3)} == {0, 1, 2, 3}, "it is there again"


def test_a_popper_that_is_closed_leaves_the_line(
    opened: Callable[[], Worker], clock: ManualClock
) -> None:
    workers = [opened() for _ in range(4)]
    while len(line_of(workers[0])) < 2:
        turns_of(workers, clock, 0.05)
    for worker in workers:
        worker.popper.close()
    assert line_of(workers[0]) == []


def test_a_client_for_which_the_line_is_too_long_may_be_next_too(
    place: Place, clock: ManualClock
) -> None:
    leases = place.open(clock).ports.catalog.leases
    names = " ".join(f"c{number}" for number in range(LENGTH_MAX))
    assert leases.swap(line_name("group"), "", f"mark {names}")
    assert WaitingLine(leases, clock, "outside").ask("group", "popper")
    assert leases.owner(turn_lease("group")) == "outside"


def test_of_two_that_get_in_line_at_once_both_are_in_it(place: Place, clock: ManualClock) -> None:
    leases = place.open(clock).ports.catalog.leases
    holder, second, third = (WaitingLine(leases, clock, name) for name in ("a", "b", "c"))
    assert holder.ask("group", "popper")
    read, swap = leases.shared, leases.swap

    def other_first(name: str, old: str, new: str) -> bool:
        leases.swap = swap  # type: ignore[method-assign]
        assert not third.ask("group", "popper")
        return swap(name, old, new)

    leases.swap = other_first  # type: ignore[method-assign]
    assert not second.ask("group", "popper")
    assert not second.ask("group", "popper")
    assert read(line_name("group")).split()[1:] == ["c", "b"]


def test_a_client_that_got_a_turn_before_it_was_next_leaves_the_line(
    place: Place, clock: ManualClock
) -> None:
    """As in an exclusive group, in which another pipe may be free."""
    leases = place.open(clock).ports.catalog.leases
    following, waiting = WaitingLine(leases, clock, "a"), WaitingLine(leases, clock, "b")
    assert following.ask("group", "popper")
    assert not waiting.ask("group", "popper")
    assert waiting.waits("group")
    waiting.granted("group")
    waiting.drop_granted()
    assert not waiting.waits("group")
    assert leases.shared(line_name("group")) == ""
    assert leases.owner(turn_lease("group")) == "a"


def test_a_popper_leaves_its_lines_while_another_thread_joins_one(
    place: Place, clock: ManualClock
) -> None:
    with keeping(place, clock) as client:
        line = WaitingLine(client.ports.catalog.leases, clock, "us")
        for number in range(3):  # somebody is in front of us
            client.ports.catalog.leases.swap(line_name(f"g{number}"), "", "0 other")

        class Joining(str):
            """A popper; while its lines are looked for, another one gets in line."""

            __hash__ = str.__hash__

            def __eq__(self, other: object) -> bool:
                if not line.waits("g2"):
                    line.ask("g2", "another")
                return str.__eq__(self, other)

        for number in range(2):
            line.ask(f"g{number}", "leaving")
        line.leave(Joining("leaving"))
        waits = [line.waits(f"g{number}") for number in range(3)]
    assert waits == [False, False, True]
