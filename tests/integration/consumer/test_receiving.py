"""Receiving: messages for others, each with a deadline of its own, settled by receipt alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import cassq
from cassq.client.receiving import open_receiver
from cassq.consumer.receiving import Receiver
from cassq.errors import (
    ClosedError,
    GroupNotFoundError,
    QueueNotFoundError,
    ReceiptError,
    UsageError,
)
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push

MINUTE_MS = 60_000

Open = Callable[..., Receiver]


@pytest.fixture
def receiving(connect: Connect) -> Open:
    """Opens receivers of the queue "jobs", each of a client of its own."""

    def open_one(group: str = "default") -> Receiver:
        client = connect()
        alone(client)
        return open_receiver(client.runtime, client.queue("jobs"), group)

    return open_one


def test_a_received_message_goes_to_no_other_client_though_its_receiver_is_gone(
    queue: cassq.Queue, receiving: Open
) -> None:
    push(queue, *numbers(3))
    receiver = receiving()
    messages = receiver.receive(3, MINUTE_MS)
    assert payloads(messages) == numbers(3)
    assert [message.attempts for message in messages] == [1, 1, 1]
    receiver.close()
    receiver.close()
    with pytest.raises(ClosedError):
        receiver.receive(1, 0)
    assert drain(queue.popper()) == []
    assert len(receiving().receive(10, 0)) == 0
    queue.settle([message.receipt for message in messages]).ack()
    assert queue.stats().groups["default"].committed == 3
    assert queue.audit().findings == []


def test_what_is_past_its_deadline_comes_again_each_counted_by_itself(
    client: cassq.Client, receiving: Open
) -> None:
    alone(client)
    queue = client.create_queue("jobs", max_deliveries=4, sick_check=False)
    push(queue, *numbers(40))
    receiver = receiving()
    assert len(receiver.receive(40, 0)) == 40
    for attempts in (2, 3, 4):
        again = receiver.receive(40, 0)
        assert payloads(again) == numbers(40), "they are not cut into pieces"
        assert {message.attempts for message in again} == {attempts}
    assert len(receiver.receive(40, 0)) == 0
    while queue.stats().groups["default"].dead < 40:
        client.reap()
    assert queue.audit().findings == []


def test_of_what_was_received_together_one_that_is_hidden_longer_leaves_the_others(
    queue: cassq.Queue, receiving: Open
) -> None:
    push(queue, *numbers(3))
    receiver = receiving()
    first, second, third = receiver.receive(3, 0)
    with pytest.raises(ReceiptError):
        queue.settle(second.receipt).extend(60, overdue=False)
    queue.settle(second.receipt).extend(60)
    queue.settle(third.receipt).ack()
    (again,) = receiver.receive(3, MINUTE_MS)
    assert (again.payload, again.attempts) == (b"0", 2)
    assert again.first_received_ms == first.first_received_ms
    queue.settle(again.receipt).release()
    (anew,) = eventually("it comes anew", lambda: receiver.receive(3, MINUTE_MS))
    assert (anew.payload, anew.attempts) == (b"0", 2), "what is released was not received"


def test_a_receipt_is_valid_until_the_message_is_received_again(
    queue: cassq.Queue, client: cassq.Client, receiving: Open
) -> None:
    push(queue, *numbers(2))
    receiver = receiving()
    old, other = receiver.receive(2, 0)
    alone(client)
    client.reap()  # which frees them
    queue.settle(other.receipt).ack()
    with pytest.raises(ReceiptError):
        queue.settle(old.receipt).extend(60)
    (new,) = receiver.receive(2, MINUTE_MS)
    for verb in ("ack", "release"):
        with pytest.raises(ReceiptError):
            getattr(queue.settle(old.receipt), verb)()
    queue.settle(new.receipt).ack()
    assert queue.stats().groups["default"].committed == 2
    assert queue.audit().findings == []


def test_poppers_and_receivers_share_a_group(queue: cassq.Queue, receiving: Open) -> None:
    push(queue, *numbers(6))
    popper, receiver = queue.popper(), receiving()
    mine, theirs = popper.pop(2), receiver.receive(2, 0)
    assert payloads(theirs) == numbers(2, 2)
    assert sorted(payloads(drain(popper))) == numbers(4, 2), "what is past its deadline too"
    popper.rollback(mine)
    again = receiver.receive(10, MINUTE_MS)
    assert payloads(again) == numbers(2)
    assert {message.attempts for message in again} == {2}


def test_a_wait_ends_when_something_is_pushed_or_given_back(
    queue: cassq.Queue, receiving: Open
) -> None:
    receiver = receiving()
    push(queue, b"x")
    (message,) = eventually("it is seen", lambda: waited(receiver))
    queue.settle(message.receipt).extend(0)
    (again,) = eventually("it comes again", lambda: waited(receiver))
    assert again.attempts == 2
    receiver.interrupt()
    receiver.wait(60)
    assert receiver.tally.popped == 2


def waited(receiver: Receiver) -> list[cassq.Message]:
    receiver.wait(1.0)
    return list(receiver.receive(1, MINUTE_MS))


def test_a_group_with_order_or_limits_has_no_receivers(
    client: cassq.Client, receiving: Open
) -> None:
    queue = client.create_queue("jobs")
    queue.create_group("ordered", order="key")
    queue.create_group("single", exclusive=True)
    queue.create_group("slow", rate="1/s")
    for group in ("ordered", "single", "slow"):
        with pytest.raises(UsageError, match="order or limits"):
            receiving(group).receive(1, 0)
    with pytest.raises(GroupNotFoundError):
        receiving("none")


def test_a_receiver_of_a_deleted_queue_says_so(client: cassq.Client) -> None:
    queue = client.create_queue("jobs")
    receiver = open_receiver(client.runtime, queue, "default")
    client.delete_queue("jobs")
    with pytest.raises(QueueNotFoundError):
        receiver.receive(1, 0)


def test_a_paused_group_receives_nothing(queue: cassq.Queue, receiving: Open) -> None:
    push(queue, b"x")
    queue.pause()
    assert len(receiving().receive(1, 0)) == 0
