"""History: samples, what longer steps are made of, and rates, all pure."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cassq.inspect.history import (
    DAY_MS,
    FINER,
    HOUR_MS,
    KEPT_MS,
    MINUTE_MS,
    STEPS,
    coarser,
    points,
    rates_of,
    sampled,
)
from cassq.inspect.stats import GroupStats, QueueStats
from cassq.model.rows import Sample

NOON_MS = 1_800_000_000_000 - 1_800_000_000_000 % DAY_MS + 12 * HOUR_MS


def sample(at_ms: int, pushed: int = 0, late_ms: int = 0, **depths: float) -> Sample:
    """A minute's sample, taken `late_ms` after its beginning."""
    data = {"taken_ms": at_ms + late_ms, "totals": {"pushed": pushed}}
    return Sample("s", MINUTE_MS, at_ms, json.dumps({**data, "depths": depths, "most": depths}))


def data(found: Sample) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(found.data)
    return printed


# --- samples ----------------------------------------------------------------------------------


def test_a_sample_has_the_totals_and_depths_of_its_moment() -> None:
    group = GroupStats(waiting=7, delayed=2, pending=3, committed=90, dead=4, pushed=104)
    group.deliveries, group.oldest_age = {0: 5, 1: 3, 2: 2}, 1.5
    stats = QueueStats("q", "ap", pushed=110, groups={"g": group, "gone": GroupStats()})
    of_group, of_queue = sampled(stats, {"g": "id of g"}, "id of q", NOON_MS + 61_234)
    assert of_group.subject == "id of g"
    assert of_group.step_ms == MINUTE_MS
    assert of_group.at_ms == of_queue.at_ms == NOON_MS + 60_000
    found = data(of_group)
    assert found["taken_ms"] == NOON_MS + 61_234
    assert found["totals"]["pushed"] == 104
    assert found["totals"]["popped"] == 90 + 4 + 3 + 2, "committed, dead, and tried"
    expected = {"waiting": 7, "delayed": 2, "pending": 3, "oldest_age": 1.5}
    assert found["depths"] == found["most"] == expected
    assert of_queue.subject == "id of q"
    assert data(of_queue)["totals"] == {"pushed": 110}


def test_an_age_that_is_not_there_is_left_out() -> None:
    stats = QueueStats("q", "ap", groups={"g": GroupStats()})
    assert "oldest_age" not in data(sampled(stats, {"g": "id"}, "q", NOON_MS)[0])["depths"]


# --- longer steps -----------------------------------------------------------------------------


@pytest.mark.parametrize(("until_ms", "made"), [(HOUR_MS - 1, 0), (HOUR_MS, 1), (HOUR_MS + 1, 1)])
def test_an_hour_is_made_when_it_is_over(until_ms: int, made: int) -> None:
    minutes = [sample(NOON_MS + n * MINUTE_MS) for n in (0, 59)]
    assert len(coarser(minutes, HOUR_MS, NOON_MS + until_ms)) == made


def test_an_hour_has_its_last_totals_and_its_largest_depths() -> None:
    minutes = [
        sample(NOON_MS - MINUTE_MS, 1, waiting=99),
        sample(NOON_MS, 10, waiting=5),
        sample(NOON_MS + 20 * MINUTE_MS, 20, waiting=8, oldest_age=3.0),
        sample(NOON_MS + 59 * MINUTE_MS, 30, waiting=6, pending=1),
        sample(NOON_MS + HOUR_MS, 99, waiting=98),
    ]
    before, noon = coarser(minutes, HOUR_MS, NOON_MS + HOUR_MS)
    assert (before.at_ms, noon.at_ms) == (NOON_MS - HOUR_MS, NOON_MS)
    assert (noon.subject, noon.step_ms) == ("s", HOUR_MS)
    assert data(noon)["totals"] == {"pushed": 30}
    assert data(noon)["taken_ms"] == NOON_MS + 59 * MINUTE_MS
    assert data(noon)["depths"] == {"waiting": 6, "pending": 1}
    assert data(noon)["most"] == {"waiting": 8, "oldest_age": 3.0, "pending": 1}


def test_days_are_made_of_hours_and_keep_the_largest_of_all_looks() -> None:
    minutes = [sample(NOON_MS, 1, waiting=50), sample(NOON_MS + MINUTE_MS, 2, waiting=3)]
    minutes += [sample(NOON_MS + HOUR_MS, 3, waiting=4)]
    hours = coarser(minutes, HOUR_MS, NOON_MS + 2 * HOUR_MS)
    (day,) = coarser(hours, DAY_MS, NOON_MS + DAY_MS)
    assert day.at_ms == NOON_MS - 12 * HOUR_MS
    assert data(day)["most"] == {"waiting": 50}
    assert data(day)["depths"] == {"waiting": 4}
    assert data(day)["totals"] == {"pushed": 3}


def test_the_same_samples_make_the_same_hour_in_every_process() -> None:
    minutes = [sample(NOON_MS + n * MINUTE_MS, n, waiting=n) for n in range(60)]
    assert coarser(minutes, HOUR_MS, NOON_MS + DAY_MS) == coarser(
        minutes, HOUR_MS, NOON_MS + DAY_MS
    )


def test_what_a_step_is_made_of_is_kept_until_it_is_over() -> None:
    for step_ms, finer_ms in FINER.items():
        assert KEPT_MS[finer_ms] >= 2 * step_ms
    assert set(STEPS.values()) == set(KEPT_MS)


# --- points -----------------------------------------------------------------------------------


def test_rates_go_by_when_the_samples_were_taken() -> None:
    found = points(
        [sample(NOON_MS, 100, late_ms=1000), sample(NOON_MS + MINUTE_MS, 160, late_ms=31_000)]
    )
    assert found[0].at == datetime.fromtimestamp(NOON_MS / 1000, UTC)
    assert found[0].rates == {}
    assert found[1].rates == {"pushed": pytest.approx(60 / 90)}
    assert found[1].totals == {"pushed": 160}


def test_over_a_gap_the_rate_is_the_mean_and_nothing_is_negative() -> None:
    found = points([sample(NOON_MS, 100), sample(NOON_MS + HOUR_MS, 460)])
    assert found[1].rates["pushed"] == pytest.approx(0.1)
    assert points([sample(0, 5), sample(MINUTE_MS, 4)])[1].rates == {"pushed": 0}
    assert points([]) == []


# --- rates of the present ---------------------------------------------------------------------


def test_rates_are_of_the_present_totals_over_each_window() -> None:
    samples = [sample(NOON_MS - n * MINUTE_MS, 1000 - 60 * n) for n in range(30, 0, -1)]
    found = rates_of({"pushed": 1120}, NOON_MS, samples)["pushed"]
    assert found == {
        "1m": pytest.approx((120 + 60) / 60),
        "5m": pytest.approx((120 + 300) / 300),
        "15m": pytest.approx((120 + 900) / 900),
    }


@pytest.mark.parametrize(
    ("age_seconds", "known"), [(29.9, False), (30, True), (60, True), (120, True), (120.1, False)]
)
def test_a_window_goes_by_a_sample_of_about_its_age(age_seconds: float, known: bool) -> None:
    one = sample(NOON_MS - round(age_seconds * 1000), 0)
    rate = rates_of({"pushed": 60}, NOON_MS, [one])["pushed"]["1m"]
    assert rate == (pytest.approx(60 / age_seconds) if known else None)


def test_without_samples_no_rate_is_known() -> None:
    assert rates_of({"pushed": 60, "skipped": 3}, NOON_MS, []) == {
        "pushed": {"1m": None, "5m": None, "15m": None}
    }
