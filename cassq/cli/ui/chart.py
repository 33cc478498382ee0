"""Charts as text: bars of block characters, with a scale at the left and times below."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

HEIGHT = 8
WIDTH = 72
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_SCALE_PLACES = 8


class Series(NamedTuple):
    """The values of a chart, each with its time; there may be gaps."""

    title: str
    values: Sequence[tuple[datetime, float]]


def chart_lines(
    series: Series, start: datetime, end: datetime, step: timedelta, width: int = WIDTH
) -> list[str]:
    """A chart from `start` up to, but without, `end`. A column shows the largest value of its time;
    it is empty if no value is known, and has a line at the bottom for a value of 0.
    """
    columns = _columns(series.values, start, end, step, width)
    top = max((value for value in columns if value is not None), default=0.0)
    lines = [series.title]
    for row in reversed(range(HEIGHT)):
        label = top if row == HEIGHT - 1 else 0.0 if row == 0 else None
        scale = "" if label is None else number(label)
        bars = "".join(_cell(value, top, row) for value in columns)
        lines.append(f"{scale:>{_SCALE_PLACES}} ┤{bars}".rstrip())
    lines.append(" " * _SCALE_PLACES + " └" + "─" * len(columns))
    first, last = _times(start, end - step, step)
    gap = max(2, len(columns) - len(first) - len(last))
    lines.append(" " * (_SCALE_PLACES + 2) + first + " " * gap + last)
    return lines


def _columns(
    values: Sequence[tuple[datetime, float]],
    start: datetime,
    end: datetime,
    step: timedelta,
    width: int,
) -> list[float | None]:
    """The largest value in each column; few steps are several columns wide."""
    steps = max(1, -(-(end - start) // step))
    wide = max(1, width // steps)
    columns: list[float | None] = [None] * min(width, steps * wide)
    for at, value in values:
        place = (at - start) // step
        if not 0 <= place < steps:
            continue
        first = place * len(columns) // steps
        for column in range(first, max(first + 1, (place + 1) * len(columns) // steps)):
            before = columns[column]
            columns[column] = value if before is None else max(before, value)
    return columns


def _cell(value: float | None, top: float, row: int) -> str:
    """The character of a column in a row; rows are counted from below."""
    if value is None:
        return " "
    eighths = round(value / top * HEIGHT * 8) if top else 0
    if row == 0:
        eighths = max(1, eighths)
    return _EIGHTHS[max(0, min(8, eighths - 8 * row))]


def _times(first: datetime, last: datetime, step: timedelta) -> tuple[str, str]:
    """The ends of the time axis, in the reader's own zone; days in UTC, as they are counted."""
    if step >= timedelta(days=1):
        return f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"
    return f"{first.astimezone():%m-%d %H:%M}", f"{last.astimezone():%m-%d %H:%M}"


def number(value: float) -> str:
    """A number in at most seven places."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size:
            return f"{value / size:,.1f}{unit}"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
