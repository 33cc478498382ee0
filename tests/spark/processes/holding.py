"""A data source whose driver stops, for ever, in the commit of a batch: there it can be killed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from cassq.spark.heartbeats import keeper
from cassq.spark.source import CassqSource
from cassq.spark.writing import StreamWriter

BATCH = 2
BEFORE, AFTER = "before", "after"
HELD = "held"


class HoldingWriter(StreamWriter):
    """Stops at the batch `BATCH`: before it is published, or after that and before Spark has noted
    it. A file in the sink's checkpoint tells that it stands."""

    checkpoint: Path
    waits: str

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        if batchId == BATCH and self.waits == BEFORE:
            self._hold()
        super().commit(messages, batchId)
        if batchId == BATCH:
            self._hold()

    def _hold(self) -> None:
        (self.checkpoint / HELD).touch()
        threading.Event().wait()


class HoldingSource(CassqSource):
    waits: str

    @classmethod
    def name(cls) -> str:
        return "holding"

    def streamWriter(self, schema: Any, overwrite: bool) -> HoldingWriter:
        holding = HoldingWriter(super().streamWriter(schema, overwrite)._target)
        holding.checkpoint = Path(self.options["checkpointLocation"])
        holding.waits = self.waits
        return holding


def register_holding(spark: Any, waits: str) -> None:
    attributes = {"keeper": keeper().directory, "waits": waits}
    spark.dataSource.register(type("HoldingSource", (HoldingSource,), attributes))
