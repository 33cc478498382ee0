"""Popping: what it returns, how much, how long it waits, and iteration."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import cassq
from cassq.consumer.delivery import Message
from cassq.errors import ClosedError, GroupNotFoundError, InvalidNameError, UsageError
from tests.integration.deadlines import eventually, in_threads, joined
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push


def test_a_pop_takes_at_most_what_was_asked_in_order(queue: cassq.Queue) -> None:
    push(queue, *numbers(10))
    popper = queue.popper()
    assert payloads(popper.pop(3)) == numbers(3)
    assert payloads(popper.pop()) == [b"3"]
    assert payloads(popper.pop(100)) == numbers(6, first=4)
    assert popper.pop(100) == []


def test_a_claim_may_begin_and_end_inside_a_frame(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        for first in range(0, 40, 10):
            pusher.push_many(numbers(10, first=first))  # one frame each
    popper = queue.popper()
    found = [popper.pop(7) for _ in range(6)]
    assert [len(messages) for messages in found] == [7, 7, 7, 7, 7, 5]
    assert payloads(m for messages in found for m in messages) == numbers(40)


def test_a_message_says_what_it_is(queue: cassq.Queue) -> None:
    (message_id,) = push(queue, b"hello")
    (message,) = queue.popper().pop()
    assert message.id == message_id
    assert message.id == f"{message.pipe_id}:{message.seq}"
    assert message.attempts == 1
    assert repr(message) == f"<Message {message_id} attempts=1 5 bytes>"


def test_a_popped_message_is_not_popped_again(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(5))
    assert len(queue.popper().pop(5)) == 5
    assert queue.popper().pop(5) == []
    assert connect().queue("jobs").popper().pop(5) == []


def test_an_empty_queue_gives_an_empty_list_after_the_wait(queue: cassq.Queue) -> None:
    popper = queue.popper()
    assert popper.pop(10) == []
    assert popper.pop(10, wait=0) == []
    assert popper.pop(10, wait=0.02) == []


@pytest.mark.parametrize("count", [0, -1, 1.0, "1", None, True, 10**9])
def test_a_number_of_messages_that_makes_no_sense_is_refused(
    queue: cassq.Queue, count: Any
) -> None:
    with pytest.raises(UsageError, match="max_messages"):
        queue.popper().pop(count)


@pytest.mark.parametrize("wait", [-1, -0.001, float("nan"), "1", None, True])
def test_a_wait_that_makes_no_sense_is_refused(queue: cassq.Queue, wait: Any) -> None:
    with pytest.raises(UsageError, match="wait"):
        queue.popper().pop(1, wait=wait)


def test_an_unknown_group_is_an_error(queue: cassq.Queue) -> None:
    with pytest.raises(GroupNotFoundError, match="no group 'nobody'"):
        queue.popper("nobody")
    with pytest.raises(InvalidNameError):
        queue.popper("no body")


@pytest.mark.parametrize("cap", [-1, "1", float("nan"), float("inf"), True])
def test_a_keep_alive_that_makes_no_sense_is_refused(queue: cassq.Queue, cap: Any) -> None:
    with pytest.raises(UsageError, match="keep_alive"):
        queue.popper(keep_alive=cap)


def test_iteration_gives_every_message_and_ends_when_closed(queue: cassq.Queue) -> None:
    push(queue, *numbers(300))
    popper = queue.popper()
    found: list[bytes] = []

    def consume() -> None:
        for message in popper:
            message.ack()
            found.append(message.payload)  # last: what is found here is acked as well

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    eventually("all are consumed", lambda: len(found) == 300)
    push(queue, b"later")
    eventually("the later one as well", lambda: len(found) == 301)
    popper.close()
    joined("the iteration", thread)
    assert found == [*numbers(300), b"later"]
    assert queue.stats().groups["default"].committed == 301


def until_it_claims_ahead(
    queue: cassq.Queue, popper: cassq.Popper, messages: Iterator[Message]
) -> list[bytes]:
    """Ack messages of an iteration, mostly fast, until it holds some that were not handed out;
    those that were."""
    taken: list[bytes] = []
    for message in messages:
        taken.append(message.payload)
        message.ack()
        if len(taken) % 10 == 0:
            popper.flush()
            if queue.stats().groups["default"].pending >= 5:
                return taken
    raise AssertionError("the iteration ended")


def test_what_an_iteration_claimed_ahead_is_given_back_uncounted(queue: cassq.Queue) -> None:
    push(queue, *numbers(500))
    popper = queue.popper()
    taken = until_it_claims_ahead(queue, popper, iter(popper))
    popper.close()
    rest = drain(queue.popper())
    assert taken + payloads(rest) == numbers(500)
    assert {message.attempts for message in rest} == {1}


def test_an_iteration_does_not_hand_out_what_it_lost_while_its_user_was_busy(
    client: cassq.Client,
) -> None:
    alone(client)
    queue = client.create_queue("jobs", claim_timeout=0.2)
    push(queue, *numbers(5000))
    popper, other = queue.popper(keep_alive=0), queue.popper()
    messages = iter(popper)
    until_it_claims_ahead(queue, popper, messages)
    slow = next(messages)
    rest: list[bytes] = []

    def others_have_the_rest() -> bool:
        rest.extend(payloads(drain(other)))
        return queue.stats().groups["default"].pending == 0 and slow.payload in rest

    eventually("the other popper has done the rest", others_have_the_rest)
    push(queue, b"new")
    assert next(messages).payload == b"new"


@pytest.mark.parametrize("waits_in", ["pop", "iteration"])
def test_a_popper_closed_by_another_thread_ends_its_wait(queue: cassq.Queue, waits_in: str) -> None:
    popper = queue.popper()
    outcome: list[object] = []
    started = threading.Event()

    def wait() -> None:
        started.set()
        try:
            outcome.append(popper.pop(1, wait=60) if waits_in == "pop" else list(popper))
        except ClosedError as exc:
            outcome.append(exc)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert started.wait(30)
    popper.close()
    joined("the waiting thread", thread)
    if waits_in == "pop":
        assert isinstance(outcome[0], ClosedError)
    else:
        assert outcome == [[]]


def test_threads_may_share_one_popper(queue: cassq.Queue) -> None:
    push(queue, *numbers(3000))
    popper = queue.popper()
    found: list[bytes] = []

    def work(_: int) -> None:
        while messages := popper.pop(10):
            popper.commit(messages)
            found.extend(payloads(messages))

    in_threads(6, work)
    assert sorted(found) == sorted(numbers(3000))
    assert queue.audit().groups["default"].committed == 3000


def test_a_closed_popper_refuses_every_verb(queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    popper.close()
    popper.close()  # twice is no error
    assert popper.closed
    assert list(popper) == []
    for verb in (
        popper.pop,
        lambda: popper.commit([message]),
        lambda: popper.rollback([message]),
        lambda: popper.transaction().__enter__(),
        message.ack,
        message.nack,
        message.release,
        lambda: message.extend(1),
    ):
        with pytest.raises(ClosedError):
            verb()


def test_a_popper_closed_while_messages_are_out_gives_them_back(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    with queue.popper() as popper:
        messages = popper.pop(4)
        popper.commit(messages[:1])
        messages[1].ack()
    again = queue.popper().pop(10)
    assert [(m.payload, m.attempts) for m in again] == [(b"2", 2), (b"3", 2)]


def test_peeking_shows_what_waits_and_what_is_out_without_effect(queue: cassq.Queue) -> None:
    with queue.pusher() as pusher:
        pusher.push_many(numbers(4), headers=[{"n": str(n)} for n in range(4)])
    popper = queue.popper()
    popper.commit(popper.pop(1))
    popper.pop(1)
    seen = queue.peek(10)
    assert [(p.payload, p.state, p.attempts) for p in seen] == [
        (b"1", "pending", 1),
        (b"2", "waiting", 0),
        (b"3", "waiting", 0),
    ]
    assert seen[0].headers == {"n": "1"}
    assert queue.peek(2) == seen[:2]
    assert payloads(popper.pop(10)) == [b"2", b"3"]
    with pytest.raises(UsageError):
        queue.peek(0)
