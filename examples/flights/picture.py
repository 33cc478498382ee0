"""The picture: how late flights left, by airline and hour, and by airport."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from delays import Slot, Total

AIRPORTS = {"EWR": "Newark", "JFK": "Kennedy", "LGA": "LaGuardia"}
FEW = 20  # departures: a mean of fewer says little, and is not shown

INK, FAINT, BAR = "#222222", "#8a8a8a", "#c4623d"


def draw(found: Mapping[Slot, Total], airlines: Mapping[str, str], path: Path) -> None:
    """Write the picture as a PNG file."""
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(13, 8.2), dpi=120, layout="constrained")
        heat, bars = figure.subplots(1, 2, width_ratios=[4, 1])
        _draw_heat(figure, heat, found, airlines)
        _draw_bars(bars, found)
        _write_titles(figure, found)
        figure.savefig(path)


def _draw_heat(
    figure: Figure, axes: Any, found: Mapping[Slot, Total], airlines: Mapping[str, str]
) -> None:
    by_carrier = group(found, lambda slot: slot.carrier)
    by_cell = group(found, lambda slot: (slot.carrier, slot.hour))
    carriers = sorted(by_carrier, key=lambda carrier: mean(by_carrier[carrier]), reverse=True)
    shown = {cell: total for cell, total in by_cell.items() if total.departed >= FEW}
    departed = [hour for (_, hour), total in by_cell.items() if total.departed]
    hours = range(min(departed), max(departed) + 1)
    means = [[mean(shown.get((c, h), Total(0, 0, 0))) for h in hours] for c in carriers]
    norm = _norm(means)

    axes.set_facecolor("#f1f1f1")
    image = axes.imshow(means, cmap="RdBu_r", norm=norm, aspect="auto")
    for row, values in enumerate(means):
        for column, value in enumerate(values):
            if not math.isnan(value):
                ink = "white" if abs(norm(value) - 0.5) > 0.34 else INK
                text = f"{round(value)}"
                axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(hours)), [f"{hour:02}" for hour in hours])
    names = [f"{airlines.get(c, c)}  ({mean(by_carrier[c]):.0f} min)" for c in carriers]
    axes.set_yticks(range(len(carriers)), names)
    axes.set_xlabel("hour of the scheduled departure (local time)")
    axes.set_title("by airline and hour", loc="left", fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, location="bottom", fraction=0.04, pad=0.02, aspect=50)
    bar.set_label("mean departure delay (minutes); blue: early on average")
    bar.outline.set_visible(False)
    known = [value for row in means for value in row if not math.isnan(value)]
    if known:
        bar.ax.set_xlim(min(0.0, *known), max(known))


def _draw_bars(axes: Any, found: Mapping[Slot, Total]) -> None:
    by_airport = group(found, lambda slot: slot.origin)
    airports = sorted(by_airport, key=lambda airport: mean(by_airport[airport]), reverse=True)
    means = [mean(by_airport[airport]) for airport in airports]
    names = [f"{AIRPORTS.get(airport, '')}\n{airport}" for airport in airports]
    bars = axes.bar(names, means, color=BAR, width=0.7)
    axes.bar_label(bars, [f"{value:.1f}" for value in means], padding=3)
    axes.set_ylabel("mean departure delay (minutes)")
    axes.set_title("by airport", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", length=0, labelsize=9)


def _write_titles(figure: Figure, found: Mapping[Slot, Total]) -> None:
    flights = sum(total.flights for total in found.values())
    departed = sum(total.departed for total in found.values())
    figure.suptitle(
        "How late flights left New York in 2013",
        x=0.01, ha="left", fontsize=15, fontweight="bold",
    )  # fmt: skip
    figure.supxlabel(
        f"{flights:,} flights planned, of which {flights - departed:,} were cancelled and have no "
        f"delay. Grey: fewer than {FEW} departures. Every number went through a queue as JSON.",
        x=0.01, ha="left", fontsize=9, color=FAINT,
    )  # fmt: skip


def _norm(means: list[list[float]]) -> TwoSlopeNorm:
    """White is on time; one minute is as strong a colour early as it is late."""
    latest = max((abs(v) for row in means for v in row if not math.isnan(v)), default=1.0)
    return TwoSlopeNorm(0.0, -latest, latest)


def group(found: Mapping[Slot, Total], key: Any) -> dict[Any, Total]:
    """The totals of all slots of which `key` says the same."""
    sums: defaultdict[Any, Total] = defaultdict(lambda: Total(0, 0, 0))
    for slot, total in found.items():
        so_far = sums[key(slot)]
        sums[key(slot)] = Total(*(a + b for a, b in zip(so_far, total, strict=True)))
    return dict(sums)


def mean(total: Total) -> float:
    """The mean delay of those that departed, in minutes."""
    return total.minutes / total.departed if total.departed else float("nan")
