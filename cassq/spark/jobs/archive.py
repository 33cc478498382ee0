"""Archiving: the messages of sealed or consumed pipes to Parquet, each pipe once.

A pipe's files are written into a staging folder, counted, and moved to their place; then a mark
beside them says that the pipe is complete::

    DIR/queue=NAME/pipe=ID/part-….parquet     what Spark reads as columns of messages
    DIR/queue=NAME/pipe=ID/_whole             the mark
    DIR/_staging/queue=NAME/…                 of the current run, or of one that was killed

A folder without a mark was left by a killed run, and is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple
from urllib.parse import quote

from pyspark.sql import SparkSession

from cassq.errors import ConfigError
from cassq.lifecycle.ports import Ports
from cassq.model.rows import PipeRow, PipeState
from cassq.spark.clients import absolute, client_of
from cassq.spark.jobs.folders import Folder
from cassq.spark.jobs.pipes_source import read_pipes
from cassq.spark.jobs.sessions import translated_errors

MESSAGES_PER_STEP = 5_000_000
STAGING, WHOLE = "_staging", "_whole"


class ArchiveProgress(NamedTuple):
    """Progress, in pipes to write and their messages."""

    pipes: int
    pipes_in_all: int
    messages: int
    messages_in_all: int


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run did. pipes, messages: how many it wrote. already: pipes that were archived before.
    missed: the IDs of pipes that are not archived, because messages were removed while they were
    read, or because the files could not be moved.
    """

    queue: str
    directory: str
    pipes: int
    messages: int
    already: int
    missed: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "missed": list(self.missed)}


def archive(
    spark: SparkSession,
    url: str | None,
    queue: str,
    directory: str,
    *,
    messages_per_step: int = MESSAGES_PER_STEP,
    progress: Callable[[ArchiveProgress], None] = lambda _: None,
) -> Archived:
    """Write to Parquet every sealed or consumed pipe of a queue whose messages are still stored and
    that is not yet complete in `directory`.

    directory: a path or URL that Spark can write to. messages_per_step: how many one Spark job
    writes; a killed run loses its current step. progress: called before the first step and after
    each. Only one run at a time should write a queue to a directory: of two, one may fail.

    Raises QueueNotFoundError, ConfigError and BackendError. Cost: each message is read and written
    once, and sorted within its task; two calls of the file system for each pipe.
    """
    if messages_per_step < 1:
        raise ConfigError(f"messages_per_step must be 1 or more, not {messages_per_step}")
    place = absolute(url)
    client = client_of(place)
    found = stored_pipes(client.ports, client.queue(queue).row.id)
    with translated_errors():
        top = Folder(spark, directory)
        folder, staging = top / folder_name(queue), top / STAGING / folder_name(queue)
        staging.remove()
        left = [pipe for pipe in found if not (pipe_folder(folder, pipe.id) / WHOLE).exists()]
        sizes = {pipe.id: _length(pipe) for pipe in left}
        done: list[str] = []
        missed: list[str] = []
        _tell(progress, sizes, done, missed)
        try:
            for step in steps(left, messages_per_step):
                written = _write(spark, place, step, staging)
                for pipe in step:
                    whole = written.get(pipe.id) == _length(pipe)
                    (done if whole and _move_in(staging, folder, pipe.id) else missed).append(
                        pipe.id
                    )
                _tell(progress, sizes, done, missed)
        finally:
            staging.remove()
    count = sum(sizes[pipe_id] for pipe_id in done)
    return Archived(queue, directory, len(done), count, len(found) - len(left), tuple(missed))


def _tell(
    progress: Callable[[ArchiveProgress], None],
    sizes: dict[str, int],
    done: list[str],
    missed: list[str],
) -> None:
    over = sum(sizes[pipe_id] for pipe_id in (*done, *missed))
    progress(ArchiveProgress(len(done) + len(missed), len(sizes), over, sum(sizes.values())))


# --- planning -----------------------------------------------------------------------------------


def stored_pipes(ports: Ports, queue_id: str) -> list[PipeRow]:
    """The sealed and consumed pipes of a queue that have messages, oldest first. A consumed pipe
    without totals in this queue is left out: it belonged to an aborted write. Cost: the live pipes,
    all consumed ones, and the totals of each of these.
    """
    live = [row for row in ports.catalog.pipes.live(queue_id) if row.state is PipeState.SEALED]
    consumed = [
        row
        for row in ports.catalog.pipes.consumed()
        if row.queue_id == queue_id and ports.catalog.pipes.retired(queue_id, row.id)
    ]
    found = {row.id: row for row in (*live, *consumed) if _length(row)}
    return sorted(found.values(), key=lambda row: row.ordinal)


def _length(pipe: PipeRow) -> int:
    return pipe.end.seq if pipe.end is not None else 0


def steps(pipes: Iterable[PipeRow], most: int) -> Iterator[list[PipeRow]]:
    """Pipes in steps of at most `most` messages, or of one pipe that has more. Pure."""
    step: list[PipeRow] = []
    size = 0
    for pipe in pipes:
        if step and size + _length(pipe) > most:
            yield step
            step, size = [], 0
        step.append(pipe)
        size += _length(pipe)
    if step:
        yield step


def folder_name(queue: str) -> str:
    """The folder of a queue, whose name may have slashes. Pure."""
    return f"queue={quote(queue, safe='')}"


def pipe_folder(folder: Folder, pipe_id: str) -> Folder:
    """Where the files of a pipe are."""
    return folder / f"pipe={pipe_id}"


# --- writing ------------------------------------------------------------------------------------


def _write(spark: SparkSession, url: str, pipes: list[PipeRow], staging: Folder) -> dict[str, int]:
    """How many messages of each pipe are in the staging folder, as counted from its files."""
    # Removed messages show in the count of their pipe; the other pipes are still archived.
    lengths = {pipe.id: _length(pipe) for pipe in pipes}
    frame = read_pipes(spark, url, lengths, fail_on_data_loss=False)
    ordered = frame.sortWithinPartitions("pipe", "seq")
    ordered.write.mode("overwrite").partitionBy("pipe").parquet(staging.path)
    # IDs are hex digits: without a schema Spark takes some of them for numbers.
    read = spark.read.schema("seq bigint, pipe string").parquet(staging.path)
    return {row["pipe"]: row["count"] for row in read.groupBy("pipe").count().collect()}


def _move_in(staging: Folder, folder: Folder, pipe_id: str) -> bool:
    """Move a pipe's files to their place, replace what a killed run left there, and mark the pipe.
    False if they could not be moved."""
    target = pipe_folder(folder, pipe_id)
    if (target / WHOLE).exists():
        return True
    target.remove()
    if not pipe_folder(staging, pipe_id).move_to(target):
        return False
    (target / WHOLE).touch()
    return True
