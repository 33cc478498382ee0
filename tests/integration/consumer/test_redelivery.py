"""Giving back: rollback, nack and release, now or later, counted or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.consumer.claiming.claimer import BURIED_AT_ONCE
from cassq.errors import ClaimLostError, UsageError
from tests.integration.deadlines import eventually, ticks
from tests.integration.stage import Connect, alone, drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def test_a_nacked_message_comes_again_with_its_attempts_counted(queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    for attempt in range(1, 5):
        (message,) = popper.pop(wait=30)  # it slows down, while nothing succeeds
        assert message.attempts == attempt
        message.nack()


@pytest.mark.parametrize("verb", ["nack", "release"])
def test_what_is_given_back_is_written_by_itself(
    client: cassq.Client, connect: Connect, verb: str
) -> None:
    """Within 50 ms, though its popper does nothing more."""
    queue = client.create_queue("jobs", claim_timeout=3600)
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    getattr(message, verb)()
    (again,) = connect().queue("jobs").popper().pop(wait=30)
    assert (again.id, again.attempts) == (message.id, 2 if verb == "nack" else 1)


def test_a_retry_schedule_delays_by_the_number_of_failures(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", retry_schedule=[0.1, 3600])
    push(queue, b"x")
    popper = queue.popper()
    catalog = popper._catalog
    (message,) = popper.pop()
    since_ms = catalog.now_ms()
    message.nack()
    (again,) = popper.pop(wait=30)
    assert catalog.now_ms() - since_ms >= 100
    again.nack()
    assert popper.pop() == []
    assert queue.stats().groups["default"].delayed == 1


def test_a_nacked_message_is_given_to_any_member(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    message.nack()
    popper.flush()
    (again,) = connect().queue("jobs").popper().pop()
    assert (again.id, again.attempts) == (message.id, 2)


def test_what_failed_goes_behind_what_is_waiting(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    popper = queue.popper()
    popper.rollback(popper.pop())
    assert payloads(drain(popper, 1)) == [b"1", b"2", b"3", b"0"]


def test_messages_pushed_after_a_failure_go_behind_it(queue: cassq.Queue) -> None:
    push(queue, b"failed")
    popper = queue.popper()
    popper.rollback(popper.pop())
    ticks(3)
    push(queue, b"pushed later")
    assert payloads(drain(popper, 1)) == [b"failed", b"pushed later"]


def test_messages_given_back_untried_go_in_front(queue: cassq.Queue) -> None:
    push(queue, *numbers(4))
    popper = queue.popper()
    popper.release(popper.pop())
    assert payloads(drain(popper, 1)) == numbers(4)


def test_a_released_message_comes_again_as_if_never_tried(queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    for _ in range(30):  # three times what may be delivered
        (message,) = popper.pop()
        assert message.attempts == 1
        message.release()
    popper.commit(popper.pop())
    assert queue.stats().groups["default"].committed == 1


def test_a_delayed_message_is_delivered_at_its_due_time(queue: cassq.Queue) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    catalog = popper._catalog
    since_ms = catalog.now_ms()
    message.nack(delay=0.2)
    (again,) = popper.pop(1, wait=30)
    assert catalog.now_ms() - since_ms >= 200
    assert (again.payload, again.attempts) == (b"x", 2)


def test_a_delayed_message_holds_up_no_other(queue: cassq.Queue) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    messages = popper.pop(3)
    messages[0].nack(delay=3600)
    popper.rollback(messages[1:2], delay=3600)
    messages[2].nack()
    assert payloads(drain(popper)) == [b"2"]
    stats = queue.stats().groups["default"]
    assert (stats.waiting, stats.committed) == (2, 1)


@pytest.mark.parametrize("delay", [-1, -0.01, float("nan"), float("inf"), "1", True, 10**12])
def test_a_delay_that_makes_no_sense_is_refused_and_changes_nothing(
    queue: cassq.Queue, delay: Any
) -> None:
    push(queue, b"x")
    popper = queue.popper()
    (message,) = popper.pop()
    for verb in (lambda: message.nack(delay=delay), lambda: popper.rollback([message], delay)):
        with pytest.raises(UsageError, match="delay"):
            verb()
    popper.commit([message])
    assert queue.stats().groups["default"].committed == 1


def test_a_rollback_gives_back_all_of_them_in_order(queue: cassq.Queue) -> None:
    push(queue, *numbers(20))
    popper = queue.popper()
    popper.rollback(popper.pop(20))
    again = drain(popper)
    assert payloads(again) == numbers(20)
    assert {message.attempts for message in again} == {2}


def test_a_rollback_of_some_leaves_the_others_out(queue: cassq.Queue) -> None:
    push(queue, *numbers(6))
    popper = queue.popper()
    messages = popper.pop(6)
    popper.rollback([messages[4], messages[1]])
    popper.rollback([])
    assert payloads([*popper.pop(), *popper.pop()]) == [b"1", b"4"]
    assert popper.pop() == []
    popper.commit([messages[n] for n in (0, 2, 3, 5)])
    assert queue.audit().findings == []
    assert queue.stats().groups["default"].pending == 2


def test_giving_back_takes_acks_not_yet_written_along(queue: cassq.Queue, connect: Connect) -> None:
    push(queue, *numbers(3))
    popper = queue.popper()
    first, second, third = popper.pop(3)
    first.ack()
    second.nack()
    popper.flush()
    stats = connect().queue("jobs").stats().groups["default"]
    assert (stats.waiting, stats.pending, stats.committed) == (1, 1, 1)
    third.ack()


def test_every_mix_of_verbs_on_one_claim_balances(queue: cassq.Queue) -> None:
    push(queue, *numbers(60))
    popper = queue.popper()
    for n, message in enumerate(popper.pop(60)):
        match n % 6:
            case 0:
                message.ack()
            case 1:
                message.nack()
            case 2:
                message.release()
            case 3:
                message.nack(delay=3600)
            case 4:
                message.extend(60)
    popper.flush()
    audit = queue.audit()
    assert audit.findings == []
    again = drain(popper)
    attempts = {int(message.payload) % 6: message.attempts for message in again}
    assert attempts == {1: 2, 2: 1}
    stats = queue.audit().groups["default"]
    assert (stats.waiting, stats.pending, stats.committed) == (10, 20, 30)


def test_what_failed_is_handed_out_with_what_waits(queue: cassq.Queue) -> None:
    """One pop, in line: a few failures do not cost a pop of their own."""
    push(queue, *numbers(60))
    popper = queue.popper()
    first = popper.pop(60)
    with_errors = [first[7], first[30]]
    popper.commit([message for message in first if message not in with_errors])
    popper.rollback(with_errors, delay=0.001)
    eventually("they come due", lambda: bool(popper._claimer._due_now(popper._clock.boot_ms())))
    ticks(5)  # the two clocks that tell which came first have their grain
    push(queue, *numbers(100))
    again = popper.pop(60)
    assert [message.attempts for message in again] == [2, 2] + [1] * 58
    assert {message.id for message in again[:2]} == {message.id for message in with_errors}
    popper.commit(again)
    popper.commit(popper.pop(60))
    assert queue.stats().groups["default"].waiting == 0


def test_what_failed_a_moment_ago_is_not_read_again(
    queue: cassq.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(queue, *numbers(50))
    popper = queue.popper()
    messages = popper.pop(50)
    for message in messages[10:13]:
        message.nack(error="no")
    popper.commit([*messages[:10], *messages[13:]])
    monkeypatch.setattr("cassq.consumer.claiming.redelivery.read_left", unread)
    again = popper.pop(50)
    assert [message.payload for message in again] == numbers(50)[10:13]
    assert [message.pushed_at for message in again] == [m.pushed_at for m in messages[10:13]]


def test_each_failed_message_is_recorded_with_its_own_error_and_delay(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs", retry_schedule=[3600])
    push(queue, *numbers(6))
    popper = queue.popper()
    messages = popper.pop(6)
    error = ValueError("first")
    for message, text in zip(messages[:2], ("first", "second"), strict=True):
        error.args = (text,)
        message.nack(error=error)
    for message, delay in zip(messages[2:5], (None, None, 1800.0), strict=True):
        message.nack(delay, error="third")
    messages[5].nack()
    popper.flush()
    rows = popper._catalog.claims.rows(popper._group().id, messages[0].pipe_id)
    errors = {seq: json.loads(row.failure)["error"] for row in rows for seq in row.left}
    wanted = ["ValueError: first", "ValueError: second", "third", "third", "third", ""]
    assert errors == dict(enumerate(wanted))
    soonest = min(row.due_ms for row in rows)
    assert [list(row.left) for row in rows if row.due_ms == soonest] == [[4]]


def unread(*_: Any) -> Any:
    raise AssertionError("a frame was read again")


def test_many_that_are_given_up_do_not_keep_others_waiting(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    """They become dead letters bit by bit; what waits is handed out meanwhile."""
    alone(client)
    count = 3 * BURIED_AT_ONCE
    push(queue, *numbers(count + 1))
    popper = queue.popper()
    popper.dead(popper.pop(count), "all of them")
    letters = queue.dead_letters()
    assert len(letters.peek(count)) == BURIED_AT_ONCE
    (message,) = popper.pop()
    assert message.payload == numbers(count + 1)[-1]
    message.ack()
    eventually("all are there", lambda: popper.pop() == [] and len(letters.peek(count)) == count)
    assert {letter.death["error"] for letter in letters.peek(count)} == {"all of them"}


def test_a_message_that_was_given_back_cannot_be_acked(queue: cassq.Queue) -> None:
    push(queue, *numbers(2))
    popper = queue.popper()
    first, second = popper.pop(2)
    second.ack()
    first.nack(delay=0)
    with pytest.raises(ClaimLostError):
        first.ack()
    with pytest.raises(ClaimLostError):
        popper.commit([first])
    assert payloads(popper.pop(5)) == [b"0"]


def test_what_was_claimed_ahead_is_not_counted_as_delivered(
    timed: cassq.Client,
) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(50))
    popper = queue.popper()
    messages = iter(popper)
    for _ in range(2):
        next(messages).ack()
    popper.flush()
    assert queue.stats().groups["default"].pending > 2, "some are claimed ahead"
    popper.close()
    again = queue.popper().pop(100)
    assert len(again) == 48
    assert {message.attempts for message in again} == {1}


def test_what_may_have_failed_its_batch_is_handed_out_alone(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """A suspect has nothing beside it, in front or behind."""
    queue = timed.create_queue("jobs", sick_check=False)
    push(queue, b"a", b"b")
    popper = queue.popper()
    for delay in (0, 5):
        popper.rollback(popper.pop(2), delay=delay)
    push(queue, b"c")
    (last,) = popper.pop(10)
    assert last.payload == b"c"
    last.nack(delay=6)
    popper.flush()
    clock.advance(10)
    for expected in ([b"a"], [b"b"], [b"c"]):
        messages = popper.pop(10)
        assert payloads(messages) == expected
        popper.commit(messages)
