"""The data source `cassq`, which gives Spark its readers and writers.

Each reader and writer is imported when Spark asks for it, so that a task that reads does not load
what only writes need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from uuid import uuid4

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from cassq.errors import ConfigError
from cassq.spark.clients import located
from cassq.spark.options import (
    SCHEMA,
    SCHEMA_OF_SEVERAL,
    WriteOptions,
    read_options,
    reads_several,
    stream_options,
    write_options,
)
from cassq.spark.wording import in_spark

if TYPE_CHECKING:
    from cassq.spark.reading import BatchReader
    from cassq.spark.streams.stream_reader import StreamReader
    from cassq.spark.writing import BatchWriter, StreamWriter, WriteTarget


class CassqSource(DataSource):
    """Created by Spark, in processes on the driver's machine. keeper: the directory of the
    driver's keeper. filters: whether Spark may give its readers the filters of queries."""

    keeper: ClassVar[str] = ""
    filters: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        return "cassq"

    def schema(self) -> str:
        return SCHEMA_OF_SEVERAL if reads_several(self.options) else SCHEMA

    # --- reading ------------------------------------------------------------------------------

    @in_spark()
    def reader(self, schema: StructType) -> BatchReader:
        from cassq.spark.reading import BatchReader, FilteredReader

        kind = FilteredReader if self.filters else BatchReader
        return kind(read_options(self.options), schema)

    @in_spark()
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        from cassq.spark.streams.stream_reader import StreamReader

        return StreamReader(stream_options(self.options), schema)

    # --- writing ------------------------------------------------------------------------------

    @in_spark()
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from cassq.spark.staged import batch_id
        from cassq.spark.writing import BatchWriter

        options = write_options(self.options)
        target = self._target(options, schema, overwrite)
        return BatchWriter(target, batch_id(options.write_id or uuid4().hex))

    @in_spark()
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from cassq.spark.writing import StreamWriter

        options = write_options(self.options)
        if options.write_id:
            raise ConfigError(
                "a stream has no writeId: the query's id in the checkpoint is used instead"
            )
        return StreamWriter(self._target(options, schema, overwrite))

    def _target(self, options: WriteOptions, schema: StructType, overwrite: bool) -> WriteTarget:
        from cassq.spark.encoding import chosen
        from cassq.spark.heartbeats import driver_id
        from cassq.spark.writing import WriteTarget, check_target

        if overwrite:
            raise ConfigError("a queue cannot be overwritten", hint='write with .mode("append")')
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        columns = chosen(options, types)
        check_target(options.url, options.queue)
        driver = driver_id(self.keeper, options.url)
        return WriteTarget(located(options.url), options.queue, columns, driver)


def source_class(*, filters: bool = False) -> type[CassqSource]:
    """A new class of the data source, for this process. Such a class is pickled by value, so the
    keeper's directory and `filters` reach Spark's other processes with it."""
    from cassq.spark.heartbeats import keeper

    fields = {"keeper": keeper().directory, "filters": filters}
    return type("CassqSource", (CassqSource,), fields)
