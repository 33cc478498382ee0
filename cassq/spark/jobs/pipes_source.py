"""The data source `cassq-pipes`, used by the jobs: reads selected pipes whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cassq.message.frames import Place
from cassq.spark.clients import located
from cassq.spark.options import MESSAGES_PER_PARTITION, SCHEMA
from cassq.spark.reading import PipeRange, ScanTask, parts, read_pieces

NAME = "cassq-pipes"


def read_pipes(
    spark: SparkSession, url: str, lengths: Mapping[str, int], *, fail_on_data_loss: bool
) -> DataFrame:
    """The messages of pipes. lengths: how many each has. fail_on_data_loss: whether the read fails
    if messages were removed before it; if not, they are left out."""
    spark.dataSource.register(PipesSource)
    options = {"url": url, "pipes": json.dumps(dict(lengths)), "strict": str(fail_on_data_loss)}
    return spark.read.format(NAME).options(**options).load()


class PipesSource(DataSource):
    """Created by Spark, in processes on the driver's machine."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> PipesReader:
        strict = self.options["strict"] == "True"
        lengths = json.loads(self.options["pipes"])
        return PipesReader(self.options["url"], lengths, schema, fail_on_data_loss=strict)


class PipesReader(DataSourceReader):
    """The reader of one read: created on the driver, and pickled to the executors."""

    def __init__(
        self, url: str, lengths: dict[str, int], schema: StructType, *, fail_on_data_loss: bool
    ) -> None:
        self._location = located(url)
        self._lengths = lengths
        self._columns = schema
        self._strict = fail_on_data_loss

    def partitions(self) -> list[InputPartition]:
        pieces = [
            PipeRange(pipe_id, Place(0, 0), count) for pipe_id, count in self._lengths.items()
        ]
        return list(parts(pieces, MESSAGES_PER_PARTITION))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        pieces = partition.pieces if isinstance(partition, ScanTask) else ()
        return read_pieces(self._location, pieces, self._columns, fail_on_data_loss=self._strict)
