"""Keep-alive: claims of messages being worked on are extended by themselves, up to a cap."""

from __future__ import annotations

import pytest

import cassq
from cassq.clock import ManualClock
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, numbers, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def test_a_kept_claim_outlives_its_timeout(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=1.0)
    push(queue, *numbers(3))
    popper, other = queue.popper(keep_alive=3600), queue.popper()
    messages = popper.pop(3)
    pause = 1 / 3
    for _ in range(10):  # three timeouts
        clock.advance(pause)
        assert other.pop(3) == []
        pause = popper.tend()
        assert pause <= 1 / 3
    popper.commit(messages)
    assert queue.stats().groups["default"].committed == 3


@pytest.mark.waits(reason="a claim outlives its timeout")
def test_a_claim_is_kept_by_itself(client: cassq.Client) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=3.0)
    push(queue, *numbers(3))
    popper = queue.popper(keep_alive=3600)
    messages = popper.pop(3)
    keeper = messages[0]._keeper
    due_ms = keeper.due_ms
    eventually("it is extended", lambda: keeper.due_ms > due_ms)
    extended_ms = keeper.due_ms
    eventually("it is extended again", lambda: keeper.due_ms > extended_ms)
    popper.commit(messages)


def test_a_kept_claim_ends_at_the_cap(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=1.0)
    push(queue, b"x")
    popper, other = queue.popper(keep_alive=2.5), queue.popper()
    popper.pop()
    for _ in range(24):
        clock.advance(0.1)
        assert other.pop() == []
        popper.tend()
    clock.advance(0.1)
    (message,) = other.pop()
    assert message.attempts == 2


def test_a_popper_that_is_not_asked_to_keeps_nothing_alive(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, b"x")
    popper, other = queue.popper(), queue.popper()
    popper.pop()
    (message,) = eventually("it expires", other.pop)
    assert message.attempts == 2


def test_a_kept_claim_of_a_strict_queue_keeps_its_lock(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", claim_timeout=1.0)
    push(queue, *numbers(2))
    popper, other = queue.popper(keep_alive=3600), queue.popper()
    messages = popper.pop()
    for _ in range(15):  # five timeouts
        clock.advance(1 / 3)
        assert other.pop() == []
        popper.tend()
    popper.commit(messages)
    assert [m.payload for m in other.pop()] == [b"1"]
