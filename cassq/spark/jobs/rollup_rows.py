"""The rows of a roll-up: samples as executors read them from the catalog, and the tables made from
them.

Each day is read at one step (minutes, hours or days): the finest at which the catalog still has the
whole day.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from cassq.catalog.port import Catalog
from cassq.inspect.history import (
    DAY_MS,
    DEPTHS,
    HOUR_MS,
    KEPT_MS,
    MINUTE_MS,
    STEPS,
    TOTALS,
    all_samples,
)
from cassq.model.rows import Sample
from cassq.spark.clients import Location, place_at

# A minute's sample may be added a little after the minute is over.
LATE_MS = 5 * MINUTE_MS
_NAMES = {step_ms: name for name, step_ms in STEPS.items()}
_MEANS = ("waiting", "pending")
_FRACTIONS = {"oldest_age"}


def _type(name: str) -> str:
    return "double" if name in _FRACTIONS else "bigint"


_VALUES = (
    *((name, "bigint") for name in TOTALS),
    *((f"grown_{name}", "bigint") for name in TOTALS),
    *((name, _type(name)) for name in DEPTHS),
    *((f"most_{name}", _type(name)) for name in DEPTHS),
)
# The columns of stored samples; `group` is null for the queue as a whole.
SCHEMA = "`group` string, at timestamp, step string, seconds double, " + ", ".join(
    f"{name} {kind}" for name, kind in _VALUES
)
_RAW = SCHEMA.replace("at timestamp", "at bigint") + ", queue string, day string"


class WantedDays(NamedTuple):
    """A queue, and its last complete day (empty if there is none): the days after it are wanted."""

    queue_id: str
    name: str
    whole: str


# --- days. Pure ---------------------------------------------------------------------------------


def day_of(at_ms: int) -> str:
    """The day of a time, as partitions are named: 2026-05-01, in UTC."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).date().isoformat()


def begin_ms(day: str) -> int:
    """When a day begins."""
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000


def is_over(day: str, now_ms: int) -> bool:
    """Whether no more samples are added to a day."""
    return begin_ms(day) + DAY_MS + LATE_MS <= now_ms


def step_of(at_ms: int, now_ms: int) -> int:
    """The finest step at which the catalog keeps the whole day that contains a time."""
    day_ms = at_ms - at_ms % DAY_MS
    kept = (step_ms for step_ms in (MINUTE_MS, HOUR_MS) if day_ms >= now_ms - KEPT_MS[step_ms])
    return next(kept, DAY_MS)


# --- on executors -------------------------------------------------------------------------------


def rows(
    location: Location, now_ms: int, wanted: Iterable[WantedDays]
) -> Iterator[tuple[Any, ...]]:
    """The samples of queues and their groups, as in `_RAW`. Cost: for each subject, the samples
    since its last complete day."""
    catalog = place_at(location).ports.catalog
    for each in wanted:
        subjects: list[tuple[str | None, str]] = [(None, each.queue_id)]
        subjects += ((group.name, group.id) for group in catalog.queues.groups(each.queue_id))
        for name, subject in subjects:
            since_ms = begin_ms(each.whole) if each.whole else 0
            for row in with_growth(name, samples_of(catalog, subject, since_ms, now_ms)):
                day = day_of(row[1])
                if day > each.whole:
                    yield (*row, each.name, day)


def samples_of(catalog: Catalog, subject: str, since_ms: int, now_ms: int) -> list[Sample]:
    """The samples of a subject, oldest first, each day at one step. since_ms: the beginning of a
    day."""
    found: list[Sample] = []
    for step_ms, finer_ms in ((DAY_MS, HOUR_MS), (HOUR_MS, MINUTE_MS), (MINUTE_MS, 0)):
        # This step is read up to the first day that is wholly kept at the finer step.
        until_ms = now_ms - KEPT_MS[finer_ms] if finer_ms else now_ms + DAY_MS
        if since_ms < until_ms:
            samples = all_samples(catalog, subject, step_ms, since_ms)
            found += (each for each in samples if step_of(each.at_ms, now_ms) == step_ms)
    return found


def with_growth(group: str | None, samples: Sequence[Sample]) -> Iterator[tuple[Any, ...]]:
    """Samples of one subject as rows, with the growth of totals since the previous sample. Pure."""
    contents = [json.loads(sample.data) for sample in samples]
    for sample, (before, data) in zip(samples, pairwise([None, *contents]), strict=True):
        grown = {} if before is None else _grown(before["totals"], data["totals"])
        taken_ms = data["taken_ms"]
        yield (
            group,
            sample.at_ms,
            _NAMES[sample.step_ms],
            None if before is None else max(0, taken_ms - before["taken_ms"]) / 1000,
            *(data["totals"].get(name) for name in TOTALS),
            *(grown.get(name) for name in TOTALS),
            *(_number(data["depths"], name) for name in DEPTHS),
            *(_number(data["most"], name) for name in DEPTHS),
        )


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: max(0, after[name] - before[name]) for name in after if name in before}


def _number(depths: dict[str, float], name: str) -> float | None:
    value = depths.get(name)
    if value is None:
        return None
    return float(value) if name in _FRACTIONS else int(value)


# --- tables -------------------------------------------------------------------------------------


def frame_of(spark: SparkSession, raw: Any) -> DataFrame:
    """The samples of an RDD of `rows`, with `queue` and `day`."""
    # `raw.toDF` would use the session that was created last, such as that of a stream's batch.
    frame: DataFrame = spark.createDataFrame(raw, _RAW)
    return frame.withColumn("at", sql.timestamp_millis("at"))


def rolled(samples: DataFrame, step: str) -> DataFrame:
    """The table of hours, or days, made from samples: the last totals and depths, the largest and
    mean depths, and how much the totals grew. Where only days are left, there are no hours."""
    ms, step_ms = sql.unix_millis("at"), STEPS[step]
    begun = sql.timestamp_millis(ms - ms % step_ms)
    shorter = [name for name, length_ms in STEPS.items() if length_ms <= step_ms]
    # A day is one file: its rows are brought together once, before they are grouped.
    together = samples.repartition("queue", "day")
    known = together.where(sql.col("step").isin(shorter)).withColumn("begun", begun)
    last = sql.max_by(sql.struct("step", *TOTALS, *DEPTHS), "at").alias("last")
    grown = [sql.sum(f"grown_{name}").alias(f"grown_{name}") for name in TOTALS]
    most = [sql.max(f"most_{name}").alias(f"most_{name}") for name in DEPTHS]
    means = [sql.avg(name).alias(f"mean_{name}") for name in _MEANS]
    counts = [sql.count("*").alias("samples"), sql.sum("seconds").alias("seconds")]
    by = known.groupBy("queue", "day", "group", "begun")
    found = by.agg(*counts, last, *grown, *most, *means)
    added = [f"grown_{name}" for name in TOTALS] + [f"most_{name}" for name in DEPTHS]
    rest = [*added, *(f"mean_{name}" for name in _MEANS), "queue", "day"]
    return found.select(
        "group", sql.col("begun").alias("at"), "samples", "seconds", "last.*", *rest
    )
