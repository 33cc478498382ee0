"""Spark: data pipelines read and write queues through PySpark.

`pusher` pushes the rows of an RDD's partitions. With a write id they stay invisible until `publish`
makes all of them visible at once; `is_published` says whether that has happened. `register` adds
the data source `cassq`, for batches and streams, to a session. `docs/spark.md` describes its
options and guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cassq import extras

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cassq.spark.pushing import PushReceipt, is_published, publish, pusher

__all__ = ["PushReceipt", "is_published", "json_rows", "publish", "pusher", "register"]


if not TYPE_CHECKING:  # a type checker would conclude that every name exists

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'cassq.spark' has no attribute {name!r}")
        from cassq.spark import pushing  # all of Spark's Python processes import this; few push

        return getattr(pushing, name)


def register(spark: SparkSession) -> None:
    """Add the data source `cassq` to a session: `spark.read.format("cassq")` and so on.

    From then on, for as long as it lives, this process renews the lease under which it leads the
    writes begun in the session. Batch reads use the filters of queries if the session's setting
    `spark.sql.python.filterPushdown.enabled` is true when this is called. Registering again is not
    an error.

    Raises MissingExtraError without PySpark or PyArrow, and ConfigError for a PySpark that is too
    old.
    """
    with extras.wanted("Spark's data source needs", "pyspark and pyarrow", "spark"):
        from cassq.spark.source import source_class
    # With the setting off, Spark refuses readers that could use filters.
    filters = spark.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
    spark.dataSource.register(source_class(filters=filters))


def json_rows(
    frame: DataFrame, *, payload: str = "payload", keep: tuple[str, ...] = ()
) -> DataFrame:
    """Put each row of a frame as JSON into the column `payload`. The columns named in `keep`, such
    as headers and key, stay columns and are left out of the JSON. No Python runs per row.
    """
    with extras.wanted("Spark's data source needs", "pyspark and pyarrow", "spark"):
        from pyspark.sql import functions
    rest = [name for name in frame.columns if name not in keep]
    row = functions.to_json(functions.struct(*rest)).alias(payload)
    return frame.select(row, *keep)
