"""A Spark driver of its own, to be killed: writes numbers to a queue, and waits where it is told.

python -m tests.spark.processes.driver MASTER URL QUEUE WRITE_ID COUNT WAITS [NAME=VALUE ...]

WAITS: `before`: one task is done, the other waits, for ever, before its end; `first`: only the
first attempt at that does; `after`: the driver waits, for ever, after the write was committed;
`no`: nobody does; `lost`: nobody does, but the first task of the last stage takes its executor
along, and with it what the stage before it had left there. `rdd-first`, `rdd-lost`: the same, by
the pusher of an RDD.
NAME=VALUE: how Spark is configured.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import cassq.spark
from tests.spark.places import PATIENT


def begun(master: str, *conf: str) -> SparkSession:
    """The session of a driver that nobody looks at, with the data source. conf: NAME=VALUE."""
    builder = SparkSession.builder.master(master)
    quiet = ("spark.ui.enabled=false", "spark.driver.host=127.0.0.1")
    for each in (*quiet, "spark.driver.bindAddress=127.0.0.1", *conf):
        name, _, value = each.partition("=")
        builder = builder.config(name, value)
    for name, value in PATIENT.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    cassq.spark.register(spark)
    return spark


def main(
    master: str, url: str, queue: str, write_id: str, count: int, waits: str, *conf: str
) -> None:
    limits = ("spark.executor.memory=512m", "spark.sql.execution.arrow.maxRecordsPerBatch=100")
    spark = begun(master, *limits, *conf)
    if waits.startswith("rdd-"):
        publish_rdd(spark, url, queue, write_id, count, waits.removeprefix("rdd-"))
        spark.stop()
        return
    ids = spark.range(0, count, numPartitions=2)
    frame = ids.selectExpr("cast(id as string) as payload")
    if waits in ("before", "first"):
        stuck = _stuck if waits == "before" else _stuck_at_first
        frame = frame.mapInArrow(stuck, "payload string")
    if waits == "lost":
        folder = Path(url.removeprefix("file://")).parent
        frame = frame.mapInArrow(_noting(folder), "payload string").repartition(2)
        frame = frame.mapInArrow(_losing(folder), "payload string")
    writer = frame.write.format("cassq").mode("append")
    try:
        writer.options(url=url, queue=queue, writeId=write_id).save()
    except PySparkException as exc:
        print(exc)
        sys.exit(1)
    print("written", flush=True)
    if waits == "after":
        threading.Event().wait()
    spark.stop()


def publish_rdd(spark: Any, url: str, queue: str, write_id: str, count: int, waits: str) -> None:
    rdd = spark.sparkContext.parallelize(range(count), 2).map(str)
    if waits == "first":
        rdd = rdd.mapPartitions(_stuck_at_first)
    if waits == "lost":
        folder = Path(url.removeprefix("file://")).parent
        rdd = rdd.mapPartitions(_noting(folder)).repartition(2).mapPartitions(_losing(folder))
    receipts = rdd.mapPartitions(cassq.spark.pusher(url, queue, batch=100, write_id=write_id))
    print("published", cassq.spark.publish(receipts.collect(), partitions=2), flush=True)


def _stuck(batches: Iterator[Any]) -> Iterator[Any]:
    """All of the other partition gets done, all but the end of this one."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.partitionId() == 1:
        threading.Event().wait()


def _stuck_at_first(batches: Iterator[Any]) -> Iterator[Any]:
    """The same, but a second attempt at it is not held up."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return batches if context.attemptNumber() else _stuck(batches)


def _noting(folder: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Leaves a file for each time a task of it is run."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        (folder / f"first-stage-{context.taskAttemptId()}").touch()

    return work


def _losing(folder: Path) -> Callable[[Iterator[Any]], Iterator[Any]]:
    flag = folder / "executor-lost"

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if not flag.exists():
            flag.touch()
            # The parent of this Python is the daemon, and of that the executor.
            status = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
            os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGKILL)
            threading.Event().wait()

    return work


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), *sys.argv[6:])
