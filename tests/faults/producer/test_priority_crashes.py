"""A pusher that dies anywhere in a push of several priorities: what was acknowledged is there, and
of the push that died the more urgent messages are there before the others."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import SystemClock
from tests.faults.parts import DeadlyDisk, Deaths
from tests.integration.stage import client_on, drain, reap

STEPS_MAX = 40
PRIORITIES = [0, 9, 4, 9, 0]

_context = multiprocessing.get_context("forkserver")


def batch(name: str) -> list[bytes]:
    return [b"%s %d %d" % (name.encode(), level, n) for n, level in enumerate(PRIORITIES)]


def push_and_die(directory: str, step: int, warm: bool, name: str) -> None:
    """Push a batch, which returns, and another one, in which it is killed right after the `step`th
    thing that was written. warm: the first opens the pipes of all priorities."""
    deaths = Deaths()
    with client_on(Path(directory), DeadlyDisk(deaths), committed=deaths.step) as client:
        pusher = client.queue("jobs").pusher()
        first = batch(f"{name} first")
        pusher.push_many(first, priority=PRIORITIES if warm else 0)
        deaths.await_step(step)
        pusher.push_many(batch(f"{name} second"), priority=PRIORITIES)
        deaths.await_step(0)


@pytest.mark.parametrize("warm", [True, False])
def test_nothing_acknowledged_is_lost_between_priorities(
    client: cassq.Client, directory: Path, warm: bool
) -> None:
    queue = client.create_queue("jobs", priority_share=0, lease=0.5)
    popper = queue.popper()
    seen: set[int] = set()
    for step in range(1, STEPS_MAX):
        name = f"step {step}"
        process = _context.Process(target=push_and_die, args=(str(directory), step, warm, name))
        process.start()
        process.join(30)
        assert process.exitcode in (0, -9)
        reap(client)
        found = [(m.payload, m.priority) for m in drain(popper, 1)]
        assert len(set(found)) == len(found), "nothing twice"
        payloads = [payload for payload, _ in found]
        assert {*batch(f"{name} first")} <= {*payloads}, "what was acknowledged is there"
        second = [(payload, level) for payload, level in found if b"second" in payload]
        assert all(int(payload.split()[3]) == level for payload, level in second)
        levels = {level for _, level in second}
        assert levels in (set(), {9}, {9, 4}, {9, 4, 0}), "the more urgent come first"
        for level in levels:
            assert len([1 for _, each in second if each == level]) == PRIORITIES.count(level)
        seen.add(len(levels))
        if process.exitcode == 0:
            break
    assert process.exitcode == 0, "the push has more steps than were tried"
    between = {1, 2, 3} if warm else {0, 1, 2, 3}
    assert seen == between, "it was killed before, between and after them"
    assert queue.audit().findings == []


def consume(directory: str, name: str, outbox: object) -> None:
    """Pop one message after another until none is there, in a process of its own."""
    with client_on(Path(directory), clock=SystemClock()) as client:
        popper = client.queue("jobs").popper()
        for message in drain(popper, 1):
            outbox.put((name, message.priority, message.payload))  # type: ignore[attr-defined]


def test_two_processes_share_all_priorities_and_each_goes_by_them(
    client: cassq.Client, directory: Path
) -> None:
    queue = client.create_queue("jobs", priority_share=0)
    with queue.pusher() as pusher:
        pusher.push_many([b"%d" % n for n in range(300)], priority=[n % 3 * 4 for n in range(300)])
    outbox = _context.Queue()
    workers = [
        _context.Process(target=consume, args=(str(directory), name, outbox)) for name in "ab"
    ]
    for worker in workers:
        worker.start()
    found = [outbox.get(timeout=60) for _ in range(300)]
    for worker in workers:
        worker.join(60)
    assert sorted(int(payload) for _, _, payload in found) == list(range(300))
    for name in "ab":
        levels = [level for who, level, _ in found if who == name]
        assert levels == sorted(levels, reverse=True), name
    assert {int(payload) % 3 * 4 == level for _, level, payload in found} == {True}
