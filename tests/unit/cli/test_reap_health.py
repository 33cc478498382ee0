"""The health of the reaper's daemon: whether its passes succeed lately."""

from __future__ import annotations

import pytest

from cassq.base.clock import ManualClock
from cassq.cli.ops.reap_health import PAUSES_MAX, SECONDS_MIN, ReapHealth
from cassq.errors import BackendTimeoutError


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize(
    ("every", "allowed"), [(0.1, SECONDS_MIN), (60.0, PAUSES_MAX * 60.0)], ids=["short", "long"]
)
def test_it_is_well_until_no_pass_has_succeeded_for_too_long(
    every: float, allowed: float, clock: ManualClock
) -> None:
    health = ReapHealth(every, clock)
    for _ in range(2):  # from its start, and from a pass that succeeded
        clock.advance(allowed)
        assert health.facts()["healthy"] is True
        clock.advance(0.001)
        assert health.facts()["healthy"] is False
        health.succeeded(0)
    assert health.facts()["healthy"] is True


def test_a_pass_that_fails_is_reported_and_leaves_the_last_success_where_it_was(
    clock: ManualClock,
) -> None:
    health = ReapHealth(10, clock)
    health.succeeded(2)
    before = health.facts()
    clock.advance(20)
    health.failed(BackendTimeoutError())
    health.failed(BackendTimeoutError("the catalog is locked"))
    after = health.facts()
    assert (before["passes"], before["failures"], before["undone"]) == (1, 0, 2)
    assert (after["passes"], after["failures"], after["seconds_since"]) == (3, 2, 20.0)
    assert after["last_success"] == before["last_success"]
    assert "the catalog is locked" in after["error"]
    clock.advance(11)
    assert health.facts()["healthy"] is False
    health.succeeded(0)
    assert (health.facts()["healthy"], health.facts()["error"]) == (True, "")
