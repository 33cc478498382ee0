"""Charts as text: scale, columns, gaps, numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cassq.cli.ui.chart import HEIGHT, WIDTH, Series, chart_lines, number

START = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def bars(values: dict[int, float], days: int, width: int) -> list[str]:
    """What is drawn right of the scale, top row first."""
    series = Series("waiting", [(START + day * DAY, value) for day, value in values.items()])
    lines = chart_lines(series, START, START + days * DAY, DAY, width)
    return [line.partition("┤")[2] for line in lines[1 : HEIGHT + 1]]


def column(rows: list[str], place: int) -> str:
    """One column, from below."""
    return "".join(f"{row:<{WIDTH}}"[place] for row in reversed(rows)).rstrip()


def test_the_largest_value_fills_its_column_and_others_are_in_proportion() -> None:
    rows = bars({0: 80, 1: 40, 2: 5}, days=3, width=3)
    assert column(rows, 0) == "█" * HEIGHT
    assert column(rows, 1) == "█" * (HEIGHT // 2)
    assert column(rows, 2) == "▄"


def test_nothing_known_is_empty_and_zero_is_a_line() -> None:
    rows = bars({0: 8, 2: 0}, days=4, width=4)
    assert [column(rows, place) for place in range(4)] == ["█" * HEIGHT, "", "▁", ""]


def test_many_steps_share_a_column_that_shows_the_largest() -> None:
    rows = bars({day: 8.0 if day == 4 else 1.0 for day in range(12)}, days=12, width=4)
    assert [len(column(rows, place)) for place in range(5)] == [1, HEIGHT, 1, 1, 0]


def test_few_steps_are_several_columns_wide() -> None:
    rows = bars({0: 1.0, 1: 2.0}, days=2, width=9)
    assert rows[0] == "    ████"
    assert rows[-1] == "████████"


def test_what_lies_outside_is_not_drawn() -> None:
    assert all(row == "" for row in bars({-1: 5.0, 3: 5.0}, days=3, width=3))


def test_only_zeros_and_nothing_at_all_can_be_drawn() -> None:
    assert bars({0: 0.0, 1: 0.0}, days=2, width=2)[-1] == "▁▁"
    assert "".join(bars({}, days=2, width=2)) == ""


def test_a_chart_has_its_title_its_scale_and_its_times() -> None:
    series = Series("waiting", [(START, 12_500.0), (START + DAY, 3.0)])
    lines = chart_lines(series, START, START + 2 * DAY, DAY)
    assert lines[0] == "waiting"
    assert lines[1].startswith("   12.5k ┤")
    assert lines[HEIGHT].startswith("       0 ┤")
    assert lines[-1].split() == ["2026-03-01", "2026-03-02"]
    assert max(map(len, lines)) <= WIDTH + 10
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((0, "0"), (3, "3"), (0.12345, "0.123"), (99.94, "99.9"), (123.4, "123")),
        *((9999, "9,999"), (12_345, "12.3k"), (123_456_789, "123.5M"), (5e10, "50.0G")),
    ],
)
def test_numbers_are_short(value: float, shown: str) -> None:
    assert number(value) == shown
    assert len(shown) <= 7
