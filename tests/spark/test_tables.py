"""SQL: what Spark tells the data source of tables and views, and what it leaves out; and streams
whose columns change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.stage import numbers, push
from tests.spark.patience import at_last

pytestmark = pytest.mark.long(reason="several Spark jobs in each test")


@pytest.fixture
def sql(spark: Any) -> Iterator[Any]:
    """Runs a statement; the views and tables of a test are dropped."""
    yield lambda text: [tuple(row) for row in spark.sql(text).collect()]
    spark.sql("DROP VIEW IF EXISTS jobs_view")
    spark.sql("DROP TABLE IF EXISTS jobs_table")


def test_a_temporary_view_keeps_its_options(
    sql: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(3))
    place = f"url '{client.url}', queue '{queue.name}'"
    sql(f"CREATE TEMPORARY VIEW jobs_view USING cassq OPTIONS ({place})")
    assert sql("SELECT string(payload) FROM jobs_view ORDER BY seq") == [("0",), ("1",), ("2",)]
    sql("INSERT INTO jobs_view (payload) VALUES (binary('more'))")
    assert queue.stats().pushed == 4


def test_a_table_of_the_catalog_needs_its_options_in_each_statement(
    sql: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    """Spark keeps them, but does not give them to Python data sources."""
    push(queue, *numbers(3))
    place = f"url '{client.url}', queue '{queue.name}'"
    given = f"WITH (url = '{client.url}', queue = '{queue.name}')"
    sql(f"CREATE TABLE jobs_table (payload binary) USING cassq OPTIONS ({place})")
    with pytest.raises(Exception, match="the option `.*` is missing"):
        sql("SELECT count(*) FROM jobs_table")
    assert sql(f"SELECT count(*) FROM jobs_table {given}") == [(3,)]
    once = given.replace(")", ", writeId = 'w')")
    for _ in range(2):
        sql(f"INSERT INTO jobs_table {once} VALUES (binary('more'))")
    assert queue.stats().pushed == 4
    with pytest.raises(Exception, match="cannot be overwritten|does not support"):
        sql(f"INSERT OVERWRITE jobs_table {given} VALUES (binary('x'))")
    sql("DROP TABLE jobs_table")
    assert queue.stats().pushed == 4


def test_a_stream_goes_on_with_other_columns(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """Its offsets do not depend on them."""
    found: list[tuple[list[str], int]] = []

    def take(batch: Any, number: int) -> None:
        found.append((batch.columns, batch.count()))

    def run(schema: str) -> None:
        push(queue, *numbers(5))
        reader = spark.readStream.format("cassq").options(url=client.url, queue=queue.name)
        writer = reader.schema(schema).load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        at_last(lambda: writer.trigger(availableNow=True).start().awaitTermination())

    run("payload binary")
    run("payload binary, key binary, priority int")
    assert found == [(["payload"], 5), (["payload", "key", "priority"], 5)]
