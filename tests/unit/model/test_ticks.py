"""Ticks: cron expressions, intervals, time zones and daylight saving time."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.errors import ConfigError
from cassq.model.ticks import (
    ALIASES,
    EveryTicks,
    Ticks,
    checked_cron,
    interval_cron,
    ticks_of,
    zone_of,
)

VIENNA = ZoneInfo("Europe/Vienna")
DAY_MS = 86_400_000


def ms(text: str, zone: ZoneInfo = VIENNA, fold: int = 0) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp() * 1000)


def shown(ticks: Ticks, after: int, count: int, zone: ZoneInfo = VIENNA) -> list[str]:
    """The next ticks as the clocks of the zone show them."""
    return [
        datetime.fromtimestamp(tick / 1000, zone).strftime("%m-%d %H:%M %Z")
        for tick in ticks.next(after, count)
    ]


def vienna(cron: str) -> Ticks:
    return ticks_of(checked_cron(cron), "Europe/Vienna", 0)


# --- cron ---------------------------------------------------------------------------------------


def test_a_tick_is_by_the_clocks_of_the_zone_in_summer_and_winter() -> None:
    daily = vienna("0 3 * * *")
    assert shown(daily, ms("2026-03-28 12:00"), 2) == ["03-29 03:00 CEST", "03-30 03:00 CEST"]
    assert shown(daily, ms("2026-10-24 12:00"), 2) == ["10-25 03:00 CET", "10-26 03:00 CET"]


def test_a_time_in_the_missing_hour_runs_once_right_after_it() -> None:
    found = shown(vienna("30 2 * * *"), ms("2026-03-28 00:00"), 3)
    assert found == ["03-28 02:30 CET", "03-29 03:00 CEST", "03-30 02:30 CEST"]


def test_a_time_in_the_doubled_hour_runs_once_at_the_first() -> None:
    found = shown(vienna("30 2 * * *"), ms("2026-10-24 12:00"), 2)
    assert found == ["10-25 02:30 CEST", "10-26 02:30 CET"]


@pytest.mark.parametrize("start", ["02:10", "02:30", "02:45"])
def test_in_the_second_of_the_doubled_hours_it_does_not_run_again(start: str) -> None:
    after = ms(f"2026-10-25 {start}", fold=1)
    assert shown(vienna("30 2 * * *"), after, 1) == ["10-26 02:30 CET"]


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_every_five_minutes_keeps_its_pace_over_both_changes(day: str) -> None:
    ticks = vienna("*/5 * * * *").next(ms(f"{day} 00:00"), 12 * 6)
    assert {later - earlier for earlier, later in pairwise(ticks)} == {300_000}


def test_a_job_of_each_hour_runs_in_each_of_the_doubled_ones() -> None:
    found = shown(vienna("15 * * * *"), ms("2026-10-25 01:30"), 3)
    assert found == ["10-25 02:15 CEST", "10-25 02:15 CET", "10-25 03:15 CET"]


def test_two_times_of_which_one_is_missing_run_once_where_they_meet() -> None:
    found = shown(vienna("0 2,3 * * *"), ms("2026-03-29 00:00"), 2)
    assert found == ["03-29 03:00 CEST", "03-30 02:00 CEST"]


def test_day_of_month_or_day_of_week_counts_unless_one_is_a_star() -> None:
    found = shown(vienna("0 12 13 * FRI"), ms("2026-11-01 00:00"), 3)
    assert [each[:5] for each in found] == ["11-06", "11-13", "11-20"]
    assert shown(vienna("0 12 1 */2 *"), ms("2026-11-01 13:00"), 1) == ["01-01 12:00 CET"]


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_its_expression(alias: str) -> None:
    after = ms("2026-11-01 00:30")
    assert vienna(alias.upper()).next(after, 3) == vienna(ALIASES[alias]).next(after, 3)


CRONS = ["*/5 * * * *", "30 2 * * *", "0 2,3 * * *", "59 1-3 * * *", "15 * * * *", "0 0 1 * *"]
NEAR_CHANGES = st.one_of(
    st.integers(ms("2026-03-28 20:00"), ms("2026-03-29 08:00")),
    st.integers(ms("2026-10-24 20:00"), ms("2026-10-25 08:00")),
)


@given(st.sampled_from(CRONS), NEAR_CHANGES, NEAR_CHANGES)
def test_which_ticks_there_are_does_not_depend_on_the_start(cron: str, one: int, two: int) -> None:
    ticks = vienna(cron)
    first, second = ticks.after(min(one, two)), ticks.after(max(one, two))
    assert min(one, two) < first <= second
    if first > max(one, two):
        assert first == second


@given(st.sampled_from([*CRONS, "@every 7s"]), NEAR_CHANGES, st.integers(0, 3 * DAY_MS))
def test_the_latest_tick_is_the_last_of_those_found_one_by_one(
    cron: str, start: int, length: int
) -> None:
    ticks = ticks_of(cron, "Europe/Vienna", ms("2026-01-01 00:00"))
    first = ticks.after(start)
    until = first + length // (100 if "every" in cron or "/5" in cron else 1)
    tick, expected = ticks.after(first), first
    while tick <= until:
        expected, tick = tick, ticks.after(tick)
    assert ticks.latest(first, until) == expected


# --- intervals ----------------------------------------------------------------------------------


def test_an_interval_counts_from_its_beginning() -> None:
    ticks = EveryTicks(300_000, 1_000)
    assert ticks.next(1_000, 2) == [301_000, 601_000]
    assert ticks.after(300_999) == 301_000
    assert ticks.after(301_000) == 601_000
    assert ticks.after(0) == 301_000, "the beginning is no tick, and neither is what lies before"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1s"), (300, "5m"), (5400, "1h30m"), (90_061.5, "1d1h1m1.5s"), (31_622_400, "366d")],
)
def test_an_interval_is_written_in_its_units(seconds: float, text: str) -> None:
    assert interval_cron(seconds) == f"@every {text}"
    assert checked_cron(f"@every {text}") == f"@every {text}"
    assert ticks_of(f"@every {text}", "UTC", 0).after(0) == round(seconds * 1000)


def test_an_expression_is_stored_in_one_form() -> None:
    assert checked_cron("  0  3 *\t* * ") == "0 3 * * *"
    assert checked_cron("@EVERY 90 m") == "@every 1h30m"
    assert checked_cron("@Daily") == "@daily"


# --- what is not valid --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cron", "complaint"),
    [
        ("60 3 * * *", "the minute '60' in cron '60 3 * * *' is not valid (allowed are 0-59"),
        ("0 24 * * *", "the hour '24'"),
        ("0 3 32 * *", "the day-of-month '32'"),
        ("0 3 * 13 *", "the month '13'"),
        ("0 3 * * 8", "the day-of-week '8'"),
        ("0 3 * * MOO", "the day-of-week 'MOO'"),
        ("0 3 31 2 *", "the day-of-month '31'"),
        ("*/0 * * * *", "the minute '*/0'"),
        ("5-1 * * * *", "the minute '5-1'"),
        ("0 3 * *", "has 4 fields, not 5 (write five fields"),
        ("0 0 3 * * *", "has 6 fields, not 5"),
        ("", "has 0 fields"),
        ("daily", "has 1 field, not 5"),
        ("@reboot", "cron '@reboot' is not known (use @every 5m, @annually, @daily"),
        ("@daily 5", "is not known"),
        ("@every", "has no valid interval (write @every 30s"),
        ("@every soon", "has no valid interval"),
        ("@every 5", "has no valid interval"),
        ("@every 0.5s", "every must be between 1 second and 366 days, not 0.5 seconds"),
        ("@every 367d", "every must be between"),
        ("1" * 201, "cron may have at most 200 characters, not 201"),
    ],
)
def test_an_invalid_expression_is_refused_and_its_field_named(cron: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        ticks_of(checked_cron(cron), "UTC", 0)
    assert complaint in str(error.value)
    assert error.value.hint or "characters" in complaint


@pytest.mark.parametrize("value", [None, 5, b"0 3 * * *"])
def test_an_expression_is_text(value: object) -> None:
    with pytest.raises(ConfigError, match="cron must be a str"):
        checked_cron(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [True, "5m", float("nan"), float("inf"), 0, -1])
def test_an_interval_is_a_number_in_range(value: object) -> None:
    with pytest.raises(ConfigError, match="every must be"):
        interval_cron(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tz", "hint"),
    [
        ("Europe/Wien", "did you mean 'Europe/Vienna'?"),
        ("europe/vienna", "did you mean 'Europe/Vienna'?"),
        ("Europe", "'"),
        ("", "write it as in"),
        ("localtime", "write it as in"),
        ("../etc/passwd", "write it as in"),
        ("/etc/localtime", "write it as in"),
        ("x" * 5000, "write it as in"),
        ("\0", "write it as in"),
        ("\ud800", "write it as in"),
    ],
)
def test_a_time_zone_that_is_none_is_refused_and_named(tz: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=r"^tz .* is not a known time zone") as error:
        zone_of(tz)
    assert hint in error.value.hint


def test_a_time_zone_is_a_name() -> None:
    with pytest.raises(ConfigError, match="tz must be the name of a time zone, not None"):
        zone_of(None)  # type: ignore[arg-type]
    assert zone_of("UTC") is UTC
