"""The driver: a program that is killed, and started again just as it was the first time.

python -m spark.driver DIRECTORY DEPARTURES PER_BATCH
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
import pyarrow

import cassq.spark
from archive import write_whole
from data import read_planes, read_weather
from spark import pipeline
from spark.departures import closing, departures

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def main(directory: Path, count: int, per_batch: int) -> None:
    """Push the departures, and have both queries read what is there."""
    places = pipeline.Places(directory)
    session = open_session(directory)
    cassq.spark.register(session)
    flights = departures(count)
    # Started again, the program pushes again; under the same ids that does nothing.
    pipeline.push(frame(session, flights), places.url, "2013")
    pipeline.push(frame(session, closing(flights)), places.url, "2013, closed")

    planes, weather = frame(session, read_planes()), frame(session, read_weather())
    found = {
        group: pipeline.windows(
            pipeline.read(session, places.url, group, per_batch), planes, weather
        )
        for group in pipeline.GROUPS
    }
    queries = [
        pipeline.write_windows(found["windows"], places),
        pipeline.write_alerts(found["alerts"], places),
    ]
    for query in queries:
        query.awaitTermination()
    # Read by Spark, for files of a batch that a kill has cut off lie there too, and do not count.
    write_whole(session.read.parquet(str(places.windows)).toArrow(), places.collected)
    session.stop()


def open_session(directory: Path) -> SparkSession:
    """Two tasks at once, on this machine."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.master("local[2]").appName("flights")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def frame(session: SparkSession, rows: pandas.DataFrame) -> DataFrame:
    return session.createDataFrame(pyarrow.Table.from_pandas(rows, preserve_index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4]))
