"""History: totals and depths of each queue and group by minute, hour and day.

The first pass in each minute takes a *sample* of the present state. When an hour or a day is over,
its sample is made from finer ones. Samples are inserted if absent, under (subject, step, time), so
any number of passes may run concurrently and stop anywhere.

Samples are taken only while a client that pushes or pops, or a reaper, runs the passes. A time when
nothing ran them is a gap, not a zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from cassq.base.arguments import check_seconds, check_zone
from cassq.catalog.port import Catalog
from cassq.errors import UsageError
from cassq.inspect.held_keys import note_of, waits_in_hand
from cassq.inspect.stats import GroupStats, QueueStats, queue_stats
from cassq.lifecycle.ports import Ports
from cassq.model.rows import NOTED_MS, NOTES_KEPT_MS, GroupRow, QueueRow, Sample

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
STEPS: dict[str, int] = {"minute": MINUTE_MS, "hour": HOUR_MS, "day": DAY_MS}
# What each step is made from, and how long its samples are kept.
FINER = {HOUR_MS: MINUTE_MS, DAY_MS: HOUR_MS}
KEPT_MS = {MINUTE_MS: 2 * DAY_MS, HOUR_MS: 60 * DAY_MS, DAY_MS: 1826 * DAY_MS}
# How far back is shown by default.
SHOWN_MS = {MINUTE_MS: 3 * HOUR_MS, HOUR_MS: 3 * DAY_MS, DAY_MS: 90 * DAY_MS}
WINDOWS_MS = {"1m": MINUTE_MS, "5m": 5 * MINUTE_MS, "15m": 15 * MINUTE_MS}

TOTALS = (
    *("pushed", "popped", "committed", "dead"),
    *("expired", "purged", "merged", "lost", "skipped"),
)
DEPTHS = ("waiting", "delayed", "pending", "oldest_age")
RATED = ("pushed", "popped", "committed", "dead")

# The subject that stands for all queues: a minute is done if this has a sample of it.
EVERYTHING = "*"

# Messages a second by window ("1m", "5m", "15m"); None if there is no sample to compare with.
Windows = dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Point:
    """A minute, hour or day of a queue or group.

    at: its beginning, in catalog time: UTC by the servers' clocks or, in a directory, by the
    machine's clock when the directory was first opened after the boot. totals and depths: from its
    last sample; most: the largest depths of its samples. rates: growth of the totals since the
    point before, in messages a second; empty for the first.
    """

    at: datetime
    totals: dict[str, int]
    depths: dict[str, float]
    most: dict[str, float]
    rates: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a queue moves: messages a second over the last 1, 5 and 15 minutes.

    groups: for each group by name, what was popped, committed and so on.
    """

    pushed: Windows
    groups: dict[str, dict[str, Windows]]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Noted(NamedTuple):
    """Samples of one step that a roll-up adds, or has added, for a queue."""

    queue: str
    step: str
    samples: Sequence[Sample]

    @property
    def detail(self) -> str:
        subjects = len({sample.subject for sample in self.samples})
        return f"{len(self.samples)} samples of {subjects} subjects"


# --- pure: what samples are, and what follows from them --------------------------------------


def totals_of(stats: GroupStats) -> dict[str, int]:
    """A group's totals, which only grow."""
    return {name: getattr(stats, name) for name in TOTALS}


def sampled(stats: QueueStats, ids: Mapping[str, str], queue_id: str, now_ms: int) -> list[Sample]:
    """The samples of the present minute. ids: of groups by name."""
    at_ms = now_ms - now_ms % MINUTE_MS
    found = []
    for name, group in stats.groups.items():
        if name in ids:
            depths = {depth: getattr(group, depth) for depth in DEPTHS}
            found.append(_sample(ids[name], at_ms, now_ms, totals_of(group), depths))
    # Last, because it says that the queue's minute is done.
    found.append(_sample(queue_id, at_ms, now_ms, {"pushed": stats.pushed}, {}))
    return found


def _sample(
    subject: str, at_ms: int, now_ms: int, totals: dict[str, int], depths: Mapping[str, Any]
) -> Sample:
    known = {name: value for name, value in depths.items() if value is not None}
    data = {"taken_ms": now_ms, "totals": totals, "depths": known, "most": known}
    return Sample(subject, MINUTE_MS, at_ms, json.dumps(data))


def coarser(finer: Iterable[Sample], step_ms: int, until_ms: int) -> list[Sample]:
    """Samples of a longer step, made from finer ones, for the steps that end by `until_ms`.

    finer: those of one subject, oldest first.
    """
    found = []
    for at_ms, part in groupby(finer, key=lambda sample: sample.at_ms - sample.at_ms % step_ms):
        if at_ms + step_ms <= until_ms:
            samples = list(part)
            readings = [json.loads(sample.data) for sample in samples]
            most: dict[str, float] = {}
            for one in readings:
                for name, value in one["most"].items():
                    most[name] = max(value, most.get(name, value))
            data = json.dumps({**readings[-1], "most": most})
            found.append(Sample(samples[0].subject, step_ms, at_ms, data))
    return found


