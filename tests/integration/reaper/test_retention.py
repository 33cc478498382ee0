"""Retention: consumed pipes are kept for groups that are made later."""

from __future__ import annotations

import cassq
from cassq.base.clock import ManualClock
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


def test_a_group_made_within_the_retention_gets_what_was_consumed(
    timed: cassq.Client, clock: ManualClock
) -> None:
    queue = timed.create_queue("jobs", retain_consumed=3600, max_push_time_of_pipe=10)
    push(queue, *numbers(3))
    assert len(drain(queue.popper())) == 3
    clock.advance(3600)
    reap(timed)
    queue.create_group("late")
    assert payloads(drain(queue.popper("late"))) == numbers(3)
    clock.advance(20)
    reap(timed)
    assert queue.stats().pipes["retired"] == 1
    assert queue.audit().findings == []


def test_without_retention_a_consumed_pipe_goes_at_once(timed: cassq.Client) -> None:
    queue = timed.create_queue("jobs")
    push(queue, *numbers(3))
    drain(queue.popper())
    reap(timed)
    queue.create_group("late")
    assert drain(queue.popper("late")) == []
