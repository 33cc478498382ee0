"""The audit as a job: every frame is read, and every row is joined, on executors.

The driver names the live pipes. Executors join the rows of each, and say where it ends; then they
read its frames up to there, a range of a pipe a task; and the driver adds up. As the rows come
before the frames, what is pushed and popped meanwhile disturbs nothing. Pipes that are retired
meanwhile are taken from the totals of retired pipes, which are read last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from pyspark.sql import SparkSession

from cassq.errors import ConfigError
from cassq.inspect.audit import LOOKS_MAX, Audit, Walked, check_sum, check_sums
from cassq.inspect.stats import GroupStats, add_retired, version_of
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.model.rows import GroupRow, QueueRow, Retired, RetiredSum
from cassq.plurals import counted
from cassq.spark.clients import absolute, client_of
from cassq.spark.jobs.audit_tasks import Standing, standings, walks
from cassq.spark.jobs.fates import add
from cassq.spark.jobs.sessions import told_as_ours
from cassq.spark.options import MESSAGES_PER_PARTITION
from cassq.spark.reading import Part, Piece, parts

PIPES_PER_TASK = 100
# After so many tasks for each core it is told how far it is.
TASKS_PER_STEP = 4


class Progress(NamedTuple):
    """How far it is: of the messages of so many pipes."""

    pipes: int
    messages: int
    messages_in_all: int


class _Pipe(NamedTuple):
    """What was found of a pipe."""

    standing: Standing
    messages: int
    size_bytes: int
    findings: list[str]


def audit(
    spark: SparkSession,
    url: str | None,
    queue: str,
    *,
    messages_per_task: int = MESSAGES_PER_PARTITION,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Audit:
    """Audit a queue: `Queue.audit`, with a task for each range of a pipe, and a join by seq of what
    was pushed for each group with what became of it.

    Exact at a quiet moment. Pipes whose pusher is gone are sealed first. messages_per_task: where
    pipes are cut. progress: told when the pipes are known, and after each step.

    Raises QueueNotFoundError, ConfigError and BackendError. Cost: every live pipe is read once,
    its dead and their letters once more; the driver keeps a row for each live pipe and group, and
    reads the totals of each retired pipe.
    """
    if messages_per_task < 1:
        raise ConfigError(f"messages_per_task is 1 or more, not {messages_per_task}")
    place = absolute(url)
    client = client_of(place)
    ports, row = client.ports, client.queue(queue).row
    groups = ports.catalog.queues.groups(row.id)
    with told_as_ours():
        found = _standings(spark, place, ports, row, groups)
        walked = _walks(spark, place, found, messages_per_task, progress)
    pipes = [_pipe(standing, walked.get(standing.pipe.id, ())) for standing in found]
    return _added_up(ports, row, groups, pipes)


# --- on executors -------------------------------------------------------------------------------


def _standings(
    spark: SparkSession, url: str, ports: Ports, queue: QueueRow, groups: Sequence[GroupRow]
) -> list[Standing]:
    pipes = ports.catalog.pipes.live(queue.id)
    if not pipes:
        return []
    tasks = -(-len(pipes) // PIPES_PER_TASK)
    rows = spark.sparkContext.parallelize(pipes, tasks)
    return list(rows.mapPartitions(partial(standings, url, groups)).collect())


def _walks(
    spark: SparkSession,
    url: str,
    found: Sequence[Standing],
    messages_per_task: int,
    progress: Callable[[Progress], None],
) -> dict[str, list[Walked]]:
    """What was read of each pipe, in order."""
    in_all, done = sum(standing.end for standing in found), 0
    walked: dict[str, list[Walked]] = {}
    progress(Progress(len(found), done, in_all))
    at_once = TASKS_PER_STEP * spark.sparkContext.defaultParallelism
    left = _parts(found, messages_per_task)
    while step := list(islice(left, at_once)):
        rows = spark.sparkContext.parallelize(step, len(step))
        for each in rows.mapPartitions(partial(walks, url)).collect():
            walked.setdefault(each.pipe_id, []).append(each)
        done += sum(piece.messages for part in step for piece in part.pieces)
        progress(Progress(len(found), done, in_all))
    return walked


def _parts(found: Sequence[Standing], most: int) -> Iterator[Part]:
    return parts((Piece(each.pipe.id, Place(0, 0), each.end) for each in found), most)


# --- adding up ----------------------------------------------------------------------------------


def _pipe(standing: Standing, walked: Sequence[Walked]) -> _Pipe:
    """What is known of a pipe: of one damage the first who met it is heard."""
    causes = {each.cause: each.finding for each in reversed(walked) if each.finding}
    findings = [*standing.findings, *reversed(causes.values())]
    messages = sum(each.messages for each in walked)
    return _Pipe(standing, messages, sum(each.size_bytes for each in walked), findings)


def _added_up(
    ports: Ports, queue: QueueRow, groups: Sequence[GroupRow], pipes: Sequence[_Pipe]
) -> Audit:
    found = Audit(queue.name)
    retired, sums = _retired(ports, queue)
    check_sums(found, retired, sums)
    counts = {row.pipe_id: row.pushed for row in retired}
    live = [each for each in pipes if each.standing.pipe.id not in counts]
    found.pipes, found.retired_pipes = len(live), len(counts)
    found.pushed = sum(each.messages for each in live) + sum(counts.values())
    found.bytes = sum(each.size_bytes for each in live)
    for each in live:
        for finding in each.findings:
            found.find(finding)
    there = {group.id for group in ports.catalog.queues.groups(queue.id)}
    for group in groups:
        if group.id in there:
            _add_group(found, group, live, retired)
    return found


def _add_group(
    found: Audit, group: GroupRow, live: Sequence[_Pipe], retired: Sequence[Retired]
) -> None:
    stats = found.groups[group.name] = GroupStats()
    for each in live:
        mine = each.standing.groups.get(group.id)
        if mine is None:
            continue
        if mine.claimed > each.messages:
            found.find(
                f"group {group.name} has claimed {counted(mine.claimed, 'message')} of pipe"
                f" {each.standing.pipe.id}, of which {each.messages} could be read"
            )
        add(stats, mine, each.standing.pipe, each.messages)
    for row in retired:
        if row.group_id == group.id:
            add_retired(stats, row)
    check_sum(found, group, stats)


def _retired(ports: Ports, queue: QueueRow) -> tuple[list[Retired], list[RetiredSum]]:
    """The totals of retired pipes, and their sums, of one moment if there is one."""
    catalog = ports.catalog
    version = version_of(ports, queue)
    found = catalog.pipes.retired(queue.id), catalog.pipes.retired_sums(queue.id)
    for _ in range(LOOKS_MAX - 1):
        before, version = version, version_of(ports, queue)
        if before == version:
            break
        found = catalog.pipes.retired(queue.id), catalog.pipes.retired_sums(queue.id)
    return found
