"""A data source whose driver fails when a batch is published, and before Spark has noted that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cassq.spark.heartbeats import keeper
from cassq.spark.source import CassqSource
from cassq.spark.writing import StreamWriter

FLAG = "flag"


class FailingWriter(StreamWriter):
    """Fails once: while there is a file, which it removes. It is named by the sink's checkpoint."""

    flag: Path

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if self.flag.exists():
            self.flag.unlink()
            raise RuntimeError("the driver fails after it has published")


class FailingSource(CassqSource):
    @classmethod
    def name(cls) -> str:
        return "failing"

    def streamWriter(self, schema: Any, overwrite: bool) -> FailingWriter:
        writer = super().streamWriter(schema, overwrite)
        failing = FailingWriter(writer._target)
        failing.flag = Path(self.options["checkpointLocation"], FLAG)
        return failing


def register_failing(spark: Any) -> None:
    source = type("FailingSource", (FailingSource,), {"keeper": keeper().directory})
    spark.dataSource.register(source)
