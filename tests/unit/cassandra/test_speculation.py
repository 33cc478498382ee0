"""Speculative requests: for one slow server, not for many."""

from __future__ import annotations

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.speculation import (
    OVERLOADED_MS,
    REMEMBERED,
    SHARE_MAX,
    SPECULATE_SECONDS,
    Speculation,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def speculation(clock: ManualClock) -> Speculation:
    return Speculation(SPECULATE_SECONDS, clock.boot_ms)


def test_a_slow_request_is_sent_to_one_more_server(speculation: Speculation) -> None:
    plan = speculation.new_plan(None, None)
    assert plan.next_execution(None) == SPECULATE_SECONDS
    assert plan.next_execution(None) == -1


def test_zero_seconds_turn_it_off(clock: ManualClock) -> None:
    assert Speculation(0.0, clock.boot_ms).delay() == -1


def test_when_all_requests_are_slow_few_are_doubled(speculation: Speculation) -> None:
    """A server that has too much to do is not helped by twice as much."""
    doubled = 0
    for _ in range(50 * REMEMBERED):
        allowed = speculation.delay() >= 0
        speculation.note(doubled=allowed)
        doubled += allowed
    assert 0 < doubled <= 50 * REMEMBERED * SHARE_MAX * 1.2


def test_an_overloaded_server_ends_it_for_a_while(
    speculation: Speculation, clock: ManualClock
) -> None:
    speculation.note_overload()
    assert speculation.delay() == -1
    clock.advance(OVERLOADED_MS / 1000)
    assert speculation.delay() == SPECULATE_SECONDS
