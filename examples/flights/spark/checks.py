"""What must be true at the end: the pipeline's results are those of a plain computation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas

import cassq
from checks import Check, describe
from data import read_planes, read_weather
from spark.pipeline import ALERTS, BAD_MINUTES, DEPARTURES, FEW, GROUPS, Places

__all__ = ["describe"]
LIMIT = 100_000


class Window(NamedTuple):
    """A row of the results. wind: in miles an hour, the strongest; None when it is not known."""

    start: str
    origin: str
    planned: int
    departed: int
    minutes: int
    seat_minutes: int
    foul: int
    wind: float | None

    @property
    def bad(self) -> bool:
        return self.departed >= FEW and self.minutes >= BAD_MINUTES * self.departed


class Alert(NamedTuple):
    """A message of the queue of alerts."""

    id: str
    window: Window


def compute(flights: pandas.DataFrame) -> list[Window]:
    """All windows, straight from the data frames."""
    planes, weather = read_planes()[["tailnum", "seats"]], read_weather()
    foul = (weather["precip"] > 0) | (weather["visib"] < 3)
    weather = weather.assign(foul=foul.fillna(False).astype("Int64"))
    weather = weather[["origin", "time_hour", "foul", "wind_speed"]]
    rows = flights.merge(planes, on="tailnum", how="left", validate="many_to_one")
    rows = rows.merge(weather, on=["origin", "time_hour"], how="left", validate="many_to_one")
    start = pandas.to_datetime(rows["time_hour"]).dt.floor("6h")
    rows = rows.assign(
        start=start.dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        seat_minutes=rows["dep_delay"] * rows["seats"],
    )
    sums = rows.groupby(["start", "origin"], as_index=False).agg(
        planned=("time_hour", "size"),
        departed=("dep_delay", "count"),
        minutes=("dep_delay", "sum"),
        seat_minutes=("seat_minutes", "sum"),
        foul=("foul", "sum"),
        wind=("wind_speed", "max"),
    )
    return windows_of(sums)


def windows_of(frame: pandas.DataFrame) -> list[Window]:
    """The rows of a frame with the columns of a window."""
    return [
        Window(
            row.start, row.origin, int(row.planned), int(row.departed), int(row.minutes),
            int(row.seat_minutes), int(row.foul), _known(row.wind),
        )
        for row in frame.itertuples(index=False)
    ]  # fmt: skip


def _known(value: Any) -> float | None:
    return None if pandas.isna(value) else float(value)


def read_windows(places: Places) -> list[Window]:
    """What the query `windows` wrote."""
    return windows_of(pandas.read_parquet(places.collected))


def read_alerts(client: cassq.Client) -> list[Alert]:
    """What the query `alerts` wrote; it stays in the queue."""
    messages = client.queue(ALERTS).peek(LIMIT)
    return [Alert(m.id, _alerted(json.loads(m.payload))) for m in messages]


def _alerted(fields: dict[str, Any]) -> Window:
    return Window(**{"wind": None, **fields})


def check_queues(client: cassq.Client, departures: int) -> Check:
    """Both audits balance, and the queue of departures has each once, read by both queries."""
    name = "the audits balance, with every departure pushed once and read by both queries"
    audits = {queue: client.queue(queue).audit() for queue in (DEPARTURES, ALERTS)}
    wrong = [f"{queue}: {found}" for queue in audits for found in audits[queue].findings]
    audit, messages = audits[DEPARTURES], departures + 1  # and the one that closes the last windows
    if audit.pushed != messages:
        wrong.append(f"{audit.pushed:,} messages were pushed for {departures:,} departures and one")
    for group in GROUPS:
        acked = audit.groups[group].committed
        if acked != messages:
            wrong.append(f"group {group!r} has acked {acked:,} of {messages:,} messages")
    return Check(name, wrong)


def check_windows(found: Sequence[Window], expected: Sequence[Window]) -> Check:
    """The windows that Spark made of messages are those that pandas makes of the data frame."""
    return Check("windows of delays equal the data frame's", _differences(found, expected))


def check_alerts(found: Sequence[Alert], expected: Sequence[Window]) -> Check:
    """Every bad window is in the queue of alerts, and each once."""
    wrong = _differences([alert.window for alert in found], [w for w in expected if w.bad])
    ids = Counter(alert.id for alert in found)
    wrong += [f"message {each} is there {count} times" for each, count in ids.items() if count > 1]
    return Check("each bad window of the data frame's is an alert once", wrong)


def _differences(found: Sequence[Window], expected: Sequence[Window]) -> list[str]:
    there, wanted = Counter(found), Counter(expected)
    return [
        f"{window}: there {there[window]} times, and not {wanted[window]}"
        for window in sorted(there.keys() | wanted.keys(), key=lambda window: window[:7])
        if there[window] != wanted[window]
    ]
