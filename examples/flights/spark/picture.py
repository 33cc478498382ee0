"""The picture: delays by window at each airport, the alerts, and where the driver was killed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from picture import AIRPORTS, BAR, FAINT, INK
from spark.checks import Alert, Window
from spark.pipeline import BAD_MINUTES, GROUPS
from spark.watching import Sample

LINE, KILL = "#4a6f8a", "#b01030"


class Mark(NamedTuple):
    """Where the kill was: in the time of the departures, and in seconds of the run."""

    at: datetime
    seconds: float


def draw(
    windows: Sequence[Window],
    alerts: Sequence[Alert],
    samples: Sequence[Sample],
    mark: Mark | None,
    path: Path,
) -> None:
    """Write the picture as a PNG file. samples, mark: none where only results were checked."""
    with mpl.rc_context({"font.size": 9, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(12, 9), dpi=110, layout="constrained")
        axes = figure.subplots(len(AIRPORTS) + bool(samples), 1)
        for each, origin in zip(axes, AIRPORTS, strict=False):
            each.sharex(axes[0])
            each.sharey(axes[0])
            _draw_airport(each, origin, windows, alerts)
            if mark is not None:
                each.axvline(mark.at, color=KILL, linewidth=1.2)
        if mark is not None:
            _name(axes[0], mark.at, "read up to here when the driver was killed")
        if samples:
            _draw_run(axes[-1], samples, mark)
        _write_titles(figure, windows, alerts)
        figure.savefig(path)


def _draw_airport(
    axes: Any, origin: str, windows: Sequence[Window], alerts: Sequence[Alert]
) -> None:
    known = sorted(w for w in windows if w.origin == origin and w.departed)
    axes.plot([_time(w) for w in known], [_mean(w) for w in known], color=LINE, linewidth=0.6)
    bad = [alert.window for alert in alerts if alert.window.origin == origin]
    axes.scatter([_time(w) for w in bad], [_mean(w) for w in bad], s=9, color=BAR, zorder=3)
    axes.axhline(BAD_MINUTES, color=FAINT, linewidth=0.6, linestyle=":")
    axes.set_title(f"{AIRPORTS[origin]}, alerts: {len(bad):,}", loc="left", fontsize=10)
    axes.set_ylabel("minutes late")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_run(axes: Any, samples: Sequence[Sample], mark: Mark | None) -> None:
    seconds = [sample.seconds for sample in samples]
    for group, colour in zip(GROUPS, (LINE, BAR), strict=True):
        acked = [sample.acked[group] for sample in samples]
        axes.step(seconds, acked, where="post", color=colour, label=f"read by the query {group}")
    if mark is not None:
        axes.axvline(mark.seconds, color=KILL, linewidth=1.2)
        _name(axes, mark.seconds, "SIGKILL; started again at once")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="upper left", frameon=False)
    axes.set_title("the run", loc="left", fontsize=10)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("departures")
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Any, at: Any, text: str) -> None:
    """Say what a line is, beside its upper end."""
    axes.annotate(
        text, (at, 0.95), xycoords=("data", "axes fraction"), xytext=(5, 0),
        textcoords="offset points", va="top", fontsize=9, color=KILL,
    )  # fmt: skip


def _write_titles(figure: Figure, windows: Sequence[Window], alerts: Sequence[Alert]) -> None:
    planned = sum(window.planned for window in windows)
    figure.suptitle(
        "Departure delays by six hours, from a queue through Spark",
        x=0.01, ha="left", fontsize=14, fontweight="bold",
    )  # fmt: skip
    figure.supxlabel(
        f"{planned:,} departures in {len(windows):,} windows; dots are the {len(alerts):,} alerts:"
        f" windows late by {BAD_MINUTES} minutes (dotted) or more on the average.",
        x=0.01, ha="left", fontsize=9, color=FAINT,
    )  # fmt: skip


def _time(window: Window) -> datetime:
    return datetime.fromisoformat(window.start)


def _mean(window: Window) -> float:
    return window.minutes / window.departed
