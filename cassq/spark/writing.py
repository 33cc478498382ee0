"""Writing: each task attempt fills pipes of its own, which poppers do not see; the commit publishes
those of the successful attempts in one step.

A batch job is a write under the user's `writeId`, or under a generated one. A stream is one write,
under the query's ID, which the checkpoint keeps. Its batches are numbered, so a replayed batch that
was published before is skipped.

Without the option `queue`, each row names its queue. Task attempts then fill pipes for each queue,
and the commit publishes one queue after another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from cassq.errors import BackendError, ConfigError
from cassq.producer import staging
from cassq.producer.staging import Stage
from cassq.spark import staged
from cassq.spark.clients import Location, place_of, queue_of
from cassq.spark.encoding import Columns, Now, runs
from cassq.spark.staged import Attempt, Filling, Part, StagedWrite
from cassq.spark.wording import in_spark

logger: logging.Logger = logging.getLogger("cassq")

# Local properties that Spark gives to the tasks of a stream.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class WriteTarget(NamedTuple):
    """Where to write. queue: empty if each row names its own. driver: the ID under which this
    driver leads writes there."""

    location: Location
    queue: str
    columns: Columns
    driver: str

    def write(self, write_id: str, number: int = 0) -> StagedWrite:
        return StagedWrite(self.location, self.queue, write_id, self.driver, number)


@dataclass
class Filled(WriterCommitMessage):
    """What a task attempt filled, by queue."""

    write: StagedWrite
    attempts: Mapping[str, Attempt]


def fill(write: StagedWrite, columns: Columns, batches: Iterator[Any]) -> Filled:
    """Run one task attempt, on an executor."""
    context = TaskContext.get()
    where = f"partition {context.partitionId() if context else '?'}"

    with Filling(write.location) as filling:
        _append(filling, write, columns, batches, where)
        filled = Filled(write, filling.finish())
    for _ in batches:
        pass  # Spark requires tasks to read all rows, even of a write that was published before
    return filled


def _append(
    filling: Filling, write: StagedWrite, columns: Columns, batches: Iterator[Any], where: str
) -> None:
    ports = filling.ports

    def now() -> Now:
        return Now(ports.clock.wall_ms(), ports.catalog.now_ms())

    # In a write to one queue, a partition without rows takes part too.
    if write.queue and filling.stage(write) is None:
        return

    def stage_of(queue: str) -> Stage | None:
        return filling.stage(write if write.queue else write._replace(queue=queue))

    def key_lanes(queue: str) -> int:
        stage = stage_of(queue)
        return 1 if stage is None else stage.key_lanes

    for run in runs(batches, columns, now, where, key_lanes):
        stage = stage_of(run.queue)
        if stage is not None:
            stage.append(run.messages, run.lane, run.level)


def publish(write: StagedWrite, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit, on the driver."""
    found = [m.attempts if isinstance(m, Filled) else None for m in messages]
    queues = {write.queue} if write.queue else {name for each in found for name in each or ()}
    staged.publish_each([_part(write, queue, found) for queue in sorted(queues)], aborts=True)
    if not write.queue:
        _tidy(write)


def _tidy(write: StagedWrite) -> None:
    """Abort a write in queues for which only failed attempts had rows."""
    try:
        staged.give_up(write)
    except BackendError as exc:
        logger.warning("unpublished pipes stay until their driver has ended: %s", exc)


def _part(write: StagedWrite, queue: str, found: list[Mapping[str, Attempt] | None]) -> Part:
    """The part of a write that its attempts filled in one queue."""
    attempts = [
        None if each is None else each[queue] for each in found if each is None or queue in each
    ]
    pipes = [pipe for each in attempts if each for pipe in each.pipes]
    begun = [each and each.begun for each in attempts]
    return Part(write._replace(queue=queue), begun, pipes)


def check_target(url: str, queue: str) -> None:
    """Raise ConfigError or QueuePausedError for a queue that cannot be written to. If rows name
    their queues, the tasks that find the names check them."""
    ports = place_of(url).ports
    if queue:
        staging.check_queue(queue_of(ports, queue))


class BatchWriter(DataSourceArrowWriter):
    """The writer of one `df.write`: created on the driver, and pickled to the executors."""

    def __init__(self, target: WriteTarget, write_id: str) -> None:
        self._columns = target.columns
        self._write = target.write(write_id)

    @in_spark()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return fill(self._write, self._columns, iterator)

    @in_spark()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._write, messages)

    @in_spark()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        staged.give_up(self._write)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one `df.writeStream`. Spark commits with another instance, which knows only the
    tasks' messages."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target

    @in_spark()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        write = self._target.write(*stream_of(TaskContext.get()))
        return fill(write, self._target.columns, iterator)

    @in_spark()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for write in writes_of(messages):
            publish(write, messages)

    @in_spark()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for write in writes_of(messages):
            staged.give_up(write)


def writes_of(messages: Sequence[WriterCommitMessage | None]) -> set[StagedWrite]:
    """The write that the tasks of a stream's batch filled; empty if no task succeeded."""
    return {message.write for message in messages if isinstance(message, Filled)}


def stream_of(context: Any) -> tuple[str, int]:
    """The write id of the stream that a task belongs to, and the number of its batch."""
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if not query or batch is None:
        raise ConfigError("Spark does not say which stream this task belongs to")
    return f"stream:{query}", int(batch)
