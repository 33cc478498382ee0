"""Messages that are too old: they are not delivered, and the ledger says why."""

from __future__ import annotations

import pytest

import cassq
from cassq.base.clock import ManualClock
from cassq.lifecycle.expiry import expire
from tests.integration.stage import drain, numbers, payloads, push
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]

TTL = 60.0


@pytest.fixture
def brief(timed: cassq.Client) -> cassq.Queue:
    """A queue whose messages live a minute."""
    return timed.create_queue("jobs", message_ttl=TTL, claim_timeout=1000)


def expired(queue: cassq.Queue, group: str = "default") -> int:
    """How many messages have expired; the books must balance."""
    audit = queue.audit()
    assert audit.findings == []
    assert queue.stats().groups[group].expired == audit.groups[group].expired
    return audit.groups[group].expired


@pytest.mark.parametrize(("passed", "delivered"), [(TTL - 0.001, 3), (TTL, 0), (TTL + 0.001, 0)])
def test_a_message_is_delivered_until_it_is_too_old(
    brief: cassq.Queue, clock: ManualClock, passed: float, delivered: int
) -> None:
    push(brief, *numbers(3))
    clock.advance(passed)
    assert len(drain(brief.popper())) == delivered
    assert expired(brief) == 3 - delivered


@pytest.mark.parametrize("settings", [{"message_ttl": 9.0}, {"retain_unconsumed": 9.0}])
def test_both_limits_remove_what_nobody_consumed(
    timed: cassq.Client, clock: ManualClock, settings: dict[str, float]
) -> None:
    queue = timed.create_queue("jobs", **settings)
    push(queue, *numbers(2))
    clock.advance(9)
    assert queue.popper().pop() == []
    assert expired(queue) == 2


def test_the_young_behind_the_old_are_delivered_at_once(
    brief: cassq.Queue, clock: ManualClock
) -> None:
    with brief.pusher() as pusher:
        pusher.push_many(numbers(1000))
        clock.advance(TTL)
        pusher.push_many(numbers(5, 1000))
        assert payloads(brief.popper().pop(10)) == numbers(5, 1000)
    assert expired(brief) == 1000


def test_a_strict_queue_goes_on_behind_what_expired(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", message_ttl=TTL)
    push(queue, *numbers(3))
    clock.advance(TTL)
    push(queue, *numbers(3, 3))
    assert payloads(drain(queue.popper(), 1)) == numbers(3, 3)
    assert expired(queue) == 3


def test_what_was_given_back_expires_too(brief: cassq.Queue, clock: ManualClock) -> None:
    push(brief, *numbers(4))
    popper = brief.popper()
    messages = popper.pop(4)
    popper.commit([messages[1]])
    popper.rollback([messages[0], messages[2]])
    clock.advance(TTL)
    assert popper.pop(4) == []
    popper.commit([messages[3]])
    assert expired(brief) == 2
    assert brief.stats().groups["default"].committed == 2


def test_what_was_given_back_on_a_strict_queue_expires_too(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", consistency="cp", message_ttl=TTL)
    push(queue, *numbers(2))
    popper = queue.popper()
    popper.rollback(popper.pop(1))
    clock.advance(TTL)
    push(queue, b"young")
    assert payloads(drain(popper, 1)) == [b"young"]
    assert expired(queue) == 2


def test_what_a_popper_holds_does_not_expire(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs", message_ttl=TTL, claim_timeout=1000)
    push(queue, b"x")
    popper = queue.popper()
    messages = popper.pop()
    clock.advance(TTL)
    assert expire(timed.ports, queue.row) == 0
    popper.commit(messages)
    assert expired(queue) == 0


@pytest.mark.parametrize(("passed", "delivered"), [(TTL - 0.001, 1), (TTL, 0)])
def test_the_age_of_a_delayed_message_counts_from_its_due_time(
    brief: cassq.Queue, clock: ManualClock, passed: float, delivered: int
) -> None:
    with brief.pusher() as pusher:
        pusher.push(b"later", delay=500)
    clock.advance(500 + passed)
    assert len(drain(brief.popper())) == delivered
    assert expired(brief) == 1 - delivered


def test_a_queue_without_consumers_expires_too(
    brief: cassq.Queue, timed: cassq.Client, clock: ManualClock
) -> None:
    brief.create_group("second")
    with brief.pusher() as pusher:
        pusher.push_many(numbers(10))
        pusher.push_many(numbers(5), delay=30)
        assert expire(timed.ports, brief.row) == 0
        clock.advance(TTL)
        pusher.push(b"young")
        assert expire(timed.ports, brief.row) == 20
        clock.advance(30)
        assert expire(timed.ports, brief.row) == 10
    assert expired(brief) == expired(brief, "second") == 15
    assert payloads(drain(brief.popper())) == [b"young"]


def test_an_expired_pipe_is_retired(
    brief: cassq.Queue, timed: cassq.Client, clock: ManualClock
) -> None:
    push(brief, *numbers(10))
    clock.advance(TTL)
    expire(timed.ports, brief.row)
    timed.reaper.reap([brief.row])
    assert brief.stats().pipes["retired"] == 1
    assert expired(brief) == 10


def test_a_limit_set_later_holds_for_what_is_there(timed: cassq.Client, clock: ManualClock) -> None:
    queue = timed.create_queue("jobs")
    push(queue, b"x")
    popper = queue.popper()
    clock.advance(TTL)
    queue.update(message_ttl=TTL)
    assert popper.pop() == []
    assert expired(queue) == 1


def test_a_jump_of_the_wall_clock_expires_nothing(brief: cassq.Queue, clock: ManualClock) -> None:
    push(brief, *numbers(3))
    clock.jump_wall(86_400)
    clock.advance(1)
    assert len(drain(brief.popper())) == 3


def test_messages_of_many_ages_in_one_frame_expire_one_by_one(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Dead letters keep their push times, and meet in frames of their own."""
    queue = timed.create_queue("jobs", max_deliveries=1)
    with queue.pusher() as pusher:
        for payload in numbers(3):
            pusher.push(payload)
            clock.advance(10)
    popper = queue.popper()
    popper.dead(popper.pop(3))
    letters = timed.queue("jobs~default~dead")
    clock.advance(5)
    letters.update(message_ttl=TTL)
    assert len(letters.popper().pop(10)) == 3, "their age begins with their pipe"
