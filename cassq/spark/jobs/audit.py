"""The audit as a job: every frame is read, and every row is joined, on executors.

The driver lists the live pipes. Executors join the rows of each pipe and find its end. Then they
read its frames up to that end, at most `messages_per_task` messages in a task, and the driver adds
up. Rows are read before frames, so messages that are pushed and popped meanwhile do no harm. The
totals of retired pipes are read last, and used for the pipes that were retired meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from pyspark.sql import SparkSession

from cassq.errors import ConfigError
from cassq.inspect.audit import Audit, Standing, Walked, added_up, examined
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, QueueRow
from cassq.spark.clients import Location, absolute, client_of, located
from cassq.spark.jobs.audit_tasks import standings, walks
from cassq.spark.jobs.sessions import translated_errors
from cassq.spark.options import MESSAGES_PER_PARTITION
from cassq.spark.reading import PipeRange, ScanTask, parts

PIPES_PER_TASK = 100
# Rows are joined in at most this many tasks per core; between two reports of progress, frames are
# read in this many.
TASKS_PER_STEP = 4


class AuditProgress(NamedTuple):
    """Progress, in messages of all the pipes."""

    pipes: int
    messages: int
    messages_in_all: int


def audit(
    spark: SparkSession,
    url: str | None,
    queue: str,
    *,
    messages_per_task: int = MESSAGES_PER_PARTITION,
    progress: Callable[[AuditProgress], None] = lambda _: None,
) -> Audit:
    """Audit a queue as `Queue.audit` does, in Spark tasks. Exact when nothing else is running.
    Pipes whose pusher is gone are sealed first. messages_per_task: the most that one task reads.
    progress: called when the pipes are known, and after each step.

    Raises QueueNotFoundError, ConfigError and BackendError. Cost: every live pipe is read once, and
    its dead messages and their letters once more; the driver keeps a row for each live pipe and
    group, and reads the totals of each retired pipe.
    """
    if messages_per_task < 1:
        raise ConfigError(f"messages_per_task must be 1 or more, not {messages_per_task}")
    location = located(absolute(url))
    client = client_of(location.url)
    ports, row = client.ports, client.queue(queue).row
    groups = ports.catalog.queues.groups(row.id)
    with translated_errors():
        found = _standings(spark, location, ports, row, groups)
        lanes = row.policy.key_lanes
        walked = _walks(spark, location, found, lanes, messages_per_task, progress)
    pipes = [examined(standing, walked.get(standing.pipe.id, ())) for standing in found]
    return added_up(ports, row, groups, pipes)


# --- on executors -------------------------------------------------------------------------------


def _standings(
    spark: SparkSession,
    location: Location,
    ports: Ports,
    queue: QueueRow,
    groups: Sequence[GroupRow],
) -> list[Standing]:
    pipes = ports.catalog.pipes.live(queue.id)
    if not pipes:
        return []
    tasks = task_count(len(pipes), spark.sparkContext.defaultParallelism)
    rows = spark.sparkContext.parallelize(pipes, tasks)
    return list(rows.mapPartitions(partial(standings, location, groups)).collect())


def task_count(pipes: int, parallelism: int) -> int:
    """How many tasks join the rows of pipes: to run a task costs as much as to join the rows of
    about a hundred pipes. Pure."""
    return min(-(-pipes // PIPES_PER_TASK), TASKS_PER_STEP * parallelism)


def _walks(
    spark: SparkSession,
    location: Location,
    found: Sequence[Standing],
    key_lanes: int,
    messages_per_task: int,
    progress: Callable[[AuditProgress], None],
) -> dict[str, list[Walked]]:
    """What was read of each pipe, by its ID, in order."""
    in_all, done = sum(standing.end for standing in found), 0
    walked: dict[str, list[Walked]] = {}
    progress(AuditProgress(len(found), done, in_all))
    at_once = TASKS_PER_STEP * spark.sparkContext.defaultParallelism
    left = _parts(found, messages_per_task)
    while step := list(islice(left, at_once)):
        rows = spark.sparkContext.parallelize(step, len(step))
        for each in rows.mapPartitions(partial(walks, location, key_lanes)).collect():
            walked.setdefault(each.pipe_id, []).append(each)
        done += sum(piece.messages for part in step for piece in part.pieces)
        progress(AuditProgress(len(found), done, in_all))
    return walked


def _parts(found: Sequence[Standing], most: int) -> Iterator[ScanTask]:
    return parts((PipeRange(each.pipe.id, Place(0, 0), each.end) for each in found), most)
