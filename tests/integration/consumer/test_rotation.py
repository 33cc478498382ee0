"""Rotation and order: many pipes without starvation, and how far a newer message may overtake."""

from __future__ import annotations

import random

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, payloads, push


def test_fifty_pipes_are_all_served_each_in_its_order(queue: cassq.Queue) -> None:
    pushers = [queue.pusher() for _ in range(50)]
    for n in range(20):
        for number, pusher in enumerate(pushers):
            pusher.push(b"%d/%d" % (number, n))
    popper = queue.popper()
    seen: dict[bytes, list[int]] = {}
    for message in drain(popper, batch=3):
        pipe, _, n = message.payload.partition(b"/")
        seen.setdefault(pipe, []).append(int(n))
    assert len(seen) == 50
    assert all(found == list(range(20)) for found in seen.values())


def test_pipes_of_the_window_take_turns(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pop_width=50)
    pushers = [queue.pusher() for _ in range(50)]
    for number, pusher in enumerate(pushers):
        pusher.push_many([b"%d" % number] * 5)
    popper = queue.popper()
    turns = [int(popper.pop(1)[0].payload) for _ in range(250)]
    for first in range(0, 250, 50):
        assert sorted(turns[first : first + 50]) == list(range(50))


def test_no_pipe_starves_while_others_are_filled_again_and_again(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pop_width=50)
    pushers = [queue.pusher() for _ in range(50)]
    for number, pusher in enumerate(pushers):
        pusher.push(b"%d" % number)
    popper, waiting, pops = queue.popper(), set(range(50)), 0
    while waiting:
        (message,) = popper.pop()
        waiting.discard(int(message.payload))
        pushers[int(message.payload)].push(message.payload)  # it never runs dry
        pops += 1
        assert pops <= 100, f"starved: {waiting}"


@pytest.mark.parametrize("count", [80, 150])
def test_more_open_pipes_than_one_listing_are_all_found(queue: cassq.Queue, count: int) -> None:
    pushers = [queue.pusher() for _ in range(count)]
    for round_ in range(2):
        for number, pusher in enumerate(pushers):
            pusher.push(b"%d" % (1000 * round_ + number))
        found = payloads(drain(queue.popper()))
        assert sorted(found) == sorted(numbers(count, first=1000 * round_))
    pushers[-1].push(b"newest")  # all the others are open and empty
    assert payloads(drain(queue.popper())) == [b"newest"]


def test_a_waiting_popper_finds_a_push_in_any_of_many_open_pipes(queue: cassq.Queue) -> None:
    pushers = [queue.pusher() for _ in range(100)]
    for pusher in pushers:
        pusher.push(b"x")
    popper = queue.popper()
    drain(popper)
    for number in (99, 0, 70, 64, 63):
        pushers[number].push(b"%d" % number)
        (message,) = eventually("it is found", lambda: popper.pop(1, wait=1))
        assert message.payload == b"%d" % number
        popper.commit([message])


def newer_ones_before(order: list[int], message: int) -> int:
    """How many messages pushed after `message` were delivered before it."""
    return sum(other > message for other in order[: order.index(message)])


@pytest.mark.parametrize("seed", range(6))
def test_overtaking_stays_within_its_bound(client: cassq.Client, seed: int) -> None:
    """The bound of `cassq.consumer.claiming.candidates`: p pipes, known and not more than the
    width, claims of c; a message with d unclaimed ahead of it is passed by at most
    (p - 1) * c * (d // c + 2) newer."""
    chance = random.Random(seed)
    pipes, asked = chance.randint(2, 8), chance.choice([1, 2, 5, 16])
    queue = client.create_queue("jobs", max_pop_width=8, claim_timeout=3600)
    pushers = [queue.pusher() for _ in range(pipes)]
    for pusher in pushers:
        pusher.push(b"so that the popper knows its pipe")
    popper = queue.popper()
    assert len(drain(popper)) == pipes
    ahead = [0] * pipes  # unclaimed, by pipe
    bound: dict[int, int] = {}
    pipe_of: dict[int, int] = {}
    order: list[int] = []

    def pop() -> bool:
        messages = popper.pop(asked)
        for message in messages:
            order.append(int(message.payload))
            ahead[pipe_of[order[-1]]] -= 1
        return bool(messages)

    for number in range(1500):
        at = chance.choices(range(pipes), weights=range(1, pipes + 1))[0]
        pipe_of[number] = at
        bound[number] = (pipes - 1) * asked * (ahead[at] // asked + 2)
        ahead[at] += 1
        pushers[at].push(b"%d" % number)
        if chance.random() < 0.9 / asked:
            pop()
    while pop():
        pass
    assert sorted(order) == list(range(1500))
    passed = {number: newer_ones_before(order, number) for number in order}
    beyond = {n: (passed[n], bound[n]) for n in order if passed[n] > bound[n]}
    assert not beyond
    assert max(passed.values()) > 0  # it is a bound on something that happens


def test_an_old_pipe_gets_its_turn_while_newer_ones_keep_coming(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pop_width=8)
    old = queue.pusher()
    old.push_many([b"first", b"second"])
    for n in range(60):
        push(queue, b"newer %d" % n)  # a pipe of its own each
    popper = queue.popper()
    order = [popper.pop()[0].payload for _ in range(62)]
    assert order.index(b"second") <= 2 * 8


def test_width_one_with_one_pusher_and_popper_is_strict_fifo(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pop_width=1, max_pushes_per_pipe=13)
    pusher, popper = queue.pusher(), queue.popper()
    chance, found, sent = random.Random(7), [], 0
    while len(found) < 1000:
        if sent < 1000:
            count = min(chance.randint(1, 9), 1000 - sent)
            pusher.push_many(numbers(count, first=sent))
            sent += count
        messages = popper.pop(chance.randint(1, 12))
        popper.commit(messages)
        found += payloads(messages)
    assert found == numbers(1000)


def test_width_one_stays_fifo_when_messages_come_back(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_pop_width=1, max_pushes_per_pipe=7, max_deliveries=1000)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(100))
    popper, chance, done = queue.popper(), random.Random(3), []
    while len(done) < 100:
        (message,) = popper.pop()
        if chance.random() < 0.5:
            popper.release([message])
        else:
            popper.commit([message])
            done.append(message.payload)
    assert done == numbers(100)
