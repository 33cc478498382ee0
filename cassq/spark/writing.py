"""Writing: each task attempt fills pipes of its own, which poppers do not see; the commit publishes
those of the successful attempts in one step.

A batch is a write under the user's `writeId`, or under a generated one. The batches of a stream are
one write, under the query's ID, which the checkpoint keeps, and differ in their numbers: a replayed
batch that was published before is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.taskcontext import TaskContext

from cassq.client.client import Client
from cassq.errors import BackendError, ConfigError, FencedError
from cassq.model.rows import WriteRow, WriteState
from cassq.producer import staging
from cassq.producer.staging import Stage, StagedPipe
from cassq.spark.clients import Location, client_at, client_of
from cassq.spark.encoding import Columns, Now, runs

# Local properties that Spark gives to the tasks of a stream.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class WriteTarget(NamedTuple):
    """Where to write. driver: the ID under which this driver leads writes there."""

    location: Location
    queue: str
    columns: Columns
    driver: str


@dataclass
class Filled(WriterCommitMessage):
    """The pipes that a task attempt filled. epoch: 0 if the write had been published before."""

    write_id: str
    number: int
    epoch: int
    pipes: Sequence[StagedPipe]


def fill(target: WriteTarget, write_id: str, number: int, batches: Iterator[Any]) -> Filled:
    """Run one task attempt, on an executor."""
    client = client_at(target.location)
    ports, row = client.ports, client.queue(target.queue).row
    write = staging.begin(ports, row, write_id, number, target.driver)
    if staging.is_over(write, number):
        for _ in batches:
            pass  # Spark wants them taken
        return Filled(write_id, number, 0, ())
    context = TaskContext.get()
    where = f"partition {context.partitionId() if context else '?'}"
    stage = Stage(ports, row, write)

    def now() -> Now:
        return Now(ports.clock.wall_ms(), ports.catalog.now_ms())

    try:
        for run in runs(batches, target.columns, now, where):
            stage.append(run.messages, run.lane)
        pipes = stage.finish()
    except BaseException:
        stage.close()
        raise
    return Filled(write_id, number, write.epoch, pipes)


def publish(
    target: WriteTarget, write_id: str, number: int, messages: Sequence[WriterCommitMessage | None]
) -> None:
    """Commit, on the driver. Raises FencedError, with nothing published, if the write was started
    again while its tasks ran."""
    client = client_at(target.location)
    queue = client.queue(target.queue)
    row = queue.row
    write = staging.begin(client.ports, row, write_id, number, target.driver)
    if staging.is_over(write, number):
        return
    filled = [message for message in messages if isinstance(message, Filled)]
    if len(filled) < len(messages) or any(each.epoch != write.epoch for each in filled):
        staging.abort(client.ports, write)
        raise FencedError(
            f"write {write_id!r} to queue {target.queue!r} was aborted or started again while its"
            " tasks ran; none of it is published",
            hint="start the job again; its driver must not be paused for a minute",
        )
    pipes = [pipe for each in filled for pipe in each.pipes]
    try:
        staging.publish(client.ports, row, write, pipes)
    except BackendError as exc:
        if not exc.outcome_unknown:
            staging.abort(client.ports, write)
        raise
    client.runtime.doorbell(row.id).ring()


def give_up(target: WriteTarget, write_id: str, number: int) -> None:
    """Abort, on the driver."""
    client = client_at(target.location)
    row = client.ports.catalog.writes.by_id(client.queue(target.queue).id, write_id)
    if row is not None and is_ours(row, target, number):
        staging.abort(client.ports, row)


def is_ours(row: WriteRow, target: WriteTarget, number: int) -> bool:
    """Whether a write is open, and led by us."""
    named = (row.number, row.driver) == (number, target.driver)
    return named and row.state is WriteState.OPEN


def check_target(url: str, queue: str) -> Client:
    """The client at `url`, after a check that the queue takes writes."""
    client = client_of(url)
    staging.check_queue(client.queue(queue).row)
    return client


class BatchWriter(DataSourceArrowWriter):
    """The writer of one `df.write`: created on the driver, and pickled to the executors."""

    def __init__(self, target: WriteTarget, write_id: str) -> None:
        self._target = target
        self._write_id = write_id

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return fill(self._target, self._write_id, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._target, self._write_id, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        give_up(self._target, self._write_id, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of one `df.writeStream`. The commit runs in another writer, so it knows only the
    tasks' messages."""

    def __init__(self, target: WriteTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        write_id, number = stream_of(TaskContext.get())
        return fill(self._target, write_id, number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for write_id in {m.write_id for m in messages if isinstance(m, Filled)}:
            publish(self._target, write_id, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for write_id in {m.write_id for m in messages if isinstance(m, Filled)}:
            give_up(self._target, write_id, batchId)


def stream_of(context: Any) -> tuple[str, int]:
    """The write id of the stream that a task belongs to, and the number of its batch."""
    query = context.getLocalProperty(QUERY_ID) if context else None
    batch = context.getLocalProperty(BATCH_ID) if context else None
    if not query or batch is None:
        raise ConfigError("Spark does not say which stream this task belongs to")
    return f"stream:{query}", int(batch)
