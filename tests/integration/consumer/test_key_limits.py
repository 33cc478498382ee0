"""Limits of each key: what has reached its limit holds up no other key."""

from __future__ import annotations

import pytest

import cassq
from cassq.base.clock import ManualClock
from tests.integration.consumer.keyed_stage import push, texts
from tests.integration.timed import clock, timed

__all__ = ["clock", "timed"]


@pytest.mark.parametrize("key_lanes", [1, 3])
def test_a_key_whose_rate_is_over_holds_up_no_other(
    timed: cassq.Client, clock: ManualClock, key_lanes: int
) -> None:
    queue = timed.create_queue("jobs", key_lanes=key_lanes)
    queue.create_group("keyed", rate_per_key="2/s")
    push(queue, ["a1", "a2", "a3"])
    popper = queue.popper("keyed")
    assert not popper.pop(1), "another popper may have handed some out before"
    clock.advance(0.5)
    assert texts(popper.pop(1)) == ["a1"]
    push(queue, ["b1"])
    assert texts(popper.pop(1)) == ["b1"]
    clock.advance(0.5)
    assert texts(popper.pop(9)) == ["a2"]
