"""cassq from Spark: its data source, and for comparison a push for each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyspark

import cassq.spark
from bench.peers.ours.cassandra import CassqCassandraPeer
from bench.peers.ours.embedded import CassqPeer
from bench.peers.peer import Traits
from bench.peers.spark.in_spark import InSpark
from cassq.spark.clients import client_of

VERSION = pyspark.__version__
PAYLOADS = "payload binary"  # a schema: these alone are to be read


class CassqInSpark(InSpark, CassqPeer):
    """By the data source `cassq`."""

    def meet(self, spark: Any) -> None:
        cassq.spark.register(spark)

    def make(self) -> None:
        self.create()

    @property
    def _options(self) -> dict[str, str]:
        return {"url": self.url, "queue": self.place.queue}

    def write(self, frame: Any) -> None:
        frame.write.format("cassq").mode("append").options(**self._options).save()

    def read(self, spark: Any, *, payload_only: bool) -> Any:
        reader = spark.read.format("cassq").options(**self._options)
        return (reader.schema(PAYLOADS) if payload_only else reader).load()

    def follow(self, spark: Any) -> Any:
        reader = spark.readStream.format("cassq").options(**self._options)
        return reader.schema(PAYLOADS).load()


class CassqSparkPeer(CassqInSpark):
    name = "cassq-spark"
    title = "cassq, from Spark"
    traits = Traits(
        only=("spark",), note=f"its data source in PySpark {VERSION}, everything at its default"
    )


class CassqSparkCassandraPeer(CassqCassandraPeer, CassqInSpark):
    name = "cassq-spark-cassandra"
    title = "cassq on Cassandra, from Spark"
    traits = Traits(
        server="cassandra",
        only=("spark-cassandra",),
        warmup_messages=100_000,
        durable="commit log",
        note=f"its data source in PySpark {VERSION}, consistency QUORUM",
    )


class RowByRow:
    """What a task of `foreachPartition` does: a durable push for each row."""

    def __init__(self, url: str, queue: str) -> None:
        self.url = url
        self.queue = queue

    def __call__(self, rows: Iterable[Any]) -> None:
        with client_of(self.url).queue(self.queue).pusher() as pusher:
            for row in rows:
                pusher.push(row.payload)


class CassqSparkRowsPeer(CassqInSpark):
    name = "cassq-spark-rows"
    title = "cassq, a push a row"
    traits = Traits(only=("spark",), note="foreachPartition, pusher.push for each row")

    def write(self, frame: Any) -> None:
        frame.foreachPartition(RowByRow(self.url, self.place.queue))


class CassqSparkRowsCassandraPeer(CassqCassandraPeer, CassqSparkRowsPeer):
    name = "cassq-spark-rows-cassandra"
    title = "cassq on Cassandra, a push a row"
    traits = replace(CassqSparkCassandraPeer.traits, note=CassqSparkRowsPeer.traits.note)
