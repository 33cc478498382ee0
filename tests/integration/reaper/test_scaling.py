"""Scaling: the open pipes of a queue follow its load, up and down, and no popper is left idle."""

from __future__ import annotations

import threading

import pytest

import cassq
from cassq.model.rows import PipeState
from cassq.model.scaling import pusher_of
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, drain, numbers, payloads

POPPERS = 4
AHEAD_MAX = 1000


def open_pipes(client: cassq.Client, queue: cassq.Queue) -> int:
    pipes = client.ports.catalog.pipes.unsealed([queue.row.id])
    return sum(pipe.state is PipeState.OPEN for pipe in pipes)


class Crew:
    """Poppers of an exclusive group, each slow at its work, until told to stop.

    working: how many hold messages at this moment.
    """

    def __init__(self, queue: cassq.Queue) -> None:
        self.seen: list[bytes] = []
        self.working = 0
        self._ended = threading.Event()
        self._pause = threading.Event()
        self._mutex = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, args=(queue.popper("alone"),), daemon=True)
            for _ in range(POPPERS)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, popper: cassq.Popper) -> None:
        while not self._ended.is_set():
            messages = popper.pop(5, wait=0.05)
            if messages:
                with self._mutex:
                    self.working += 1
                self._pause.wait(0.02)
                with self._mutex:
                    self.working -= 1
                    self.seen += [message.payload for message in messages]
                popper.commit(messages)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Load:
    """Pushes at a steady pace until it is told to stop; never so far ahead of the crew that what
    is left then would take long."""

    def __init__(self, queue: cassq.Queue, crew: Crew) -> None:
        self._crew = crew
        self.pushed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._push, args=(queue.pusher(),), daemon=True)
        self._thread.start()

    def _push(self, pusher: cassq.Pusher) -> None:
        while not self._ended.wait(0.012):
            if self.pushed < len(self._crew.seen) + AHEAD_MAX:
                pusher.push_many(numbers(10, first=self.pushed))
                self.pushed += 10

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


@pytest.mark.waits(reason="pipes follow a load over some seconds")
def test_pipes_follow_a_load_that_rises_and_falls(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", lease=0.5)
    queue.create_group("alone", exclusive=True)
    queue.delete_group("default")
    crew = Crew(queue)
    load = Load(queue, crew)
    eventually("the first pipe is open", lambda: open_pipes(client, queue) >= 1)
    eventually("there is a pipe for each", lambda: open_pipes(client, queue) == POPPERS)
    # More is pushed than one can do, so messages wait; and nobody is idle.
    eventually("all work at once", lambda: crew.working == POPPERS)
    assert queue.row.desired_pipes == POPPERS
    load.end()  # the pusher stays, and pushes nothing
    eventually("everything is done", lambda: len(crew.seen) >= load.pushed, seconds=120)
    eventually("fewer are desired", lambda: queue.row.desired_pipes == 1)
    eventually("one is left", lambda: open_pipes(client, queue) == 1)
    crew.end()
    assert sorted(crew.seen) == sorted(numbers(load.pushed))
    assert queue.audit().findings == []


def test_a_queue_has_its_least_number_of_open_pipes_while_it_is_pushed_to(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", min_open_pipes=3, lease=0.5)
    pusher = queue.pusher()

    def pushed_to_three() -> bool:
        pusher.push(b"x")
        return open_pipes(client, queue) == 3

    eventually("there are three", pushed_to_three)
    client.reap()  # seals one, too, whose lease ran out while the machine stood still
    eventually("there are still three", pushed_to_three)
    pusher.close()
    assert open_pipes(client, queue) == 0


def test_several_pushers_share_the_desired_pipes(client: cassq.Client, connect: Connect) -> None:
    queue = client.create_queue("jobs", min_open_pipes=4, lease=0.5)
    pushers = [connect().queue("jobs").pusher() for _ in range(2)]

    def shares() -> list[int]:
        for pusher in pushers:
            pusher.push(b"x")
        pipes = client.ports.catalog.pipes.unsealed([queue.row.id])
        owners = [pusher_of(pipe.owner) for pipe in pipes]
        return sorted(owners.count(owner) for owner in set(owners))

    # One that is alone at first may open all four, and give two up to the one that came later.
    eventually("each has two", lambda: shares() == [2, 2])


def test_a_pusher_seals_what_is_too_much_and_loses_nothing(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", min_open_pipes=4, lease=0.5)
    pusher = queue.pusher()
    pushed: list[bytes] = []

    def push() -> int:
        pushed.append(b"%d" % len(pushed))
        pusher.push(pushed[-1])
        return open_pipes(client, queue)

    eventually("there are four", lambda: push() == 4)
    queue.update(min_open_pipes=1)
    eventually("there is one", lambda: push() == 1)
    assert sorted(payloads(drain(queue.popper()))) == sorted(pushed)
    assert queue.audit().findings == []


def test_one_pusher_and_one_popper_keep_their_order(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", lease=0.5)
    pusher, popper = queue.pusher(), queue.popper()
    seen: list[bytes] = []
    for n in range(30):
        pusher.push_many(numbers(3000, first=3000 * n))
        client.reap()
        seen += payloads(drain(popper))
    assert seen == numbers(90_000)
    assert queue.row.desired_pipes == 1


@pytest.mark.waits(reason="poppers tell of themselves every few seconds")
@pytest.mark.parametrize("ending", ["closes", "is forgotten"])
def test_poppers_that_are_there_are_known(client: cassq.Client, ending: str) -> None:
    queue = client.create_queue("jobs")
    (group,) = client.ports.catalog.queues.groups(queue.row.id)
    popper = queue.popper()

    def waiting() -> list[bool]:
        return [member.waiting for member in client.ports.catalog.records.members(group.id, 0)]

    eventually("it is noted", lambda: waiting() == [True])
    with queue.pusher() as pusher:
        pusher.push(b"x")
    messages = popper.pop()
    eventually("it works", lambda: waiting() == [False])
    popper.commit(messages)
    eventually("it waits again", lambda: waiting() == [True])
    popper.close() if ending == "closes" else queue.delete_group("default")
    eventually("it is gone", lambda: waiting() == [])
