"""Dead letters: where messages go that were delivered too often, and what is kept of them."""

from __future__ import annotations

import json

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push, reap

DEAD = "jobs~default~dead"


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


def nack_to_death(queue: cassq.Queue, times: int, error: str | None = None) -> None:
    popper = queue.popper()
    for _ in range(times):
        (message,) = popper.pop()
        message.nack(error=error)
    popper.close()


@pytest.fixture
def frail(client: cassq.Client) -> cassq.Queue:
    """A queue whose messages may be delivered twice."""
    return client.create_queue("jobs", max_deliveries=2, sick_check=False)


def test_a_message_nacked_too_often_goes_to_the_dead_letters(
    frail: cassq.Queue, client: cassq.Client
) -> None:
    with frail.pusher() as pusher:
        message_id = pusher.push(b"bad", headers={"kind": "invoice"}, key=b"k7")
    nack_to_death(frail, 2, error="no such customer")
    assert frail.popper().pop() == []
    (letter,) = client.queue(DEAD).popper().pop()
    assert (letter.payload, letter.id, letter.key) == (b"bad", message_id, b"k7")
    assert letter.headers["kind"] == "invoice"
    death = json.loads(letter.headers["cassq-death"])
    assert death["reason"] == "delivery_limit"
    assert death["error"] == "no such customer"
    assert (death["queue"], death["group"], death["deliveries"]) == ("jobs", "default", 2)
    assert letter.attempts == 1


def test_the_push_time_of_a_dead_letter_is_its_own(
    frail: cassq.Queue, client: cassq.Client
) -> None:
    push(frail, b"bad")
    (before,) = frail.peek()
    nack_to_death(frail, 2)
    (letter,) = client.queue(DEAD).popper().pop()
    assert letter.pushed_at == before.pushed_at


def test_without_failures_there_is_no_dead_letter_queue(
    frail: cassq.Queue, client: cassq.Client
) -> None:
    push(frail, *numbers(5))
    drain(frail.popper())
    assert [queue.name for queue in client.queues()] == ["jobs"]


def test_the_counts_of_queue_and_dead_letters_balance(
    frail: cassq.Queue, client: cassq.Client
) -> None:
    push(frail, *numbers(10))
    popper = frail.popper()
    for message in popper.pop(10):
        message.nack() if message.seq % 2 else message.ack()
    for message in popper.pop(10) + popper.pop(10) + popper.pop(10):
        message.nack()
    for messages in iter(lambda: popper.pop(10), []):
        for message in messages:
            message.nack()
    audit = frail.audit()
    assert audit.findings == []
    stats = audit.groups["default"]
    assert (stats.committed, stats.dead, stats.waiting) == (5, 5, 0)
    assert client.queue(DEAD).stats().pushed == 5
    assert frail.stats().groups["default"].dead == 5
    popper.close()
    reap(client)
    assert frail.audit().findings == []
    assert frail.audit().groups["default"].dead == 5


def test_a_dead_letter_queue_is_a_queue_like_any_other(
    frail: cassq.Queue, client: cassq.Client, connect: Connect
) -> None:
    push(frail, b"bad")
    nack_to_death(frail, 2)
    dead = connect().queue(DEAD)
    assert [peeked.payload for peeked in dead.peek()] == [b"bad"]
    dead.update(max_deliveries=50)
    dead.create_group("auditor")
    for group in ("default", "auditor"):
        assert payloads(drain(dead.popper(group))) == [b"bad"]
    assert dead.audit().findings == []


def test_each_group_has_dead_letters_of_its_own(frail: cassq.Queue, client: cassq.Client) -> None:
    frail.create_group("billing", max_deliveries=1, sick_check=False)
    push(frail, b"bad")
    with frail.popper("billing") as popper:
        popper.pop()[0].nack()
    assert [queue.name for queue in client.queues("jobs~")] == ["jobs~billing~dead"]
    assert payloads(drain(frail.popper())) == [b"bad"]
    assert frail.audit().groups["billing"].dead == 1


def test_dead_letters_deleted_by_their_user_are_made_again(
    client: cassq.Client, connect: Connect
) -> None:
    queue = client.create_queue("jobs", max_deliveries=1, sick_check=False)
    popper = queue.popper()
    for payload, deleter in ((b"1", client), (b"2", connect()), (b"3", None)):
        push(queue, payload)
        popper.pop()[0].nack()
        popper.flush()
        (letter,) = drain(client.queue(DEAD).popper())
        assert letter.payload == payload
        if deleter is not None:
            deleter.delete_queue(DEAD)
    assert queue.audit().groups["default"].dead == 3


def test_dead_letters_of_several_clients_meet_in_one_queue(
    frail: cassq.Queue, connect: Connect
) -> None:
    push(frail, *numbers(6))
    poppers = [connect().queue("jobs").popper() for _ in range(3)]

    def all_dead() -> bool:
        for popper in poppers:
            for message in popper.pop():
                message.nack()
        return frail.stats().groups["default"].dead == 6

    eventually("all six are dead", all_dead)
    found = drain(connect().queue(DEAD).popper())
    assert sorted(payloads(found)) == numbers(6)


def test_a_live_change_of_the_limit_counts_for_messages_already_tried(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", max_deliveries=50, lease=0.5, sick_check=False)
    push(queue, b"x")
    popper = queue.popper()
    popper.pop()[0].nack()
    popper.pop()[0].nack()
    client.queue("jobs").update(max_deliveries=3)

    def dead() -> int:
        for message in popper.pop():
            message.nack()
        return queue.stats().groups["default"].dead

    assert eventually("it is given up", dead) == 1


def test_a_released_message_never_dies(frail: cassq.Queue, client: cassq.Client) -> None:
    push(frail, b"x")
    popper = frail.popper()
    for _ in range(10):
        popper.release(popper.pop())
    assert [queue.name for queue in client.queues()] == ["jobs"]


def test_a_strict_queue_goes_on_behind_a_dead_message(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp", max_deliveries=2, sick_check=False)
    push(queue, *numbers(3))
    popper = queue.popper()
    for _ in range(2):
        (head,) = popper.pop()
        assert head.payload == b"0"
        head.nack(error="bad")
    assert payloads(drain(popper)) == [b"1", b"2"]
    assert payloads(drain(client.queue(DEAD).popper())) == [b"0"]
    assert queue.audit().findings == []


def test_a_message_that_its_consumer_rejects_for_good_is_reported_as_rejected(
    frail: cassq.Queue, client: cassq.Client
) -> None:
    push(frail, b"bad")
    popper = frail.popper()
    (message,) = popper.pop()
    message.dead("of no use")
    popper.flush()
    (letter,) = client.queue(DEAD).popper().pop()
    death = json.loads(letter.headers["cassq-death"])
    assert (death["reason"], death["error"], death["deliveries"]) == ("rejected", "of no use", 1)