def points(samples: Sequence[Sample]) -> list[Point]:
    """A point for each sample of one subject, with the rates since the point before."""
    readings = [json.loads(sample.data) for sample in samples]
    rates: list[dict[str, float]] = [{}] if samples else []
    for before, after in pairwise(readings):
        seconds = max(1, after["taken_ms"] - before["taken_ms"]) / 1000
        rates.append(
            {
                name: max(0, after["totals"][name] - before["totals"][name]) / seconds
                for name in RATED
                if name in before["totals"] and name in after["totals"]
            }
        )
    return [
        Point(
            datetime.fromtimestamp(sample.at_ms / 1000, UTC),
            one["totals"],
            one["depths"],
            one["most"],
            rate,
        )
        for sample, one, rate in zip(samples, readings, rates, strict=True)
    ]


def rates_of(
    totals: Mapping[str, int], now_ms: int, samples: Sequence[Sample]
) -> dict[str, Windows]:
    """How fast totals grew over each window, compared with earlier samples.

    For a window, the sample whose age is nearest to the window's length counts, if its age is
    between half and twice that length.
    """
    readings = [json.loads(sample.data) for sample in samples]
    bases: dict[str, Any] = {}
    for window, length_ms in WINDOWS_MS.items():
        near = [
            one for one in readings if length_ms <= 2 * (now_ms - one["taken_ms"]) <= 4 * length_ms
        ]
        bases[window] = min(
            near, key=lambda one: abs(now_ms - one["taken_ms"] - length_ms), default=None
        )
    found: dict[str, Windows] = {}
    for name in RATED:
        if name in totals:
            found[name] = {
                window: base and _rate(totals[name], now_ms, base, name)
                for window, base in bases.items()
            }
    return found


def _rate(total: int, now_ms: int, base: Mapping[str, Any], name: str) -> float:
    growth = max(0, total - base["totals"].get(name, 0))
    return float(growth / ((now_ms - base["taken_ms"]) / 1000))


# --- rolling up --------------------------------------------------------------------------------


def roll_up(
    ports: Ports, queues: Sequence[QueueRow] | None, now_ms: int, *, dry_run: bool = False
) -> list[Noted]:
    """Take the minute's samples of these queues, or of all, unless they were taken; make the hours
    and days that are over; forget samples that are too old. Returns what was done.

    Cost if the minute is done: one read for all queues, or one for each queue named. Otherwise that
    of `queue_stats` for each queue, and one write.
    """
    noted = plan(ports, queues, now_ms)
    if not dry_run:
        apply(ports, noted, now_ms)
    return [one for one in noted if one.queue != EVERYTHING]


def plan(ports: Ports, queues: Sequence[QueueRow] | None, now_ms: int) -> list[Noted]:
    """The samples that `apply` should add. Writes nothing."""
    catalog, minute_ms = ports.catalog, now_ms - now_ms % MINUTE_MS
    if queues is not None:
        return _of_queues(ports, queues, now_ms)
    if catalog.records.samples(EVERYTHING, MINUTE_MS, minute_ms):
        return []
    mark = Sample(EVERYTHING, MINUTE_MS, minute_ms, "{}")
    return [
        *_of_queues(ports, catalog.queues.listed(), now_ms),
        Noted(EVERYTHING, "minute", [mark]),
    ]


def _of_queues(ports: Ports, queues: Sequence[QueueRow], now_ms: int) -> list[Noted]:
    catalog, minute_ms = ports.catalog, now_ms - now_ms % MINUTE_MS
    noted: list[Noted] = []
    for queue in queues:
        if catalog.records.samples(queue.id, MINUTE_MS, minute_ms):
            continue
        groups = catalog.queues.groups(queue.id)
        ids = {group.name: group.id for group in groups}
        stats = queue_stats(ports, queue)
        fresh = [*_in_hand(ports, stats, groups, now_ms), *sampled(stats, ids, queue.id, now_ms)]
        noted.append(Noted(queue.name, "minute", fresh))
        hours: list[Sample] = []
        days: list[Sample] = []
        for subject in (*ids.values(), queue.id):
            ended = _ended(catalog, subject, HOUR_MS, now_ms, ())
            hours += ended
            days += _ended(catalog, subject, DAY_MS, now_ms, ended)
        noted += [Noted(queue.name, "hour", hours)] if hours else []
        noted += [Noted(queue.name, "day", days)] if days else []
    return noted


