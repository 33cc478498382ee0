"""Schedules: which tick is next, what is made up for, and how a row is stored."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
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
    moved,
    next_step,
    passed_by,
    resumed,
    retimed,
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
def test_the_policy_says_which_missed_ticks_are_pushed_later(missed: Missed, step: Step) -> None:
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


# --- other times --------------------------------------------------------------------------------

DAY_MS = 24 * HOUR_MS
DAILY = replace(HOURLY, cron="@daily", next_ms=DAY_MS)


@pytest.mark.parametrize(
    ("cron", "next_ms"), [("@every 5m", 95 * MINUTE_MS), ("*/15 * * * *", 105 * MINUTE_MS)]
)
def test_with_other_times_the_next_tick_is_the_first_from_now_on(cron: str, next_ms: int) -> None:
    now_ms = 90 * MINUTE_MS
    row = retimed(DAILY, cron, "UTC", now_ms)
    assert (row.cron, row.next_ms) == (cron, next_ms)
    assert next_step(row, next_ms - 1) is None
    assert next_step(row, next_ms) == Step(next_ms)
    paused = retimed(replace(DAILY, paused=True), cron, "UTC", now_ms)
    assert paused.next_ms == next_ms


def test_the_same_times_change_nothing_and_the_zone_of_an_interval_not_its_pace() -> None:
    assert retimed(HOURLY, HOURLY.cron, "UTC", 90 * MINUTE_MS) is HOURLY
    every = replace(HOURLY, cron="@every 1h")
    vienna = retimed(every, "@every 1h", "Europe/Vienna", 90 * MINUTE_MS)
    assert vienna == replace(every, tz="Europe/Vienna")
    assert retimed(DAILY, "@daily", "Europe/Vienna", MINUTE_MS).next_ms == 23 * HOUR_MS


@pytest.mark.parametrize("missed", ["once", "all", "skip"])
def test_a_tick_that_is_due_stays_due_with_other_times_and_of_several_the_last(
    missed: Missed,
) -> None:
    now_ms = 3 * HOUR_MS + 10_000
    for due, kept in ((3, 3), (1, 3)):
        row = replace(HOURLY, missed=missed, next_ms=due * HOUR_MS)
        row = retimed(row, "* * * * *", "UTC", now_ms)
        assert next_step(row, now_ms) == Step(kept * HOUR_MS)
        late_ms = now_ms + GRACE_MS - 5_000
        skipped = "missed" if missed == "skip" else None
        assert next_step(row, late_ms) == Step(3 * HOUR_MS, skipped), "no new one was before now"
        row = fired(row, TickPlace(3 * HOUR_MS, "p", 0))
        assert row.next_ms == 3 * HOUR_MS + MINUTE_MS


def test_a_push_that_was_begun_is_finished_when_the_times_change() -> None:
    begun = replace(HOURLY, firing=PLACE, missed="all")
    row = retimed(begun, "@daily", "UTC", HOUR_MS + 1)
    assert next_step(row, HOUR_MS + 1) == Step(HOUR_MS)
    assert fired(row, PLACE).next_ms == DAY_MS
    row = retimed(begun, "@daily", "UTC", 3 * HOUR_MS + 1)
    assert fired(row, PLACE).next_ms == 3 * HOUR_MS, "the last that is due"


def test_other_times_bring_no_tick_again_by_a_clock_that_was_set_back() -> None:
    row = fired(HOURLY, TickPlace(HOUR_MS, "p", 0))
    assert retimed(row, "*/30 * * * *", "UTC", MINUTE_MS).next_ms == 90 * MINUTE_MS


def test_a_place_that_was_noted_keeps_its_queue_when_the_schedule_gets_another() -> None:
    first, second = (QueueRow(name, name, QueuePolicy(), 0, 0) for name in ("q1", "q2"))
    row = moved(HOURLY, second)
    assert (row.queue_id, row.queue, row.firing_queue_id) == ("q2", "q2", "")
    row = moved(replace(HOURLY, firing=PLACE), second)
    assert (row.queue_id, row.firing_queue_id) == ("q2", "q1")
    assert moved(row, first) == replace(HOURLY, firing=PLACE, queue="q1")
    assert fired(row, PLACE).firing_queue_id == ""


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


TIMES = ["@hourly", "@daily", "*/30 * * * *", "@every 7m"]


@given(
    st.sampled_from(["once", "all", "skip"]),
    st.lists(st.tuples(st.sampled_from(TIMES), st.integers(0, 30 * HOUR_MS)), max_size=12),
)
def test_with_whatever_times_and_clocks_no_tick_comes_twice(
    missed: Missed, changes: list[tuple[str, int]]
) -> None:
    row, passed = replace(HOURLY, missed=missed), list[int]()
    for cron, now_ms in changes:
        row = retimed(row, cron, "UTC", now_ms)
        assert row.next_ms > max(passed, default=0)
        for _ in range(100):
            if (step := next_step(row, now_ms)) is None:
                break
            passed.append(step.tick_ms)
            place = TickPlace(step.tick_ms, "p", 0)
            row = passed_by(row, step.tick_ms, step.skip) if step.skip else fired(row, place)
    assert passed == sorted(set(passed))


# --- as stored ----------------------------------------------------------------------------------

FULL = replace(
    HOURLY, payload=b"\xff\0", headers={"b": "ü", "a": "1"}, key=b"k", firing=PLACE, last=PLACE,
    skipped=SkippedTick(5, "missed"), paused=True, overlap="skip", missed="all", priority=7,
    since_ms=5, firing_queue_id="q0",
)  # fmt: skip


@pytest.mark.parametrize("row", [HOURLY, FULL])
def test_a_row_is_read_as_it_was_stored(row: ScheduleRow) -> None:
    assert decoded(encoded(row)) == row
    assert encoded(decoded(encoded(row))) == encoded(row)
    assert type(decoded(encoded(FULL)).firing) is TickPlace


def test_a_row_that_uses_nothing_new_is_stored_as_by_earlier_versions() -> None:
    """They would not touch it otherwise."""
    assert set(json.loads(encoded(HOURLY))) & {"priority", "since_ms", "firing_queue_id"} == set()
    assert set(json.loads(encoded(FULL))) == set(ScheduleRow.__dataclass_fields__)


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
