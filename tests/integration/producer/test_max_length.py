"""The length of a queue: pushes that are refused, and messages that make room for others."""

from __future__ import annotations

import json

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.errors import BackendError, QueueFullError
from cassq.producer.quota import lengths, trim
from tests.integration.deadlines import eventually, in_threads
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

DEAD = "jobs~default~dead"


def length(queue: cassq.Queue) -> int:
    return max(lengths(queue._ports, queue.row).values())


# --- refusing ---------------------------------------------------------------------------------


def test_a_push_to_a_full_queue_is_refused_with_length_and_limit(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=3)
    with queue.pusher() as pusher:
        for payload in numbers(3):
            pusher.push(payload)
        with pytest.raises(
            QueueFullError, match="has 3 uncommitted messages; its limit is 3"
        ) as caught:
            pusher.push(b"too much")
    assert isinstance(caught.value, BackendError)
    assert caught.value.retryable
    assert not caught.value.outcome_unknown
    assert caught.value.fields == {"length": 3, "limit": 3, "pushed": 0}
    assert payloads(drain(queue.popper())) == numbers(3)


def test_a_queue_takes_pushes_again_when_its_slowest_group_has_committed(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", max_length=2)
    queue.create_group("slow")
    pusher = queue.pusher()
    pusher.push_many(numbers(2))
    drain(queue.popper())
    with pytest.raises(QueueFullError):
        pusher.push(b"x")
    popper = queue.popper("slow")
    popper.commit(popper.pop(1))
    eventually("there is room for one", lambda: _pushed(pusher))
    with pytest.raises(QueueFullError):
        pusher.push(b"x")


def _pushed(pusher: cassq.Pusher) -> bool:
    try:
        pusher.push(b"x")
    except QueueFullError:
        return False
    return True


def test_what_is_claimed_counts_until_it_is_committed(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=4)
    pusher, popper = queue.pusher(), queue.popper()
    pusher.push_many(numbers(4))
    messages = popper.pop(3)
    assert length(queue) == 4
    with pytest.raises(QueueFullError):
        pusher.push(b"x")
    popper.commit([messages[1]])
    assert length(queue) == 3, "acks out of turn make room as well"


def test_many_are_pushed_together_or_not_at_all(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=10)
    with queue.pusher() as pusher:
        pusher.push_many(numbers(6))
        with pytest.raises(QueueFullError):
            pusher.push_many(numbers(5))
        pusher.push_many(numbers(4))
    assert queue.stats().pushed == 10


def test_more_at_once_than_the_queue_may_hold_cannot_be_tried_again(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=10)
    with queue.pusher() as pusher, pytest.raises(QueueFullError, match="11 at once") as caught:
        pusher.push_many(numbers(11))
    assert not caught.value.retryable


def test_delayed_messages_count(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=1)
    with queue.pusher() as pusher:
        pusher.push(b"later", delay=3600)
        with pytest.raises(QueueFullError):
            pusher.push(b"x")


def test_a_future_is_reported(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=5)
    with queue.pusher() as pusher:
        futures = [pusher.push_soon(payload) for payload in numbers(50)]
        errors = [future.exception(30) for future in futures]
    assert sum(error is None for error in errors) == 5
    assert {type(error) for error in errors if error} == {QueueFullError}
    assert queue.stats().pushed == 5


def test_one_pusher_with_many_threads_never_exceeds_the_limit(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_length=100)
    pusher = queue.pusher()

    def work(number: int) -> None:
        for _ in range(50):
            _pushed(pusher)

    in_threads(8, work)
    assert queue.stats().pushed == 100


def test_several_pushers_exceed_the_limit_by_no_more_than_the_bound(
    client: cassq.Client, connect: Connect
) -> None:
    limit, batch = 200, 30
    client.create_queue("jobs", max_length=limit)
    pushers = [connect().queue("jobs").pusher() for _ in range(4)]

    def work(number: int) -> None:
        for _ in range(20):
            try:
                pushers[number].push_many(numbers(batch))
            except QueueFullError:
                continue

    in_threads(4, work)
    pushed = client.queue("jobs").stats().pushed
    assert limit - batch < pushed <= limit + 3 * max(batch, limit // 10)


def test_a_limit_is_taken_up_and_lifted(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push_many(numbers(5))
    queue.update(max_length=5)
    with pytest.raises(QueueFullError):
        pusher.push(b"x")
    queue.update(max_length=None)
    pusher.push(b"x")


# --- dropping the oldest ----------------------------------------------------------------------


@pytest.fixture
def newest(client: cassq.Client) -> cassq.Queue:
    """A queue of the five newest messages, of which the test alone drops the oldest."""
    alone(client)
    return client.create_queue("jobs", max_length=5, overflow="drop-oldest")


def test_the_oldest_make_room_and_go_to_the_dead_letters(
    newest: cassq.Queue, client: cassq.Client
) -> None:
    with newest.pusher() as pusher:
        ids = [pusher.push(payload) for payload in numbers(8)]
    assert payloads(drain(newest.popper())) == numbers(5, 3)
    letters = drain(client.queue(DEAD).popper())
    assert payloads(letters) == numbers(3)
    assert [letter.id for letter in letters] == ids[:3]
    death = json.loads(letters[0].headers["cassq-death"])
    assert (death["reason"], death["queue"], death["group"]) == ("maxlen", "jobs", "default")
    assert newest.audit().findings == []
    assert newest.stats().groups["default"].dead == 3


def test_a_batch_makes_room_for_itself(newest: cassq.Queue, client: cassq.Client) -> None:
    push(newest, *numbers(4))
    push(newest, *numbers(4, 4))
    assert payloads(drain(newest.popper())) == numbers(5, 3)
    assert sorted(payloads(drain(client.queue(DEAD).popper()))) == numbers(3)


def test_each_group_drops_its_own_oldest(newest: cassq.Queue, client: cassq.Client) -> None:
    newest.create_group("quick")
    push(newest, *numbers(5))
    assert len(drain(newest.popper("quick"))) == 5
    push(newest, *numbers(2, 5))
    assert payloads(drain(newest.popper("quick"))) == numbers(2, 5)
    assert payloads(drain(newest.popper())) == numbers(5, 2)
    assert [queue.name for queue in client.queues("jobs~")] == [DEAD]
    assert newest.audit().findings == []


def test_the_oldest_is_found_over_pipes_and_among_what_was_given_back(
    newest: cassq.Queue, client: cassq.Client
) -> None:
    push(newest, *numbers(3))
    push(newest, *numbers(2, 3))
    popper = newest.popper()
    popper.release(popper.pop(2))
    push(newest, *numbers(4, 5))
    assert sorted(payloads(drain(client.queue(DEAD).popper()))) == numbers(4)
    assert sorted(payloads(drain(popper))) == numbers(5, 4)
    assert newest.audit().findings == []


def test_what_poppers_hold_stays_theirs(newest: cassq.Queue, client: cassq.Client) -> None:
    push(newest, *numbers(5))
    popper = newest.popper()
    held = popper.pop(5)
    push(newest, b"new")
    popper.commit(held)
    assert payloads(drain(popper)) == [b"new"]
    assert client.queues("jobs~") == []


def test_the_pass_trims_what_a_lower_limit_makes_too_much(
    client: cassq.Client,
) -> None:
    alone(client)
    queue = client.create_queue("jobs", consistency="cp")
    push(queue, *numbers(10))
    queue.update(max_length=4, overflow="drop-oldest")
    assert trim(client.ports, queue.row, client.runtime.dead_letter) == 6
    assert trim(client.ports, queue.row, client.runtime.dead_letter) == 0
    assert payloads(drain(queue.popper())) == numbers(4, 6)
    assert payloads(drain(client.queue(DEAD).popper())) == numbers(6)
    assert queue.audit().findings == []


def test_dead_letters_are_never_refused(timed: cassq.Client, clock: ManualClock) -> None:
    """A move is no new message: a full or paused queue of dead letters takes it."""
    queue = timed.create_queue("jobs", max_deliveries=1)
    popper = queue.popper()
    push(queue, *numbers(3))
    popper.dead(popper.pop(1))
    timed.queue(DEAD).update(max_length=1, push_paused=True)
    clock.advance(10)  # a lease: its pusher knows of it
    popper.dead(popper.pop(2))
    assert queue.stats().groups["default"].dead == 3
