"""The pipeline: departures go to a queue, windows of delays to Parquet, alerts to another queue.

What to copy: `push`, `windows` and the two queries. Each is exactly once, with no code for that.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cassq.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

DEPARTURES, ALERTS = "departures", "alerts"
GROUPS = ("windows", "alerts")  # one query follows each of them
WINDOW = "6 hours"
# How far departures may be out of order. They are pushed in the order of their hours, by one task.
LATE = "1 hour"
# A window is bad if those who left did so half an hour late on the average, and were not a few.
BAD_MINUTES, FEW = 30, 20
COLUMNS = ("start", "origin", "planned", "departed", "minutes", "seat_minutes", "foul", "wind")

# What a message says.
DEPARTURE = (
    "time_hour string, origin string, carrier string, flight long, tailnum string, dep_delay long"
)


class Places(NamedTuple):
    """What is where in the directory of a run."""

    directory: Path

    @property
    def url(self) -> str:
        """Of both queues."""
        return f"file://{(self.directory / 'queues').resolve()}"

    @property
    def windows(self) -> Path:
        """Parquet, as the query writes it, with Spark's log of which files count."""
        return self.directory / "windows"

    @property
    def collected(self) -> Path:
        """The rows that Spark reads there at the end, in one file."""
        return self.directory / "windows.parquet"

    def checkpoint(self, query: str) -> Path:
        return self.directory / "checkpoints" / query


def push(frame: DataFrame, url: str, write_id: str) -> None:
    """Write a frame to the queue, in the order of its hours; once under its id.

    One task, so that the pipes it fills follow one another: the watermark of a query that reads
    them in turn is then never ahead of what is still to come.
    """
    ordered = frame.repartition(1).sortWithinPartitions("time_hour")
    writer = cassq.spark.json_rows(ordered).write.format("cassq").mode("append")
    writer.options(url=url, queue=DEPARTURES, writeId=write_id).save()


def read(session: SparkSession, url: str, group: str, per_batch: int) -> DataFrame:
    """The queue as a stream, for a group of its own."""
    reader = session.readStream.format("cassq").schema("payload binary")
    reader = reader.options(url=url, queue=DEPARTURES, group=group)
    return reader.option("maxMessagesPerTrigger", per_batch).load()


def windows(messages: DataFrame, planes: DataFrame, weather: DataFrame) -> DataFrame:
    """Delays by airport and six hours, of messages that are joined with planes and weather.

    A window comes out once, when the watermark has passed its end. All sums are of whole numbers,
    so they do not depend on the order.
    """
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("payload").cast("string"), DEPARTURE).alias("flight")
    flights = (
        messages.select(flight)
        .select("flight.*")
        .withColumn("time", f.to_timestamp("time_hour"))
        .withWatermark("time", LATE)
        .join(f.broadcast(planes.select("tailnum", "seats")), "tailnum", "left")
        .join(f.broadcast(_conditions(weather)), ["origin", "time_hour"], "left")
    )
    window = f.window("time", WINDOW).alias("window")
    sums = flights.groupBy(window, "origin").agg(
        f.count("*").alias("planned"),
        f.count("dep_delay").alias("departed"),
        _total("dep_delay").alias("minutes"),
        _total(f.col("dep_delay") * f.col("seats")).alias("seat_minutes"),
        _total("foul").alias("foul"),
        f.max("wind_speed").alias("wind"),
    )
    start = f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("start")
    return sums.select(start, *COLUMNS[1:])


def _conditions(weather: DataFrame) -> DataFrame:
    """Of each airport and hour: whether the weather was foul (1 or 0), and the wind."""
    foul = "cast(coalesce(precip > 0 or visib < 3, false) as long) as foul"
    return weather.selectExpr("origin", "time_hour", foul, "wind_speed")


def _total(what: Any) -> Any:
    """The sum of a column; 0 of nothing."""
    from pyspark.sql import functions as f

    return f.coalesce(f.sum(what), f.lit(0))


def write_windows(found: DataFrame, places: Places) -> StreamingQuery:
    """The query `windows`: to Parquet files, those that count being in a log of Spark's."""
    writer = found.writeStream.format("parquet").queryName("windows")
    writer = writer.option("checkpointLocation", str(places.checkpoint("windows")))
    return writer.trigger(availableNow=True).start(str(places.windows))


def write_alerts(found: DataFrame, places: Places) -> StreamingQuery:
    """The query `alerts`: the worst of the windows to a queue."""
    bad = found.where(f"departed >= {FEW} and minutes >= {BAD_MINUTES} * departed")
    writer = cassq.spark.json_rows(bad).writeStream.format("cassq").queryName("alerts")
    writer = writer.options(url=places.url, queue=ALERTS)
    writer = writer.option("checkpointLocation", str(places.checkpoint("alerts")))
    return writer.trigger(availableNow=True).start()
