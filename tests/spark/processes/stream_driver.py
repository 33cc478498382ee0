"""A driver of a stream from queue to queue, of its own, which stops in a batch to be killed.

python -m tests.spark.processes.stream_driver URL SOURCE TARGET CHECKPOINT WAITS

WAITS: `before` the batch is published, or `after` it.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.spark.patience import at_last
from tests.spark.processes.driver import begun
from tests.spark.processes.holding import register_holding

PER_BATCH = 100


def main(url: str, source: str, target: str, checkpoint: str, waits: str) -> None:
    spark = begun("local[2]")
    register_holding(spark, waits)
    bring(spark, "holding", url, source, target, checkpoint)


def bring(spark: Any, sink: str, url: str, source: str, target: str, checkpoint: str) -> None:
    """Have what is there now brought from queue to queue, the ids it had as keys."""
    reader = spark.readStream.format("cassq").schema("payload binary, id string")
    reader = reader.options(url=url, queue=source, maxMessagesPerTrigger=PER_BATCH)
    # Two tasks, so that a batch is published in more than one piece.
    frame = reader.option("messagesPerPartition", PER_BATCH // 2).load()
    writer = frame.selectExpr("payload", "id as key").writeStream.format(sink)
    writer = writer.options(url=url, queue=target, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def bring_at_last(spark: Any, *how: str) -> None:
    """The same, started again if Spark gave up on a Python."""
    at_last(lambda: bring(spark, *how))


if __name__ == "__main__":
    main(*sys.argv[1:6])
