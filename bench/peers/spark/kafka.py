"""Kafka from Spark, by Spark's own source and sink, with and without a sync of every append."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark

from bench.peers.peer import Traits
from bench.peers.servers.kafka import NEVER_SYNC, KafkaPeer
from bench.peers.spark.in_spark import InSpark
from bench.servers.server import MissingServerError
from tests.servers.parts import errors, jars

POM = Path(__file__).parents[2] / "servers" / "spark-kafka-pom.xml"
KIND = "spark-kafka"
INSTALL = "apt-get install -y openjdk-17-jre-headless maven"
# One for each task that runs at once.
PARTITIONS = 2
NOTE = (
    f"Spark's own source and sink {jars.version(POM)} in PySpark {pyspark.__version__}; two"
    " partitions, acks=all, linger 5 ms, batches up to 1 MB"
)


class KafkaSparkPeer(InSpark, KafkaPeer):
    name = "kafka-spark"
    title = "Kafka, page cache, from Spark"
    column = "value"
    traits = Traits(
        server="kafka",
        warmup_messages=500_000,
        only=("spark",),
        durable="page cache",
        note=NOTE,
    )
    flush_messages = NEVER_SYNC

    @classmethod
    def find(cls) -> None:
        for program in ("java", "mvn"):
            if shutil.which(program) is None:
                raise MissingServerError(f"{program} is not installed ({INSTALL})")
        try:
            jars.fetch(KIND, POM)
        except errors.MissingServerError as error:
            raise MissingServerError(str(error)) from error

    @classmethod
    def connector(cls) -> list[Path]:
        return sorted(jars.jar_directory(KIND, POM).glob("*.jar"))

    def make(self) -> None:
        self.make_topic(PARTITIONS)

    @property
    def _options(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.place.address}

    def write(self, frame: Any) -> None:
        tuned = {"kafka.acks": "all", "kafka.linger.ms": "5", "kafka.batch.size": "1000000"}
        writer = frame.withColumnRenamed("payload", "value").write.format("kafka")
        writer.options(**self._options, **tuned, topic=self.place.queue).save()

    def _source(self, reader: Any) -> Any:
        from_start = {"subscribe": self.place.queue, "startingOffsets": "earliest"}
        return reader.format("kafka").options(**self._options, **from_start).load()

    def read(self, spark: Any, *, payload_only: bool) -> Any:
        frame = self._source(spark.read)
        return frame.select("value") if payload_only else frame

    def follow(self, spark: Any) -> Any:
        return self._source(spark.readStream)


class KafkaSparkSyncedPeer(KafkaSparkPeer):
    name = "kafka-spark-synced"
    title = "Kafka, synced, from Spark"
    traits = replace(KafkaSparkPeer.traits, durable="disk", note=f"{NOTE}; flush.messages=1")
    flush_messages = "1"
