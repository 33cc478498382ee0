"""Sharing: many poppers of a group, in threads and processes, without overlap."""

from __future__ import annotations

import threading

import cassq
from tests.faults.actors import Act
from tests.integration.deadlines import eventually, in_threads
from tests.integration.stage import Connect, numbers, payloads, push


def test_poppers_in_threads_share_without_overlap(queue: cassq.Queue, connect: Connect) -> None:
    for n in range(4):
        push(queue, *numbers(1500, first=1500 * n))
    poppers = [connect().queue("jobs").popper() for _ in range(3)]
    poppers += [queue.popper() for _ in range(3)]
    found: list[bytes] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        while messages := poppers[number].pop(50):
            poppers[number].commit(messages)
            with lock:
                found.extend(payloads(messages))

    in_threads(len(poppers), work)
    assert len(found) == 6000
    assert set(found) == set(numbers(6000))
    assert sum(popper.lost for popper in poppers) == 0
    assert queue.audit().findings == []


def test_poppers_in_processes_share_without_overlap(queue: cassq.Queue, url: str, act: Act) -> None:
    actors = [act("pop_orderly", url, "default", 20) for _ in range(3)]
    for actor in actors:
        actor.expect("ready")
    for n in range(4):
        push(queue, *numbers(500, first=500 * n))
    eventually("all is committed", lambda: queue.stats().groups["default"].committed == 2000)
    found: list[bytes] = []
    for actor in actors:
        actor.say("enough")
        assert actor.join() == 0
        found += [payload for _, _, batch in actor.reports("got") for payload in batch]
    assert len(found) == 2000
    assert set(found) == set(numbers(2000))


def test_a_slow_popper_delays_no_other(queue: cassq.Queue) -> None:
    push(queue, *numbers(100))
    slow, quick = queue.popper(), queue.popper()
    held = slow.pop(10)
    rest: list[bytes] = []
    while messages := quick.pop(7):
        quick.commit(messages)
        rest += payloads(messages)
    assert rest == numbers(90, first=10)
    slow.commit(held)
    assert queue.stats().groups["default"].committed == 100


def test_pushing_and_popping_at_once_loses_and_doubles_nothing(queue: cassq.Queue) -> None:
    pushers = [queue.pusher() for _ in range(2)]
    poppers = [queue.popper() for _ in range(2)]
    found: list[bytes] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        if number < 2:
            for n in range(300):
                pushers[number].push(b"%d/%d" % (number, n))
            return
        popper = poppers[number - 2]
        while len(found) < 600:
            messages = popper.pop(10, wait=0.1)
            popper.commit(messages)
            with lock:
                found.extend(payloads(messages))

    in_threads(4, work)
    assert len(found) == len(set(found)) == 600