def _in_hand(
    ports: Ports, stats: QueueStats, groups: Iterable[GroupRow], now_ms: int
) -> list[Sample]:
    """The notes of messages that are in hand and hold their keys; see `held_keys.note_of`."""
    busy = [
        each for each in groups if each.name in stats.groups and stats.groups[each.name].pending
    ]
    notes = [note_of(ports, each, now_ms) for each in busy if waits_in_hand(each.policy)]
    return [note for note in notes if note is not None]


def _ended(
    catalog: Catalog, subject: str, step_ms: int, now_ms: int, fresh: Sequence[Sample]
) -> list[Sample]:
    """Samples for hours or days that are over and have none. fresh: finer samples that are not
    written yet."""
    present_ms = now_ms - now_ms % step_ms
    if catalog.records.samples(subject, step_ms, present_ms - step_ms):
        return []
    finer_ms = FINER[step_ms]
    since_ms = present_ms - KEPT_MS[finer_ms]
    known = catalog.records.samples(subject, step_ms, since_ms)
    if known:
        since_ms = known[-1].at_ms + step_ms
    return coarser(
        [*catalog.records.samples(subject, finer_ms, since_ms), *fresh], step_ms, present_ms
    )


def apply(ports: Ports, noted: Sequence[Noted], now_ms: int) -> None:
    """Add the samples in one write; if they include an hour's, forget samples that are too old."""
    catalog = ports.catalog
    catalog.records.add_samples([sample for one in noted for sample in one.samples])
    if any(one.step == "hour" for one in noted):
        for step_ms, kept_ms in KEPT_MS.items():
            catalog.records.forget_samples(step_ms, now_ms - kept_ms)
        catalog.records.forget_samples(NOTED_MS, now_ms - NOTES_KEPT_MS)


# --- looking back ------------------------------------------------------------------------------


def history(
    ports: Ports,
    queue: QueueRow,
    group: GroupRow | None,
    step: str = "minute",
    since: datetime | float | None = None,
) -> list[Point]:
    """The history, oldest first, including the present hour or day so far.

    group: None for the queue as a whole, which has only `pushed`. step: "minute" (kept 2 days),
    "hour" (60 days) or "day" (5 years). since: a time, or how many seconds back; None: as much as
    a screen shows. Cost: reads the samples, never a pipe. Raises UsageError.
    """
    step_ms = STEPS.get(step)
    if step_ms is None:
        raise UsageError(f"step must be minute, hour or day, not {step!r}")
    since_ms = _since_ms(since, step_ms, ports.catalog.now_ms())
    subject = queue.id if group is None else group.id
    # One more before the first, for its rates.
    found = points(all_samples(ports.catalog, subject, step_ms, since_ms - step_ms))
    return [point for point in found if point.at.timestamp() * 1000 >= since_ms]


def _since_ms(since: datetime | float | None, step_ms: int, now_ms: int) -> int:
    """The beginning of the step that contains `since`, in catalog time."""
    if since is None:
        at_ms = now_ms - SHOWN_MS[step_ms]
    elif isinstance(since, datetime):
        check_zone("since", since)
        at_ms = round(since.timestamp() * 1000)
    else:
        check_seconds("since", since, KEPT_MS[DAY_MS] / 1000)
        at_ms = now_ms - round(since * 1000)
    return at_ms - at_ms % step_ms


def all_samples(catalog: Catalog, subject: str, step_ms: int, since_ms: int) -> list[Sample]:
    """The samples of a subject from `since_ms` on, oldest first: those that are stored, then
    samples made from finer ones. Cost: a range of samples for each step."""
    stored = catalog.records.samples(subject, step_ms, since_ms)
    if step_ms not in FINER:
        return stored
    if stored:
        since_ms = stored[-1].at_ms + step_ms
    finer = all_samples(catalog, subject, FINER[step_ms], since_ms)
    return stored + coarser(finer, step_ms, 1 << 62)


def queue_rates(ports: Ports, queue: QueueRow, stats: QueueStats) -> Rates:
    """How fast a queue moves, from its present totals and the samples of the last half hour.

    Cost: one range of samples for the queue, and one for each group.
    """
    catalog = ports.catalog
    now_ms = catalog.now_ms()
    since_ms = now_ms - 2 * max(WINDOWS_MS.values()) - MINUTE_MS
    ids = {group.name: group.id for group in catalog.queues.groups(queue.id)}
    groups = {
        name: rates_of(
            totals_of(group), now_ms, catalog.records.samples(ids[name], MINUTE_MS, since_ms)
        )
        for name, group in stats.groups.items()
        if name in ids
    }
    samples = catalog.records.samples(queue.id, MINUTE_MS, since_ms)
    return Rates(rates_of({"pushed": stats.pushed}, now_ms, samples)["pushed"], groups)
