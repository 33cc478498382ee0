"""A sick group keeps its messages; a poisonous message among good ones does not."""

from __future__ import annotations

import pytest

import cassq
from cassq.errors import ClaimLostError, QueueNotFoundError
from cassq.message.columns import COLUMN_BYTES_MAX
from tests.integration.deadlines import eventually
from tests.integration.stage import alone, drain, numbers, payloads, push

DEAD = "jobs~default~dead"


@pytest.fixture(autouse=True)
def no_other_passes(client: cassq.Client) -> None:
    """What the client's reaper is burying in passing, the test would find nowhere for a moment."""
    alone(client)


def fail(popper: cassq.Popper, times: int) -> None:
    """Take one message and fail it, again and again."""
    for _ in range(times):
        (message,) = popper.pop(wait=30)
        popper.rollback([message])


@pytest.fixture
def frail(client: cassq.Client) -> cassq.Queue:
    return client.create_queue("jobs", max_deliveries=2)


def test_while_nothing_succeeds_nothing_is_given_up(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    push(frail, b"x")
    popper = frail.popper()
    fail(popper, 6)
    (message,) = popper.pop(wait=30)
    assert message.attempts == 7
    with pytest.raises(QueueNotFoundError):
        client.queue(DEAD)
    popper.commit([message])
    assert frail.audit().findings == []


def test_once_something_succeeds_what_fails_is_given_up(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    push(frail, b"bad")
    popper = frail.popper()
    fail(popper, 4)
    push(frail, b"good")
    done: list[bytes] = []

    def both_over() -> bool:
        for message in popper.pop(10):
            if message.payload == b"bad":
                popper.rollback([message])
            else:
                popper.commit([message])
                done.append(message.payload)
        stats = frail.stats().groups["default"]
        return stats.waiting + stats.pending == 0

    eventually("the bad one is given up", both_over)
    assert done == [b"good"]
    assert payloads(drain(client.queue(DEAD).popper())) == [b"bad"]
    assert frail.audit().findings == []


def test_a_success_before_the_failure_does_not_count(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    popper = frail.popper()
    push(frail, b"good")
    popper.commit(popper.pop(wait=30))
    eventually("a moment later", lambda: not popper.pop(1, wait=0.01))
    push(frail, b"x")
    fail(popper, 5)
    with pytest.raises(QueueNotFoundError):
        client.queue(DEAD)


def test_redelivery_slows_down_while_nothing_succeeds(frail: cassq.Queue) -> None:
    push(frail, b"x")
    popper = frail.popper()
    fail(popper, 4)
    messages = popper.pop(wait=30)
    failed_ms = frail._ports.catalog.now_ms()
    popper.rollback(messages)
    due_ms = frail._ports.catalog.claims.next_due_ms(popper._group().id)
    assert due_ms is not None
    assert due_ms - failed_ms > 200, "50 ms, doubled with each failure"


def test_it_can_be_turned_off(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_deliveries=2, sick_check=False)
    push(queue, b"x")
    fail(queue.popper(), 2)
    assert payloads(drain(client.queue(DEAD).popper())) == [b"x"]


def test_a_message_given_up_by_its_consumer_becomes_a_dead_letter_anyway(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    push(frail, b"x", b"y")
    popper = frail.popper()
    first, second = popper.pop(2)
    first.dead("no such customer")
    popper.dead([second], "nor this one")
    letters = {m.payload: m.headers["cassq-death"] for m in drain(client.queue(DEAD).popper())}
    assert set(letters) == {b"x", b"y"}
    assert '"reason":"rejected"' in letters[b"x"]
    assert "no such customer" in letters[b"x"]
    assert "nor this one" in letters[b"y"]
    stats = frail.audit().groups["default"]
    assert (stats.dead, stats.waiting, stats.committed) == (2, 0, 0)


def test_what_a_sick_consumer_nacked_is_kept_for_when_it_is_well(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", max_deliveries=2)
    push(queue, *numbers(5))
    popper, attempts = queue.popper(), dict[bytes, int]()
    while len(attempts) < 5 or min(attempts.values()) < 3:
        for message in popper.pop(1, wait=30):
            attempts[message.payload] = message.attempts
            message.nack(error="the database is down")
    popper.flush()
    found: list[bytes] = []
    while len(found) < 5:
        messages = popper.pop(1, wait=30)
        assert messages, queue.stats()
        found += payloads(messages)
        popper.commit(messages)
    assert sorted(found) == numbers(5)
    with pytest.raises(QueueNotFoundError):
        client.queue(DEAD)


def test_a_success_right_after_a_noted_one_is_noted_later(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    """Successes are noted once a second; the last one must not be forgotten."""
    push(frail, b"first", b"bad", b"second")
    popper = frail.popper()
    popper.commit(popper.pop())
    (bad,) = popper.pop()
    popper.rollback([bad])
    while not (messages := popper.pop(wait=30)) or messages[0].payload != b"second":
        popper.rollback(messages)
    popper.commit(messages)
    popper.close()
    other = frail.popper()
    fail(other, 1)
    eventually("the bad one is given up", lambda: gave_up(client, other))


def gave_up(client: cassq.Client, popper: cassq.Popper) -> bool:
    """Fail whatever there is; whether a dead letter has come of it."""
    popper.rollback(popper.pop())
    try:
        return bool(client.queue(DEAD).stats().pushed)
    except QueueNotFoundError:
        return False


def test_words_of_an_error_are_words(client: cassq.Client, frail: cassq.Queue) -> None:
    """They stand in the same record as the marks of a message's fate."""
    push(frail, b"x")
    popper = frail.popper()
    for error in ("doomed", "moving", "leaving", '"doomed":', '{"moving": true}'):
        (message,) = popper.pop(wait=30)
        message.nack(error=error)
    (message,) = popper.pop(wait=30)
    assert message.attempts == 6
    popper.commit([message])
    assert frail.audit().findings == []


def test_one_message_given_back_does_not_keep_the_others_from_being_committed(
    frail: cassq.Queue,
) -> None:
    push(frail, *numbers(10))
    popper = frail.popper()
    messages = popper.pop(10)
    messages[3].nack()
    with pytest.raises(ClaimLostError):
        popper.commit(messages)
    assert frail.stats().groups["default"].committed == 9


def test_a_message_with_headers_as_large_as_they_may_be_can_die(
    client: cassq.Client, frail: cassq.Queue
) -> None:
    with frail.pusher() as pusher:
        pusher.push(b"x", headers={"h": "a" * (COLUMN_BYTES_MAX - 10)})
    (message,) = frail.popper().pop()
    message.dead("x" * 4096)
    eventually("it is a dead letter", lambda: frail.stats().groups["default"].dead == 1)
    (letter,) = drain(client.queue(DEAD).popper())
    assert len(letter.headers["h"]) == COLUMN_BYTES_MAX - 10
