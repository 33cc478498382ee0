"""Workers that crash, are killed, or stopped at random moments: what their messages come to."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest

import cassq
from tests.faults.actors import Act, Actor
from tests.integration.deadlines import eventually
from tests.integration.stage import numbers, push
from tests.integration.worker.processes import Home, WorkerProcess, counts, home, is_running

__all__ = ["home"]

STOPS = 40


@pytest.fixture
def queue(home: Home) -> Iterator[cassq.Queue]:
    with cassq.connect(home.url) as client:
        # Nothing comes again because a claim has expired.
        yield client.create_queue("jobs", claim_timeout=3600, max_deliveries=3, sick_check=False)


def test_what_a_killed_process_had_comes_again_at_once_counted_as_lost(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"gate-1", b"gate-2")
    with WorkerProcess(home, "--queue", "jobs") as worker:
        (line, _) = home.until("begun", 2)
        os.kill(line.pid, signal.SIGKILL)
        again = home.until("begun", 4)[2:]
        assert {each.attempts for each in again} == {2}
        assert {each.pid for each in again}.isdisjoint({line.pid})
        home.open_gate(2)
        assert worker.terminate() == 0
    assert f"process {line.pid} was killed by SIGKILL" in worker.errors
    assert counts(queue) == (2, 0, 0, 0)
    assert queue.audit().balanced


@pytest.mark.parametrize("order", ["strict", "keys"])
def test_a_killed_process_holds_up_no_order(home: Home, order: str) -> None:
    with cassq.connect(home.url) as client:
        queue = client.create_queue(
            "ordered", claim_timeout=3600, consistency="cp" if order == "strict" else "ap"
        )
        if order == "keys":
            queue.create_group("keys", order="key")
        group = "keys" if order == "keys" else "default"
        with queue.pusher() as pusher:
            for payload in (b"gate-1", b"quick-2", b"quick-3"):
                pusher.push(payload, key=b"k")
        with WorkerProcess(home, "--queue", "ordered", "--group", group) as worker:
            (line,) = home.until("begun", 1)
            os.kill(line.pid, signal.SIGKILL)
            assert home.until("begun", 2)[1].attempts == 2
            home.open_gate(3)
            assert worker.terminate() == 0
        done = [line.payload for line in home.lines if line.kind == "done"]
        assert done == ["gate-1", "quick-2", "quick-3"]
        assert queue.stats().groups[group].committed == 3


@pytest.mark.long(reason="a process starts anew seven times, later each time")
@pytest.mark.parametrize("handler", ["tasks:handle", "tasks:handle_async"])
def test_what_is_in_hand_beside_a_message_that_kills_its_process_is_done_in_the_end(
    home: Home, queue: cassq.Queue, handler: str
) -> None:
    """Those that crash beside it twice are run one after another, and so without it."""
    push(queue, b"ruin", *[f"busy-{number}".encode() for number in range(3)])
    with WorkerProcess(home, "--queue", "jobs", handler=handler) as worker:
        eventually("one is dead, the others done", lambda: counts(queue) == (3, 0, 0, 1))
        assert worker.terminate() == 0
    (letter,) = queue.dead_letters().peek()
    assert letter.payload == b"ruin"
    assert all(home.noted("begun")[f"busy-{number}"] > 1 for number in range(3))


@pytest.mark.parametrize("way", ["crash", "exit"])
def test_a_message_that_kills_its_process_is_a_dead_letter_in_the_end_and_others_are_done(
    home: Home, queue: cassq.Queue, way: str
) -> None:
    push(queue, way.encode(), *[f"quick-{number}".encode() for number in range(6)])
    # What other threads of the process have in hand dies with it, and counts too.
    with WorkerProcess(home, "--queue", "jobs", "--processes", "2", "--threads", "1") as worker:
        eventually("one is dead, the others done", lambda: counts(queue) == (6, 0, 0, 1))
        assert worker.terminate() == 0
    (letter,) = queue.dead_letters().peek()
    assert letter.payload == way.encode()
    assert (letter.death["reason"], letter.death["failure"]) == ("delivery_limit", "expired")
    assert home.noted("begun")[way] == 3
    assert queue.audit().balanced


def test_the_processes_end_when_their_supervisor_is_killed_and_lose_nothing(
    home: Home, queue: cassq.Queue
) -> None:
    push(queue, b"gate-1", b"gate-2")
    with WorkerProcess(home, "--queue", "jobs", "--processes", "2", "--threads", "1") as worker:
        home.until("begun", 2)
        children = worker.children()
        assert len(children) == 2
        worker.signal(signal.SIGKILL)
        home.open_gate(2)
        eventually("they end", lambda: not any(map(is_running, children)))
    assert counts(queue) == (2, 0, 0, 0)


def test_killed_processes_lose_nothing_and_repeat_only_what_they_had(
    home: Home, queue: cassq.Queue
) -> None:
    chosen = random.Random(7)
    count = 400
    push(queue, *[f"quick-{number}".encode() for number in range(count)])
    with WorkerProcess(home, "--queue", "jobs", "--processes", "2", "--threads", "4") as worker:
        for share in range(1, 6):
            home.until("begun", share * count // 8)
            victim = chosen.choice(eventually("a process", worker.children))
            os.kill(victim, signal.SIGKILL)
            worker.until_gone(victim)  # what dies while it is being stopped counts as left behind
        eventually("all are done", lambda: sum(counts(queue)[1:3]) == 0)
        assert worker.terminate() == 0, worker.errors
    committed, _, _, dead = counts(queue)
    assert committed + dead == count
    assert len(home.noted("done")) + dead >= count
    for line in home.lines:
        assert line.attempts <= 3
    assert queue.audit().balanced


@pytest.mark.waits(reason="the supervisor gives a process five seconds to say something")
def test_a_task_that_lets_no_other_thread_run_is_killed_after_its_limit(
    home: Home, queue: cassq.Queue
) -> None:
    queue.update(max_deliveries=1)
    push(queue, b"hold", b"quick")
    options = ["--queue", "jobs", "--threads", "1", "--time-limit", "200ms"]
    with WorkerProcess(home, *options) as worker:
        eventually("it is dead", lambda: counts(queue) == (1, 0, 0, 1))
        assert worker.terminate() == 0
    assert "(time limit: its threads do not run)" in worker.errors


def until_ran(worker: Actor, count: int) -> None:
    eventually(f"it has run {count}", lambda: len(worker.reports("ran")) >= count)


def test_workers_stopped_at_random_moments_run_each_message_once(
    home: Home, queue: cassq.Queue, act: Act
) -> None:
    """A drain finishes what is in hand and gives the rest back, so nothing is delivered twice."""
    chosen = random.Random(11)
    ran: list[tuple[bytes, int]] = []
    for number in range(STOPS):
        push(queue, *numbers(10, number * 10))
        worker = act("tests.faults.worker.parts:work", home.url, chosen.randint(1, 8))
        worker.expect("ready")
        until_ran(worker, chosen.randint(0, 10))  # there are at least ten
        os.kill(worker.pid, signal.SIGTERM)
        assert worker.join() == 0
        assert worker.reports("ended")
        ran += [(payload, attempts) for _, payload, attempts in worker.reports("ran")]
    push(queue, b"last")
    left = counts(queue)[1]
    queue.run(lambda message: ran.append((message.payload, message.attempts)), max_tasks=left)
    ran.remove((b"last", 1))
    assert sorted(ran) == sorted((payload, 1) for payload in numbers(10 * STOPS))
    assert counts(queue) == (10 * STOPS + 1, 0, 0, 0)
    assert queue.audit().balanced
