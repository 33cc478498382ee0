"""Rolling up: writes the statistics history of queues to Parquet, with tables of hours and days.

A day of a queue is written to a staging folder, in three tables, and each is moved to its place;
then a mark names the last complete day::

    DIR/samples/queue=NAME/day=2026-05-01/part-….parquet     what the catalog knew
    DIR/hours/queue=NAME/day=2026-05-01/…                    a row for each group and hour
    DIR/days/queue=NAME/day=2026-05-01/…                     a row for each group
    DIR/_whole/NAME=2026-05-01                               the mark: an empty file
    DIR/_staging/…                                           of a run that goes on or was killed

Days are moved in order, and the mark is written last. The next run rewrites the days after the
mark, such as the current day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from pyspark.sql import DataFrame, SparkSession

from cassq.errors import BackendError, ConfigError
from cassq.model.rows import QueueRow
from cassq.spark.clients import Location, absolute, client_of, located
from cassq.spark.jobs.archive import STAGING
from cassq.spark.jobs.folders import Folder
from cassq.spark.jobs.rollup_rows import SCHEMA, WantedDays, frame_of, is_over, rolled, rows
from cassq.spark.jobs.sessions import translated_errors

QUEUES_PER_STEP = 1000
QUEUES_PER_TASK = 10
SAMPLES, HOURS, DAYS = "samples", "hours", "days"
# The samples, from which the other tables are made, are moved last.
TABLES = (HOURS, DAYS, SAMPLES)
MARKS = "_whole"


class RollupProgress(NamedTuple):
    """Progress, in queues and in samples written."""

    queues: int
    queues_in_all: int
    samples: int


@dataclass(frozen=True, slots=True)
class QueueRollup:
    """What a run wrote for a queue. days: how many finished days, which are not written again.
    unfinished: how many that are not over. samples: how many in all these days."""

    queue: str
    days: int = 0
    unfinished: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What a run did."""

    directory: str
    queues: tuple[QueueRollup, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"directory": self.directory, "queues": [asdict(each) for each in self.queues]}


class _Run(NamedTuple):
    """What all steps of a run share. now_ms: one moment, in catalog time, for all of it."""

    spark: SparkSession
    location: Location
    top: Folder
    now_ms: int


def rollup(
    spark: SparkSession,
    url: str | None,
    directory: str,
    queues: Sequence[str] = (),
    *,
    queues_per_step: int = QUEUES_PER_STEP,
    progress: Callable[[RollupProgress], None] = lambda _: None,
) -> RolledUp:
    """Write the history of these queues, or of all, to tables of Parquet files.

    directory: a path or URL that Spark can write to, for roll-ups alone. queues_per_step: how many
    one Spark job writes. progress: called before the first step and after each. Only one run at a
    time should write to a directory: of two, one may fail.

    Raises QueueNotFoundError, ConfigError and BackendError. Cost: reads the samples since the last
    complete day once, for each queue and group; a few file system calls for each day written.
    """
    if queues_per_step < 1:
        raise ConfigError(f"queues_per_step must be 1 or more, not {queues_per_step}")
    location = located(absolute(url))
    client = client_of(location.url)
    named = [client.queue(name).row for name in dict.fromkeys(queues)]
    found = named or [each.row for each in client.queues()]
    done: list[QueueRollup] = []
    with translated_errors():
        run = _Run(spark, location, Folder(spark, directory), client.ports.catalog.now_ms())
        whole = _marks(run.top)
        staging = run.top / STAGING
        staging.remove()
        try:
            _tell(progress, done, len(found))
            for first in range(0, len(found), queues_per_step):
                done += _step(run, found[first : first + queues_per_step], whole)
                _tell(progress, done, len(found))
        finally:
            staging.remove()
    return RolledUp(directory, tuple(done))


def _tell(
    progress: Callable[[RollupProgress], None], done: Sequence[QueueRollup], in_all: int
) -> None:
    progress(RollupProgress(len(done), in_all, sum(each.samples for each in done)))


# --- marks --------------------------------------------------------------------------------------


def _marks(top: Folder) -> dict[str, str]:
    """The last complete day of each queue, by name. Cost: one call."""
    marks = top / MARKS
    names = marks.names() if marks.exists() else []
    # Sorted by queue and day: if a queue has two marks, the newer one counts.
    return {unquote(queue): day for queue, _, day in (name.partition("=") for name in names)}


def _mark(top: Folder, queue: str, day: str, before: str) -> None:
    name = quote(queue, safe="")
    (top / MARKS / f"{name}={day}").touch()
    if before and before != day:
        (top / MARKS / f"{name}={before}").remove()


# --- writing ------------------------------------------------------------------------------------


def _step(run: _Run, queues: Sequence[QueueRow], whole: dict[str, str]) -> list[QueueRollup]:
    staging = run.top / STAGING
    wanted = [WantedDays(row.id, row.name, whole.get(row.name, "")) for row in queues]
    tasks = -(-len(wanted) // QUEUES_PER_TASK)
    raw = run.spark.sparkContext.parallelize(wanted, tasks)
    # A queue's rows come from one task, so a day is one file.
    found = raw.mapPartitions(partial(rows, run.location, run.now_ms))
    _write(frame_of(run.spark, found), staging / SAMPLES)
    # The tables are made from the samples as written: in the catalog they have changed since.
    schema = f"{SCHEMA}, queue string, day string"
    samples = run.spark.read.schema(schema).parquet((staging / SAMPLES).path)
    counts = samples.groupBy("queue", "day").count().collect()
    sizes = {(row["queue"], row["day"]): row["count"] for row in counts}
    for table, step in ((HOURS, "hour"), (DAYS, "day")) if sizes else ():
        _write(rolled(samples, step), staging / table)
    # Spark named the folders, and it does not quote the same characters as `quote`.
    folders = {
        unquote(name.removeprefix("queue=")): name
        for name in (staging / SAMPLES).names()
        if name.startswith("queue=")
    }
    return [_move_in(run, each, folders.get(each.name, ""), sizes) for each in wanted]


def _write(frame: DataFrame, to: Folder) -> None:
    ordered = frame.sortWithinPartitions("queue", "day", "group", "at")
    ordered.write.mode("overwrite").partitionBy("queue", "day").parquet(to.path)


def _move_in(
    run: _Run, wanted: WantedDays, folder: str, sizes: dict[tuple[str, str], int]
) -> QueueRollup:
    """Move the days of a queue to their places, oldest first, and mark the last that is over."""
    days = list(_days(run.top / STAGING / SAMPLES / folder)) if folder else []
    for day in days:
        for table in TABLES:
            _move(run.top / STAGING / table / folder / day, run.top / table / folder / day)
    dates = [day.removeprefix("day=") for day in days]
    over = [day for day in dates if is_over(day, run.now_ms)]
    if over:
        _mark(run.top, wanted.name, over[-1], wanted.whole)
    samples = sum(sizes[wanted.name, day] for day in dates)
    return QueueRollup(wanted.name, len(over), len(dates) - len(over), samples)


def _days(folder: Folder) -> Iterator[str]:
    return (name for name in folder.names() if name.startswith("day="))


def _move(staged: Folder, target: Folder) -> None:
    """Replace what was there of a day. A day long ago has no table of hours."""
    target.remove()
    if staged.exists() and not staged.move_to(target):
        raise BackendError(
            f"{target.path} could not be written", hint="another run may be writing there"
        )
