"""`cassq stats --history`: the history of a queue, as text, JSON or an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cassq import extras
from cassq.cli.ui import output
from cassq.cli.ui.chart import Series, chart_lines
from cassq.client.queue import Queue
from cassq.errors import UsageError
from cassq.inspect.history import STEPS, Point
from cassq.settings import Step

_NOTHING = (
    "nothing was recorded in this time: minutes are recorded while a client or `cassq reap` runs"
)


def look_back(
    queue: Queue, group: str | None, step: Step, since: float | None
) -> dict[str, list[Point]]:
    """The history of one group, or of every group, by name."""
    names = [group] if group is not None else [found.name for found in queue.groups()]
    return {name: queue.history(name, step=step, since=since) for name in names}


def document(queue: Queue, step: str, found: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """The history, for JSON."""
    groups = {name: [point.as_dict() for point in points] for name, points in found.items()}
    return {"name": queue.name, "step": step, "groups": groups}


def show(queue: Queue, step: str, found: Mapping[str, Sequence[Point]]) -> None:
    """Three charts for each group."""
    length = timedelta(milliseconds=STEPS[step])
    first = True
    for name, points in found.items():
        if not first:
            output.say("")
        first = False
        output.say(f"{queue.name}, group {name}, by {step}", "")
        if not points:
            output.say(_NOTHING)
            continue
        start, end = points[0].at, points[-1].at + length
        for series in (*_depths(points)[:1], *_rates(points)[:2]):
            output.say(*chart_lines(series, start, end, length), "")
        output.say(_sum(points))


def _sum(points: Sequence[Point]) -> str:
    """How much was added in total, from the first point to the last."""
    grown = {
        name: points[-1].totals[name] - points[0].totals[name]
        for name in ("pushed", "committed", "dead")
    }
    listed = ", ".join(f"{count:,} {name}" for name, count in grown.items())
    return f"since {output.moment(points[0].at)}: {listed}"


def write_image(queue: Queue, step: str, found: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Two panels for each group. Raises MissingExtraError without matplotlib."""
    with extras.wanted("images need", "matplotlib", "plots"):
        from cassq.cli.ui.image import draw
    panels = [
        [one._replace(title=f"{name}: {one.title}") for one in series]
        for name, points in found.items()
        for series in (_depths(points), _rates(points))
    ]
    if not panels:
        raise UsageError(f"queue {queue.name!r} has no group, so there is nothing to draw")
    length = timedelta(milliseconds=STEPS[step])
    draw(path, f"{queue.name}, by {step}", panels, step=length)


def _depths(points: Sequence[Point]) -> list[Series]:
    return [
        Series(f"{name} messages", [(p.at, p.most.get(name, 0)) for p in points])
        for name in ("waiting", "pending")
    ]


def _rates(points: Sequence[Point]) -> list[Series]:
    found: list[Series] = []
    for name in ("pushed", "committed", "dead"):
        values: list[tuple[datetime, float]] = [
            (p.at, p.rates[name]) for p in points if name in p.rates
        ]
        found.append(Series(f"{name} a second", values))
    return found
