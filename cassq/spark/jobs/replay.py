"""Replaying: pushes messages of finished pipes, or of an archive, to a queue again, once per
`writeId`.

Without a rate a replay is one write. With a rate each chunk of a pipe is a write of its own, named
after its place: finished pipes never change, so a restarted run finds the same chunks, and skips
those that were published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

import cassq.spark
from cassq.base.clock import Stopwatch
from cassq.client.client import Client
from cassq.errors import ConfigError
from cassq.model.rows import WriteState
from cassq.spark.clients import absolute, client_of
from cassq.spark.jobs.replay_sources import Archive, ReplayChunk, Source, Stored, chunks
from cassq.spark.jobs.sessions import translated_errors
from cassq.spark.options import time_ms
from cassq.spark.staged import batch_id
from cassq.spark.writing import check_target


class Choice(NamedTuple):
    """Selects messages. since, until: pushed from the one on and before the other, as for a batch
    read. where: an SQL condition on the columns of a batch read."""

    since: str | None = None
    until: str | None = None
    where: str | None = None


class ReplayProgress(NamedTuple):
    """Progress, in writes to do and messages published."""

    writes: int
    writes_in_all: int
    messages: int


Tell = Callable[[ReplayProgress], None]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a run did. messages: how many it published, in `writes` writes. already: how many writes
    were published before."""

    queue: str
    messages: int
    writes: int
    already: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class ReplayTarget(NamedTuple):
    """The queue to push to, and the `writeId`."""

    client: Client
    queue: str
    write_id: str

    def published(self, chunk: ReplayChunk | None = None) -> bool:
        """Whether a write was published. Cost: a read."""
        return self.state(chunk) is WriteState.PUBLISHED

    def state(self, chunk: ReplayChunk | None = None) -> WriteState | None:
        queue_id = self.client.queue(self.queue).row.id
        row = self.client.ports.catalog.writes.by_id(queue_id, batch_id(self.name(chunk)))
        return None if row is None else row.state

    def name(self, chunk: ReplayChunk | None) -> str:
        """The `writeId` of a write."""
        return f"{self.write_id}/{chunk.pipe_id}/{chunk.first}" if chunk else self.write_id


def replay(
    spark: SparkSession,
    url: str | None,
    queue: str,
    write_id: str,
    *,
    source: str | None = None,
    archive: str | None = None,
    choice: Choice | None = None,
    rate: float | None = None,
    progress: Tell = lambda _: None,
) -> Replayed:
    """Push messages to `queue` again: those in the finished pipes of the queue `source` (None:
    `queue` itself), or those of `source` in the directory `archive`.

    rate: messages a second, on average. It needs a `choice.until` in the past: otherwise a
    restarted run could find what it replayed itself. progress: called after each write.

    Raises QueueNotFoundError, ExtentMissingError, ConfigError and BackendError. Cost: with a rate,
    a Spark job for each chunk, and a row in the catalog that stays as long as the queue.
    """
    choice = choice or Choice()
    place = absolute(url)
    check_target(place, queue)
    target = ReplayTarget(client_of(place), queue, write_id)
    check(choice, write_id, rate, target.client.ports.clock.wall_ms())
    origin = source or queue
    with translated_errors():
        cassq.spark.register(spark)
        if target.published():
            return Replayed(queue, 0, 0, 1)
        found: Source = (
            Stored(spark, target.client, origin)
            if archive is None
            else Archive(spark, archive, origin)
        )
        if rate is None:
            return _at_once(target, found, choice)
        return _paced(target, found, choice, rate, progress)


def check(choice: Choice, write_id: str, rate: float | None, now_ms: int) -> None:
    """Raise ConfigError for arguments that are invalid, or with which messages might be replayed
    more than once. Pure."""
    if not write_id:
        raise ConfigError("a replay needs a writeId, so that it is done only once")
    if choice.since is not None:
        time_ms("since", choice.since)
    until_ms = None if choice.until is None else time_ms("until", choice.until)
    if rate is None:
        return
    if not rate > 0:
        raise ConfigError(f"rate must be more than 0 messages a second, not {rate}")
    if until_ms is None or until_ms > now_ms:
        raise ConfigError(
            "a replay with a rate needs `until`, a time in the past",
            hint="otherwise a repeated run could find its own messages, and replay them",
        )


def _at_once(target: ReplayTarget, found: Source, choice: Choice) -> Replayed:
    if any(target.state(chunk) is not None for chunk in chunks(found.lengths)):
        raise ConfigError(
            f"writeId {target.write_id!r} was begun with a rate",
            hint="continue with a rate, or use another writeId for another replay",
        )
    if not found.lengths:
        return Replayed(target.queue, 0, 0, 0)
    count = _write(target, None, _chosen(found.read(list(found.lengths)), choice))
    return Replayed(target.queue, count, 1, 0)


def _paced(
    target: ReplayTarget, found: Source, choice: Choice, rate: float, tell: Tell
) -> Replayed:
    left = [chunk for chunk in chunks(found.lengths) if not target.published(chunk)]
    already = sum(1 for _ in chunks(found.lengths)) - len(left)
    clock, watch, messages = target.client.ports.clock, Stopwatch(), 0
    for done, chunk in enumerate(left):
        clock.sleep(pause(messages, rate, watch.seconds()))
        frame = found.read([chunk.pipe_id])
        part = frame.where((sql.col("seq") >= chunk.first) & (sql.col("seq") < chunk.end))
        messages += _write(target, chunk, _chosen(part, choice))
        tell(ReplayProgress(done + 1, len(left), messages))
    return Replayed(target.queue, messages, len(left), already)


def pause(messages: int, rate: float, seconds: float) -> float:
    """How many seconds to wait if `messages` were written in `seconds`. Pure."""
    return max(0.0, messages / rate - seconds)


def _chosen(frame: DataFrame, choice: Choice) -> DataFrame:
    if choice.since is not None:
        frame = frame.where(sql.col("pushed_at") >= _literal("since", choice.since))
    if choice.until is not None:
        frame = frame.where(sql.col("pushed_at") < _literal("until", choice.until))
    return frame if choice.where is None else frame.where(choice.where)


def _literal(name: str, text: str) -> Any:
    return sql.lit(datetime.fromtimestamp(time_ms(name, text) / 1000, UTC))


def _write(target: ReplayTarget, chunk: ReplayChunk | None, frame: DataFrame) -> int:
    """Publish a frame; returns how many messages it had."""
    seen = Observation()
    # Archives of earlier versions have no priorities.
    chosen = frame.select("payload", "headers", "key", "priority")
    counted = chosen.observe(seen, sql.count("*").alias("n"))
    writer = counted.write.format("cassq").mode("append")
    place = {"url": target.client.url, "queue": target.queue}
    writer.options(**place, writeId=target.name(chunk)).save()
    return int(seen.get["n"])
