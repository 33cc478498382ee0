"""Prefetching: what a pop claims for the next calls, and when others get it instead."""

from __future__ import annotations

import threading

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.new_claims import SHARE
from cassq.consumer.pace import PREFETCH_SECONDS
from cassq.popper import UNUSED_MS
from tests.integration.deadlines import joined
from tests.integration.stage import drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

TASK_SECONDS = 0.01
AHEAD = round(PREFETCH_SECONDS / TASK_SECONDS)


def claimed(queue: cassq.Queue) -> int:
    """How many messages are claimed and not acked."""
    return queue.stats().groups["default"].pending


def work(popper: cassq.Popper, clock: ManualClock, count: int = 1) -> list[bytes]:
    """Pop one, work, commit, `count` times; what was popped."""
    done: list[bytes] = []
    for _ in range(count):
        messages = popper.pop()
        done += payloads(messages)
        clock.advance(TASK_SECONDS)
        popper.commit(messages)
    return done


def holding_some(queue: cassq.Queue, popper: cassq.Popper, clock: ManualClock) -> list[bytes]:
    """Work until the popper holds messages that were not handed out; what it has done."""
    done = work(popper, clock)
    while not claimed(queue):
        done += work(popper, clock)
    return done


def test_a_pop_of_one_claims_as_much_as_is_finished_in_a_tenth_of_a_second(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(1000))
    popper = queue.popper()
    assert claimed(queue) == 0
    (first,) = popper.pop()
    assert claimed(queue) == 1, "it is not known yet how fast it is"
    clock.advance(TASK_SECONDS)
    popper.commit([first])
    messages = popper.pop()
    assert payloads(messages) == [b"1"]
    assert claimed(queue) == AHEAD
    for left in range(AHEAD - 1, 0, -1):
        clock.advance(TASK_SECONDS)
        popper.commit(messages)
        messages = popper.pop()
        assert claimed(queue) == left


def test_each_message_comes_once_and_in_order(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(300))
    assert work(queue.popper(), clock, 300) == numbers(300)
    assert queue.stats().groups["default"].committed == 300


def test_where_few_messages_wait_other_poppers_find_them(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(2 * SHARE))
    popper, other = queue.popper(), queue.popper()
    assert work(popper, clock, 2) == numbers(2)
    popper.pop()
    assert claimed(queue) == 1
    assert len(drain(other)) == 2 * SHARE - 3


@pytest.mark.parametrize("asked", [7, 64])
def test_a_pop_of_many_is_not_cut_short_by_what_was_prefetched(
    timed: cassq.Client, clock: ManualClock, asked: int
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(50 * asked))
    popper = queue.popper()
    for turn in range(50):
        messages = popper.pop(asked)
        assert len(messages) == asked, turn
        clock.advance(TASK_SECONDS)
        popper.commit(messages)


def test_a_pop_of_prefetched_messages_handles_no_message_by_itself(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    asked, frames = 100, 50
    for _ in range(frames):
        queue.pusher().push_many(numbers(asked))
    popper = queue.popper()
    for _ in range(frames):
        messages = popper.pop(asked)
        assert len(messages.runs) == 1
        clock.advance(TASK_SECONDS)
        popper.commit(messages)


def test_prefetched_messages_not_taken_are_given_back_untried(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(1000))
    popper, other = queue.popper(), queue.popper()
    done = holding_some(queue, popper, clock)
    assert popper.maintain() <= UNUSED_MS / 1000
    clock.advance((UNUSED_MS - 1) / 1000 - TASK_SECONDS)
    popper.maintain()
    assert claimed(queue) == AHEAD - 1
    clock.advance(0.001)
    popper.maintain()
    assert claimed(queue) == 0
    (back,) = other.pop()
    assert (back.payload, back.attempts) == (numbers(1000)[len(done)], 1)


def test_what_is_taken_from_in_time_stays(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", claim_timeout=60.0)
    push(queue, *numbers(1000))
    popper = queue.popper()
    holding_some(queue, popper, clock)
    for left in range(AHEAD - 2, 0, -1):
        popper.commit(popper.pop())
        clock.advance((UNUSED_MS - 1) / 1000)
        popper.maintain()
        assert claimed(queue) == left


@pytest.mark.parametrize("verb", ["message", "popper"])
def test_a_message_released_comes_before_what_was_prefetched(
    timed: cassq.Client, clock: ManualClock, verb: str
) -> None:
    queue = timed.create_queue("jobs", max_pop_width=1)
    push(queue, *numbers(1000))
    popper = queue.popper()
    done = holding_some(queue, popper, clock)
    (message,) = popper.pop()
    if verb == "message":
        message.release()
    else:
        popper.release([message])
    done += work(popper, clock, 1000 - len(done))
    assert done == numbers(1000)


def test_an_exclusive_group_keeps_the_rest_while_one_is_in_hand(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", claim_timeout=60.0)
    push(queue, *numbers(1000))
    popper, other = queue.popper(), queue.popper()
    done = holding_some(queue, popper, clock)
    (message,) = popper.pop()
    clock.advance(2 * UNUSED_MS / 1000)
    popper.maintain()
    assert claimed(queue) == AHEAD - 1
    assert not other.pop(), "it would pass the message in hand"
    popper.commit([message])
    popper.maintain()
    assert claimed(queue) == 0
    assert payloads(other.pop()) == numbers(1000)[len(done) + 1 : len(done) + 2]


def test_a_popper_that_is_closed_gives_back_what_it_prefetched(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(1000))
    with queue.popper() as popper:
        done = holding_some(queue, popper, clock)
    rest = drain(queue.popper())
    assert done + payloads(rest) == numbers(1000)
    assert {message.attempts for message in rest} == {1}


def test_threads_that_share_a_popper_do_not_prefetch_for_each_other(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """A thread that ended with a message in hand keeps nothing, though others go on."""
    queue = timed.create_queue("jobs", claim_timeout=3.0)
    push(queue, *numbers(1000))
    popper = queue.popper()
    done = holding_some(queue, popper, clock)
    taken: list[bytes] = []
    thread = threading.Thread(target=lambda: taken.extend(payloads(popper.pop())))
    thread.start()
    joined("the other thread", thread)
    assert claimed(queue) == 1, "what was prefetched for this thread went back"
    done += work(popper, clock, AHEAD + 5)  # those that went back, and some more
    assert claimed(queue) == 1
    for _ in range(4):
        clock.advance(1.0)
        popper.maintain()
        done += work(popper, clock)
    assert set(taken) < set(done), "it came again"


def test_a_thread_that_replaces_one_that_ended_prefetches(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(1000))
    popper = queue.popper()
    thread = threading.Thread(target=lambda: work(popper, clock, 2))
    thread.start()
    joined("the first thread", thread)
    while claimed(queue):
        work(popper, clock)
    work(popper, clock)
    assert claimed(queue) == AHEAD - 1
