"""A program that uses Spark Connect, with a server on this machine: `python -m
tests.spark.processes.connect_client URL QUEUE DIRECTORY` prints what it read, as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import cassq.spark
from tests.spark.places import PATIENT

SETTINGS = PATIENT | {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
WRITTEN = 50


def main(url: str, queue: str, directory: str) -> None:
    builder = SparkSession.builder.remote("local[2]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    cassq.spark.register(spark)
    options = {"url": url, "queue": queue}
    read = spark.read.format("cassq").options(**options).load().count()
    rows = [(b"new %d" % number,) for number in range(WRITTEN)]
    frame = spark.createDataFrame(rows, "payload binary")
    write = {**options, "writeId": "once"}
    for _ in range(2):  # the second time nothing is left to write
        frame.write.format("cassq").options(**write).mode("append").save()
    stream = spark.readStream.format("cassq").options(**options).load()
    writer = stream.writeStream.format("parquet").option("path", f"{directory}/out")
    query = writer.option("checkpointLocation", f"{directory}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    streamed = spark.read.parquet(f"{directory}/out").count()
    print(json.dumps({"session": type(spark).__module__, "read": read, "streamed": streamed}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
