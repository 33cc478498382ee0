"""Charts as images, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from cassq.cli.ui.chart import Series
from cassq.errors import ConfigError

_INCHES = (9.0, 2.6)  # of one panel


def draw(path: Path, title: str, panels: Sequence[Sequence[Series]], *, step: timedelta) -> None:
    """Write an image with a panel for each group of series; its format is the file's suffix.

    step: between two points; the line is broken where one is missing. Raises ConfigError for a
    suffix that is not an image's, and OSError.
    """
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(panels)), layout="constrained")
    figure.suptitle(title)
    for axes, panel in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True
    ):
        for series in panel:
            times, values = _with_gaps(series, step)
            axes.plot(times, values, label=series.title, marker=".", markersize=3, linewidth=1)
        locator = AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        # Above the panel, where it hides nothing.
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=3, fontsize="small", frameon=False
        )
    if path.suffix.removeprefix(".").lower() not in figure.canvas.get_supported_filetypes():
        raise ConfigError(
            f"{path.name!r} is not an image's name", hint="end it in .png, .svg or .pdf"
        )
    figure.savefig(path, dpi=144)


def _with_gaps(series: Series, step: timedelta) -> tuple[list[Any], list[float]]:
    """The line's points, with a NaN where a step is missing."""
    times: list[Any] = []
    values: list[float] = []
    for at, value in series.values:
        if times and at - times[-1] > step:
            times.append(times[-1] + step)
            values.append(float("nan"))
        times.append(at)
        values.append(value)
    return times, values
