"""Dead letters: counts why a group's messages died, and merges the letters that an SQL condition
selects."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

import cassq.spark
from cassq.dead_letters.bulk_job import BulkOutcome
from cassq.errors import ConfigError
from cassq.lifecycle.retries import DEATH_HEADER
from cassq.spark.clients import absolute, client_of
from cassq.spark.jobs.sessions import translated_errors
from cassq.spark.options import DEAD
from cassq.spark.reading import group_of

MERGED_MAX = 1_000_000
_DEATH = "reason string, failure string, error string, consumer string, deliveries int, at_ms long"


@dataclass(frozen=True, slots=True)
class Count:
    """How many letters share a value. what: `reason`, `error`, `consumer` or `producer` (the pipe
    in their ids, which one pusher filled)."""

    what: str
    value: str
    letters: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """Why letters died. letters: how many there are. top: the most frequent values of each kind."""

    queue: str
    group: str
    letters: int
    top: tuple[Count, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "top": [asdict(each) for each in self.top]}


def letters(
    spark: SparkSession, url: str | None, queue: str, group: str = "default", where: str = ""
) -> DataFrame:
    """The dead letters of a group with the columns of a batch read, and `reason`, `failure`,
    `error`, `consumer`, `deliveries`, `died_at` and `producer`. where: a condition on these."""
    cassq.spark.register(spark)
    place = {"url": absolute(url), "queue": queue, "group": group}
    read = spark.read.format("cassq").options(**place, state=DEAD, failOnDataLoss="false").load()
    parsed = read.withColumn("death", sql.from_json(sql.col("headers")[DEATH_HEADER], _DEATH))
    died_at = sql.timestamp_millis(sql.col("death.at_ms"))
    frame = parsed.select(
        "*",
        *(f"death.{name}" for name in ("reason", "failure", "error", "consumer", "deliveries")),
        died_at.alias("died_at"),
        sql.substring_index("id", ":", 1).alias("producer"),
    ).drop("death")
    return frame.where(where) if where else frame


def analyse(
    spark: SparkSession,
    url: str | None,
    queue: str,
    group: str = "default",
    *,
    where: str = "",
    top: int = 10,
) -> Analysis:
    """Count what the dead letters of a group have in common: the `top` most frequent values of each
    kind. The letters are not changed.

    Raises QueueNotFoundError, GroupNotFoundError, ConfigError and BackendError. Cost: each letter
    is read once.
    """
    client = client_of(absolute(url))
    group_of(client.ports, client.queue(queue).row.id, queue, group)
    with translated_errors():
        frame = letters(spark, url, queue, group, where)
        things = sql.array(*map(_thing, ("reason", "error", "consumer", "producer")))
        counts = frame.select(sql.inline(things)).groupBy("what", "value").count()
        order = Window.partitionBy("what").orderBy(sql.desc("count"), "value")
        in_all = sql.sum("count").over(Window.partitionBy("what"))
        ranked = counts.select("*", sql.row_number().over(order).alias("n"), in_all.alias("all"))
        rows = ranked.where(sql.col("n") <= top).orderBy("what", "n").collect()
    found = tuple(Count(row["what"], row["value"], row["count"]) for row in rows)
    return Analysis(queue, group, rows[0]["all"] if rows else 0, found)


def _thing(name: str) -> Column:
    value = sql.coalesce(sql.col(name), sql.lit(""))
    return sql.struct(sql.lit(name).alias("what"), value.alias("value"))


def merge(
    spark: SparkSession, url: str | None, queue: str, group: str = "default", *, where: str
) -> BulkOutcome:
    """Return the dead letters for which `where` holds to their group, as `DeadLetterQueue.merge`
    does. One call merges at most `MERGED_MAX`: call it again for the rest.

    Raises as `analyse`; ConfigError without a condition. Cost: Spark reads each letter, and this
    process alone merges.
    """
    if not where:
        raise ConfigError("say which letters to merge", hint="`cassq dead merge` merges all")
    client = client_of(absolute(url))
    group_of(client.ports, client.queue(queue).row.id, queue, group)
    letters_queue = client.queue(queue).dead_letters(group)
    with translated_errors():
        frame = letters(spark, url, queue, group, where).select("id").limit(MERGED_MAX)
        ids = [row["id"] for row in frame.collect()]
    return letters_queue.merge(ids=ids)
