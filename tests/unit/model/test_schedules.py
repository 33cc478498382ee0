"""Schedules: which tick is next, what is made up for, and how a row is stored."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.model.schedules import (
    GRACE_MS,
    ScheduleRow,
    SkippedTick,
    Step,
    TickPlace,
    decoded,
    encoded,
    fired,
    iso_time,
    next_step,
    passed_by,
    resumed,
)
from cassq.settings import Missed

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
HOURLY = ScheduleRow("s1", "tidy", "q1", "jobs", "@hourly", "UTC", 0, HOUR_MS)
PLACE = TickPlace(HOUR_MS, "p", 7)


@pytest.mark.parametrize(
    ("now_ms", "step"),
    [(HOUR_MS - 1, None), (HOUR_MS, Step(HOUR_MS)), (HOUR_MS + GRACE_MS, Step(HOUR_MS))],
)
@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_tick_is_pushed_from_its_time_on(now_ms: int, step: Step | None, missed: Missed) -> None:
    assert next_step(replace(HOURLY, missed=missed), now_ms) == step


@pytest.mark.parametrize(
    ("missed", "step"),
    [
        ("all", Step(HOUR_MS)),
        ("once", Step(3 * HOUR_MS)),
        ("skip", Step(3 * HOUR_MS, "missed")),
    ],
)
def test_of_ticks_that_nobody_pushed_the_policy_says_which_are_made_up_for(
    missed: Missed, step: Step
) -> None:
    assert next_step(replace(HOURLY, missed=missed), 3 * HOUR_MS + GRACE_MS + 1) == step


@pytest.mark.parametrize("missed", ["once", "skip"])
def test_ticks_that_are_not_late_are_all_pushed(missed: Missed) -> None:
    row = replace(HOURLY, cron="@every 10s", created_ms=0, next_ms=10_000, missed=missed)
    now_ms = 3 * HOUR_MS
    step = next_step(row, now_ms)
    assert step is not None
    assert step.tick_ms == now_ms - GRACE_MS - 10_000, "the last of those that are late"
    row = passed_by(row, step.tick_ms, "missed")
    pushed = []
    while (step := next_step(row, now_ms)) is not None:
        pushed.append(step.tick_ms)
        row = fired(row, TickPlace(step.tick_ms, "p", 0))
    assert pushed == list(range(now_ms - GRACE_MS, now_ms + 1, 10_000))


def test_a_push_that_was_begun_comes_first_however_late() -> None:
    row = replace(HOURLY, missed="skip", firing=PLACE)
    assert next_step(row, 9 * HOUR_MS) == Step(HOUR_MS)
    assert next_step(row, 0) == Step(HOUR_MS), "also by a clock that was set back"


def test_a_paused_schedule_does_nothing_and_misses_nothing() -> None:
    row = replace(HOURLY, paused=True, missed="all")
    assert next_step(row, 9 * HOUR_MS) is None
    assert next_step(replace(row, firing=PLACE), 9 * HOUR_MS) is None
    again = resumed(row, 9 * HOUR_MS)
    assert (again.paused, again.next_ms) == (False, 10 * HOUR_MS)
    assert resumed(row, 0).next_ms == HOUR_MS
    assert resumed(replace(row, next_ms=5 * HOUR_MS), 0).next_ms == 5 * HOUR_MS, (
        "it never goes back"
    )


def test_a_settled_tick_moves_on_to_the_next() -> None:
    row = fired(replace(HOURLY, firing=PLACE), PLACE)
    assert (row.next_ms, row.firing, row.last) == (2 * HOUR_MS, None, PLACE)
    skipped = passed_by(row, 2 * HOUR_MS, "overlap")
    assert (skipped.next_ms, skipped.last) == (3 * HOUR_MS, PLACE)
    assert skipped.skipped == SkippedTick(2 * HOUR_MS, "overlap")


def test_the_next_tick_never_goes_back_when_an_old_one_is_settled() -> None:
    """It was resumed while a tick was being pushed."""
    row = replace(HOURLY, firing=PLACE, next_ms=9 * HOUR_MS)
    assert fired(row, PLACE).next_ms == 9 * HOUR_MS


@given(
    st.sampled_from(["once", "all", "skip"]),
    st.lists(st.integers(0, 100 * HOUR_MS), max_size=30),
)
def test_by_whatever_clock_no_tick_comes_twice(missed: Missed, clocks: list[int]) -> None:
    row, pushed = replace(HOURLY, missed=missed), list[int]()
    for now_ms in clocks:
        while (step := next_step(row, now_ms)) is not None:
            assert step.tick_ms <= now_ms
            if step.skip:
                row = passed_by(row, step.tick_ms, step.skip)
            else:
                pushed.append(step.tick_ms)
                row = fired(row, TickPlace(step.tick_ms, "p", 0))
    assert pushed == sorted(set(pushed))
    if missed == "all" and clocks:
        assert pushed == list(range(HOUR_MS, max(clocks) + 1, HOUR_MS))


# --- as stored ----------------------------------------------------------------------------------

FULL = replace(
    HOURLY, payload=b"\xff\0", headers={"b": "ü", "a": "1"}, key=b"k", firing=PLACE, last=PLACE,
    skipped=SkippedTick(5, "missed"), paused=True, overlap="skip", missed="all",
)  # fmt: skip


@pytest.mark.parametrize("row", [HOURLY, FULL])
def test_a_row_is_read_as_it_was_stored(row: ScheduleRow) -> None:
    assert decoded(encoded(row)) == row
    assert encoded(decoded(encoded(row))) == encoded(row)
    assert type(decoded(encoded(FULL)).firing) is TickPlace


def test_a_row_of_a_later_version_is_read_but_not_taken_for_ours() -> None:
    later = encoded(FULL)[:-1] + ',"zeal":1}'
    assert decoded(later) == FULL
    assert encoded(decoded(later)) != later


def test_the_headers_of_a_tick_name_it() -> None:
    found = FULL.headers_at(HOUR_MS)
    assert found["cassq-schedule"] == "tidy"
    assert found["cassq-tick"] == "1970-01-01T01:00:00Z"
    assert found["b"] == "ü"
    assert iso_time(1500) == "1970-01-01T00:00:01.500Z"
