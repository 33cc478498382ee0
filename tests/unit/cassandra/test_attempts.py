"""Attempts at a compare-and-set: the second at once, then after pauses, and not for ever."""

from __future__ import annotations

from cassq.base.clock import ManualClock
from cassq.cassandra.tries import ATTEMPTS_MAX, PAUSE_MAX, attempts


def test_the_second_attempt_follows_at_once() -> None:
    clock = ManualClock()
    before_ms = clock.boot_ms()
    assert len(list(attempts(clock, 2))) == 2
    assert clock.boot_ms() == before_ms


def test_each_further_attempt_comes_after_a_pause_and_they_end() -> None:
    clock = ManualClock()
    before_ms = clock.boot_ms()
    times_ms = [clock.boot_ms() for _ in attempts(clock, ATTEMPTS_MAX)]
    pauses_ms = [b - a for a, b in zip([before_ms, *times_ms], times_ms, strict=False)]
    assert len(times_ms) == ATTEMPTS_MAX
    assert max(pauses_ms) <= PAUSE_MAX * 1000
    assert len(set(pauses_ms)) > 2, "they are random"
    assert sum(pauses_ms[-10:]) > sum(pauses_ms[:6]), "and grow"
