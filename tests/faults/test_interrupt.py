"""Interrupts: Ctrl-C in the middle of a push or pop leaves pusher and popper in order."""

from __future__ import annotations

import gc
import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

import cassq
from cassq.errors import BackendError
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import Connect, drain, numbers, payloads, push

ROUNDS = 60

Alarm = Callable[[float], None]


class Interruption(BaseException):
    """What the signal raises."""


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    """Sets the alarm clock: so many seconds later `Interruption` comes out of a signal. It is set
    where that is expected, for on a busy machine it may ring at once."""

    def strike(_: int, frame: FrameType | None) -> None:
        # What is raised in a callback of the garbage collector is lost (Hypothesis registers one).
        callbacks = [getattr(callback, "__code__", None) for callback in gc.callbacks]
        if frame is not None and frame.f_code in callbacks:
            set_alarm(0.0001)
        else:
            raise Interruption

    def set_alarm(seconds: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, seconds)

    before = signal.signal(signal.SIGALRM, strike)
    yield set_alarm
    set_alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_push_leaves_the_pusher_to_the_other_threads(
    queue: cassq.Queue, alarm: Alarm
) -> None:
    pusher = queue.pusher()
    over = threading.Event()
    acked: set[str] = set()
    chance = random.Random(5)

    def work() -> None:
        while not over.is_set():
            try:
                acked.add(pusher.push(b"theirs"))
            except BackendError as exc:  # the one that wrote for us all was interrupted
                assert exc.outcome_unknown

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(ROUNDS):
        with pytest.raises(Interruption):
            alarm(chance.uniform(0.0005, 0.006))
            while True:
                acked.add(pusher.push(b"mine"))
    over.set()
    for thread in threads:
        joined("a pushing thread", thread)
    closing = threading.Thread(target=pusher.close, daemon=True)
    closing.start()
    joined("closing", closing)
    found = {message.id for message in drain(queue.popper())}
    assert found >= acked
    assert queue.audit().findings == []


def test_an_interrupted_pop_loses_nothing(client: cassq.Client, alarm: Alarm) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.5, max_deliveries=1000)
    push(queue, *numbers(2000))
    popper = queue.popper()
    chance = random.Random(6)
    done: set[bytes] = set()
    for _ in range(ROUNDS):
        with pytest.raises(Interruption):
            alarm(chance.uniform(0.0005, 0.004))
            while True:
                messages = popper.pop(10, wait=1)
                done |= set(payloads(messages))
                popper.commit(messages)
    popper.close()
    again = queue.popper()

    def all_done() -> bool:
        done.update(payloads(drain(again)))
        return queue.stats().groups["default"].committed == 2000

    eventually("the rest comes", all_done)
    assert done == set(numbers(2000))
    assert queue.audit().findings == []


def test_an_interrupted_wait_ends_at_once_and_can_be_repeated(
    queue: cassq.Queue, alarm: Alarm, connect: Connect
) -> None:
    popper = queue.popper()
    for _ in range(3):
        with pytest.raises(Interruption):
            alarm(0.02)
            popper.pop(1, wait=60)
    push(connect().queue("jobs"), b"x")
    assert payloads(popper.pop(1, wait=30)) == [b"x"]
