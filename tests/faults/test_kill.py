"""Kills: pushers, poppers and reapers die by SIGKILL anywhere, over and over; nothing is lost."""

from __future__ import annotations

import random

import pytest

import cassq
from tests.faults.actors import Act
from tests.faults.crashes import Cast, Oracle, settle
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, drain, payloads, pipe_files, reap

KILLS = 60


def crash_loop(
    client: cassq.Client, act: Act, url: str, seed: int, *, stops: bool, **policy: object
) -> None:
    chance, oracle = random.Random(seed), Oracle()
    settings = {
        "claim_timeout": 0.5, "lease": 0.5, "max_deliveries": 10_000, "max_pushes_per_pipe": 300,
    } | policy  # fmt: skip
    queue = client.create_queue("jobs", **settings)
    queue.create_group("second")
    cast = Cast(act, oracle, chance)
    for _ in range(2):
        cast.add(lambda n: ("push_wildly", url, f"p{n}", seed * 1000 + n))
        for group in ("default", "second"):
            cast.add(lambda n, g=group: ("pop_wildly", url, g, seed * 1000 + n))
    cast.add(lambda n: ("reap_always", url))
    for _ in range(KILLS // 3 if stops else KILLS):
        cast.listen(chance.randint(0, 40))
        if stops and chance.random() < 0.4:
            cast.stop_one()
        else:
            cast.kill_one()
    cast.listen(50)
    cast.end()
    settle(client, queue, oracle, ["default", "second"])
    # What a pusher that was stopped has pushed may be pushed again, once its pipe is gone.
    oracle.judge(["default", "second"], once=not stops)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_processes_are_killed(
    client: cassq.Client, act: Act, url: str, seed: int
) -> None:
    crash_loop(client, act, url, seed, stops=False)


@pytest.mark.long(reason="processes killed again and again")
@pytest.mark.parametrize("seed", [3])
def test_nothing_acknowledged_is_lost_when_processes_are_killed_and_stopped(
    client: cassq.Client, act: Act, url: str, seed: int
) -> None:
    crash_loop(client, act, url, seed, stops=True)


def test_nothing_is_lost_when_a_strict_queues_processes_are_killed(
    client: cassq.Client, act: Act, url: str
) -> None:
    crash_loop(client, act, url, 4, stops=False, consistency="cp")


def test_nothing_acknowledged_is_lost_by_kills_without_syncs(
    connect: Connect, act: Act, url: str
) -> None:
    """Durability "os": the operating system outlives its processes."""
    crash_loop(connect(durability="os"), act, f"{url}?durability=os", 5, stops=False)


def test_a_killed_pushers_pipe_is_sealed_at_once_and_read_to_its_end(
    client: cassq.Client, act: Act, url: str
) -> None:
    queue = client.create_queue("jobs", lease=3600)  # nobody waits for that
    pusher = act("push_on_word", url)
    pusher.expect("ready")
    for n in range(5):
        pusher.say(b"%d" % n)
    eventually("five are acknowledged", lambda: len(pusher.reports("pushed")) == 5)
    pusher.kill()
    reap(client)
    assert queue.stats().pipes["open"] == 0
    assert payloads(drain(queue.popper())) == [b"%d" % n for n in range(5)]
    reap(client)
    assert pipe_files(client) == []


def test_what_a_killed_popper_held_is_delivered_again(
    client: cassq.Client, act: Act, url: str
) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.3)
    with queue.pusher() as pusher:
        pusher.push_many([b"a", b"b"])
    popper = act("pop_and_hold", url, "default", 2)
    popper.expect("got")
    popper.kill()
    mine = queue.popper()
    found = mine.pop(2, wait=30)
    assert [(m.payload, m.attempts) for m in found] == [(b"a", 2), (b"b", 2)]


def test_the_delivery_before_a_kill_was_counted(
    client: cassq.Client, act: Act, url: str, connect: Connect
) -> None:
    """First deliveries are counted before the hand-over, without a sync: the count survives."""
    client.create_queue("jobs", claim_timeout=0.1, max_deliveries=100)
    with connect().queue("jobs").pusher() as pusher:
        pusher.push(b"x")
    for attempt in range(1, 5):
        popper = act("pop_and_hold", url, "default", 1)
        assert popper.expect("got") == ("got", [(b"x", attempt)])
        popper.kill()


def test_a_child_of_threads_is_killed_in_the_middle_of_everything(
    client: cassq.Client, act: Act, url: str
) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.3, max_deliveries=10_000)
    for _ in range(4):
        busy = act("threads_inside", url)
        busy.expect("ready")
        before = queue.stats().pushed
        eventually("it pushes", lambda b=before: queue.stats().pushed > b + 100)
        busy.kill()
    oracle = Oracle()
    settle(client, queue, oracle, ["default"])
    assert queue.stats().groups["default"].committed == queue.stats().pushed
