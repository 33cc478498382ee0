"""A message that fails alone in a group of which nothing has ever succeeded: kept, and said so, for
as long as `sick_hold` says."""

from __future__ import annotations

import logging

import pytest

import cassq
from cassq.base.clock import ManualClock
from tests.integration.stage import push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.mark.parametrize("consistency", ["ap", "cp"])
@pytest.mark.parametrize("buried_by", ["popper", "reaper"])
def test_one_failing_message_in_a_new_queue_dies_when_it_was_kept_for_long_enough(
    timed: cassq.Client,
    clock: ManualClock,
    consistency: str,
    buried_by: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = timed.create_queue("jobs", consistency=consistency, max_deliveries=3, sick_hold=60)
    (name,) = push(queue, b"x")
    popper = queue.popper()
    attempts: list[int] = []
    begun_ms = timed.ports.catalog.now_ms()

    def go_on_until(seconds: float) -> None:
        while timed.ports.catalog.now_ms() < begun_ms + seconds * 1000:
            for message in popper.pop():
                attempts.append(message.attempts)
                message.nack(error=ValueError("no such user"))
                popper.flush()
            clock.advance(0.5)

    go_on_until(59)
    assert queue.stats().groups["default"].dead == 0
    assert max(attempts) > 3
    text = " ".join(queue.explain(name).groups["default"][-1].next)
    assert "as often as max_deliveries (3) allows" in text
    assert "(sick_check)" in text
    assert "(sick_hold)" in text
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    said = [r for r in warnings if "sick_check" in r.getMessage()]
    assert len(said) == 1, "once, not with each failure"
    if buried_by == "popper":
        go_on_until(62)
    else:
        clock.advance(3)
        reap(timed)
    assert queue.stats().groups["default"].dead == 1
    (letter,) = queue.dead_letters().peek()
    assert letter.death["error"] == "ValueError: no such user"


def test_a_group_that_once_succeeded_keeps_a_failing_message_until_it_succeeds_again(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", max_deliveries=2, sick_hold=1)
    push(queue, b"well")
    popper = queue.popper()
    popper.commit(popper.pop())
    clock.advance(1)
    push(queue, b"x")
    for _ in range(10):
        for message in popper.pop():
            message.nack()
            popper.flush()
        clock.advance(30)
    reap(timed)
    stats = queue.stats().groups["default"]
    assert (stats.waiting, stats.dead) == (1, 0)


def test_in_a_strict_queue_a_failing_message_makes_way_without_the_sick_check_alone(
    timed: cassq.Client, clock: ManualClock
) -> None:
    """Behind it nothing can succeed that would show that the consumer is well."""
    for name, checks in (("held", True), ("passed", False)):
        queue = timed.create_queue(name, consistency="cp", max_deliveries=2, sick_check=checks)
        push(queue, b"well", b"bad", b"next")
        popper = queue.popper()
        popper.commit(popper.pop())
        clock.advance(1)
        for _ in range(10):
            for message in popper.pop():
                if message.payload == b"bad":
                    message.nack()
                else:
                    message.ack()
                popper.flush()
            clock.advance(40)
        popper.close()
        reap(timed)
        stats = queue.stats().groups["default"]
        assert (stats.waiting, stats.committed, stats.dead) == ((2, 1, 0) if checks else (0, 2, 1))
