"""Waiting: a popper that waits is woken by what it waits for, from near and far."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import cassq
from cassq import doorbell
from cassq import popper as popper_module
from cassq.base.clock import Stopwatch
from tests.faults.actors import Act
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, in_threads, joined
from tests.integration.stage import payloads, push

ROUNDS = 40


@pytest.fixture
def rings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A popper that waits looks again by itself after a while: not now, so that a pop whose ring is
    not heard finds nothing."""
    for module in (doorbell, popper_module):
        monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", DEADLINE_SECONDS)


@pytest.mark.usefixtures("rings_alone")
def test_a_push_of_another_thread_wakes_a_waiting_popper(queue: cassq.Queue) -> None:
    popper, pusher = queue.popper(), queue.pusher()
    found: list[bytes] = []
    arrived = threading.Semaphore(0)

    def consume() -> None:
        for _ in range(ROUNDS):
            messages = popper.pop(1, wait=DEADLINE_SECONDS / 2)
            found.extend(payloads(messages))
            popper.commit(messages)
            arrived.release()

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    for n in range(ROUNDS):
        pusher.push(b"%d" % n)
        assert arrived.acquire(timeout=DEADLINE_SECONDS)
    joined("the consumer", thread)
    assert found == [b"%d" % n for n in range(ROUNDS)]


@pytest.mark.embedded_only(reason="a push rings in other processes of one machine alone")
@pytest.mark.usefixtures("rings_alone")
def test_a_push_of_another_process_wakes_a_waiting_popper(
    queue: cassq.Queue, url: str, act: Act
) -> None:
    popper = queue.popper()
    pusher = act("push_on_word", url)
    pusher.expect("ready")
    for n in range(ROUNDS):
        pusher.say(b"%d" % n)
        messages = popper.pop(1, wait=DEADLINE_SECONDS / 2)
        assert payloads(messages) == [b"%d" % n]
        popper.commit(messages)
    pusher.say(None)
    pusher.expect("done")


@pytest.mark.embedded_only(reason="a push rings in other processes of one machine alone")
def test_a_popper_of_another_process_is_woken_by_our_push(
    queue: cassq.Queue, url: str, act: Act
) -> None:
    popper = act("wake_and_tell", url, DEADLINE_SECONDS)
    popper.expect("ready")
    pusher = queue.pusher()
    for n in range(ROUNDS):
        pusher.push(b"%d" % n)
        eventually(
            "the popper tells",
            lambda n=n: len(popper.reports("got")) == n + 1,
            seconds=DEADLINE_SECONDS / 2,
        )
    pusher.push(b"last")
    assert popper.join() == 0


def test_all_waiting_poppers_are_woken(queue: cassq.Queue) -> None:
    found: list[bytes] = []

    def consume() -> None:
        with queue.popper() as popper:
            messages = popper.pop(1, wait=30)
            found.extend(payloads(messages))
            popper.commit(messages)

    threads = [threading.Thread(target=consume, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    push(queue, *[b"%d" % n for n in range(8)])
    for thread in threads:
        joined("a waiting popper", thread)
    assert len(set(found)) == 8


def test_what_is_given_back_wakes_a_waiting_popper(queue: cassq.Queue) -> None:
    push(queue, b"x")
    holder, waiting = queue.popper(), queue.popper()
    (message,) = holder.pop()
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.extend(m.attempts for m in waiting.pop(1, wait=30)), daemon=True
    )
    thread.start()
    message.nack()
    joined("the waiting popper", thread)
    assert found == [2]


def test_more_poppers_than_bells_are_all_served(queue: cassq.Queue) -> None:
    from cassq.doorbell import SLOTS

    poppers = [queue.popper() for _ in range(SLOTS + 3)]
    push(queue, b"a", b"b")
    assert payloads(poppers[-1].pop(1, wait=30)) == [b"a"]
    assert payloads(poppers[0].pop(1, wait=30)) == [b"b"]


@pytest.mark.linux_only
def test_a_waiting_popper_hardly_uses_the_processor(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    poppers = [queue.popper() for _ in range(4)]
    queue.pusher().push(b"so that there is an open pipe to look at")
    poppers[0].commit(poppers[0].pop())
    used: list[float] = []

    def wait(number: int) -> None:
        before = processor_seconds(threading.current_thread())
        poppers[number].pop(1, wait=1.5)
        used.append(processor_seconds(threading.current_thread()) - before)

    housekeeper = client.runtime.housekeeper._thread
    assert housekeeper is not None
    before, watch = processor_seconds(housekeeper), Stopwatch()
    in_threads(4, wait)
    used.append(processor_seconds(housekeeper) - before)
    assert sum(used) < 0.15 * watch.seconds()


def processor_seconds(thread: threading.Thread) -> float:
    """What a thread has used of the processor: what other tests left running does not count."""
    found = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK")
