"""Keep-alive: claims of messages being worked on are extended by themselves, up to a cap."""

from __future__ import annotations

import threading

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import ClaimLostError
from cassq.popper import KEEP_ALIVE_SECONDS
from tests.integration.consumer.test_pop import until_it_claims_ahead
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import alone, drain, numbers, payloads, push
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
        pause = popper.maintain()
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
    keeper = messages[0]._delivery
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
        popper.maintain()
    clock.advance(0.1)
    (message,) = other.pop()
    assert message.attempts == 2


@pytest.mark.parametrize("keep_alive", [0, None])
def test_a_popper_without_keep_alive_keeps_no_claim_alive(
    client: cassq.Client, keep_alive: float | None
) -> None:
    queue = client.create_queue("jobs", claim_timeout=0.05)
    push(queue, b"x")
    popper, other = queue.popper(keep_alive=keep_alive), queue.popper()
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
        popper.maintain()
    popper.commit(messages)
    assert [m.payload for m in other.pop()] == [b"1"]


TASK_SECONDS = 0.6


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_batch_of_long_tasks_runs_once_each(
    timed: cassq.Client, clock: ManualClock, consistency: str
) -> None:
    """Ten of 0.6 seconds under a timeout of 2: the last is done three timeouts after the claim.
    Another worker looks for something to do meanwhile."""
    queue = timed.create_queue("jobs", consistency=consistency, claim_timeout=2.0)
    push(queue, *numbers(10))
    popper, other = queue.popper(), queue.popper()
    runs: list[bytes] = []
    for message in popper.pop(10):
        for _ in range(6):
            clock.advance(TASK_SECONDS / 6)
            popper.maintain()
            runs += payloads(drain(other))
        runs.append(message.payload)
        message.ack()
    popper.flush()
    assert runs == numbers(10)
    assert queue.stats().groups["default"].committed == 10


def test_claims_are_kept_alive_for_an_hour_by_default(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """A consumer that never settles what it has keeps it no longer, though its process lives."""
    queue = timed.create_queue("jobs", claim_timeout=600)
    push(queue, b"x")
    popper, other = queue.popper(), queue.popper()
    popper.pop()
    for _ in range(int(KEEP_ALIVE_SECONDS / 100) - 1):
        clock.advance(100)
        popper.maintain()
        assert other.pop() == []
    clock.advance(100)
    popper.maintain()
    (message,) = other.pop()
    assert message.attempts == 2


def test_a_thread_that_ended_keeps_nothing_alive(timed: cassq.Client, clock: ManualClock) -> None:
    """Of two threads that share a popper one dies with messages in hand."""
    queue = timed.create_queue("jobs", claim_timeout=1.0)
    push(queue, *numbers(2))
    popper, other = queue.popper(), queue.popper()
    mine = popper.pop()
    thread = threading.Thread(target=popper.pop)
    thread.start()
    joined("the other thread", thread)
    for _ in range(6):
        clock.advance(0.3)
        popper.maintain()
    (taken,) = other.pop(2)
    assert (taken.payload, taken.attempts) == (b"1", 2)
    popper.commit(mine)


def test_what_one_thread_claimed_ahead_is_kept_for_the_thread_that_took_it(
    timed: cassq.Client, clock: ManualClock
) -> None:
    slow = timed.create_queue("slow", claim_timeout=1.0)
    push(slow, *numbers(5000))
    popper = slow.popper()
    took: list[cassq.Message] = []

    def claim_ahead() -> None:
        messages = iter(popper)
        until_it_claims_ahead(slow, popper, messages)

    thread = threading.Thread(target=claim_ahead)
    thread.start()
    joined("the thread that claims", thread)
    assert popper._buffer
    took += popper.pop(1)
    for _ in range(4):
        clock.advance(0.3)
        popper.maintain()
    assert took[0].payload not in payloads(slow.popper().pop(5000))
    popper.commit(took)


def test_what_was_claimed_ahead_is_not_kept_from_others_by_a_long_task(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """The task itself is."""
    queue = timed.create_queue("jobs", claim_timeout=3.0)
    push(queue, *numbers(5000))
    popper, other = queue.popper(), queue.popper()
    messages = iter(popper)
    taken = until_it_claims_ahead(queue, popper, messages)
    long = next(messages)
    popper.flush()
    for _ in range(3):
        clock.advance(1.0)
        popper.maintain()
    rest = drain(other)
    assert long.payload not in payloads(rest)
    assert len(rest) == 5000 - len(taken) - 1
    assert {message.attempts for message in rest} == {1}, "they were not tried"
    long.ack()
    popper.flush()
    assert queue.stats().groups["default"].committed == 5000


def test_many_claims_are_kept_alive_together_and_a_lost_one_among_them(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", claim_timeout=1.0)
    push(queue, *numbers(20))
    popper, other = queue.popper(), queue.popper()
    held = [popper.pop()[0] for _ in range(20)]
    lost = held[7]._delivery
    clock.advance(0.4)
    lost.extend(0.1, 7)
    clock.advance(0.2)
    (taken,) = other.pop()
    assert taken.payload == b"7"
    other.commit([taken])
    for _ in range(5):
        popper.maintain()
        clock.advance(0.3)
    assert other.pop(20) == []
    with pytest.raises(ClaimLostError):
        popper.commit(held)
    assert queue.stats().groups["default"].committed == 20
