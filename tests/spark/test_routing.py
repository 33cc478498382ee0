"""Writes to several queues: each row goes to the queue that its column names, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, InvalidPayloadError, QueueFullError, QueueNotFoundError
from cassq.model.rows import WriteState
from tests.integration.stage import drain, numbers, payloads, push, reap
from tests.spark.places import everywhere

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from cassq.spark.clients import located
from cassq.spark.encoding import Columns, Now, chosen, runs
from cassq.spark.heartbeats import driver_id, keeper
from cassq.spark.options import WriteOptions, write_options
from cassq.spark.source import CassqSource
from cassq.spark.staged import Part, publish, publish_each
from cassq.spark.writing import BatchWriter, Filled, WriteTarget

NAMES = ("spark-even", "spark-odd")


@pytest.fixture
def pair(client: cassq.Client) -> Any:
    """Two queues, for rows with even and with odd numbers."""
    found = [client.create_queue(name, idle_seal=3600, claim_timeout=3600) for name in NAMES]
    yield found
    for queue in found:
        client.delete_queue(queue.name)


def writer(client: cassq.Client, write_id: str = "batch:x") -> BatchWriter:
    """A writer as the driver makes it, of rows that name their queues."""
    columns = Columns("payload", None, None, queue="queue")
    driver = driver_id(keeper().directory, client.url)
    return BatchWriter(WriteTarget(located(client.url), "", columns, driver), write_id)


def rows(first: int, last: int, *queues: str) -> Any:
    """A record batch with the numbers `first .. last`, whose queues take turns."""
    names = queues or NAMES
    return pa.record_batch(
        {
            "payload": pa.array(numbers(last - first, first)),
            "queue": pa.array([names[n % len(names)] for n in range(first, last)]),
        }
    )


def waiting(queues: list[cassq.Queue]) -> list[Counter[bytes]]:
    return [Counter(payloads(drain(queue.popper()))) for queue in queues]


def halves(last: int) -> list[Counter[bytes]]:
    return [Counter(numbers(last)[first::2]) for first in (0, 1)]


def test_each_run_has_the_rows_of_one_queue_and_priority() -> None:
    table = rows(0, 8).append_column("priority", pa.array([0, 0, 3, 3, None, 0, 9, 9]))
    columns = Columns("payload", None, None, priority="priority", queue="queue")
    found = list(runs(iter([table]), columns, lambda: Now(7, 7), "here"))
    assert {(run.queue, run.level.priority): run.messages.count for run in found} == {
        (name, priority): count for name in NAMES for priority, count in {0: 2, 3: 1, 9: 1}.items()
    }
    assert {run.lane for run in found} == {None}


def test_a_row_without_a_queue_is_named() -> None:
    table = pa.record_batch({"payload": [b"a", b"b"], "queue": ["x", None]})
    columns = Columns("payload", None, None, queue="queue")
    with pytest.raises(InvalidPayloadError, match="here, row 1: the queue is null"):
        list(runs(iter([table]), columns, lambda: Now(7, 7), "here"))


def test_either_the_option_or_a_column_names_the_queue() -> None:
    types = {"payload": "binary", "queue": "string", "to": "string"}
    here = {"url": "file:///nowhere"}
    assert chosen(write_options(here), {"payload": "binary", "queue": "string"}).queue == "queue"
    named = write_options({**here, "queueColumn": "to"})
    assert chosen(named, {"payload": "binary", "to": "string"}).queue == "to"
    with pytest.raises(ConfigError, match="`queue` is missing, and there is no column 'queue'"):
        chosen(write_options(here), {"payload": "binary"})
    with pytest.raises(ConfigError, match="option `queue` and column 'queue' both name queues"):
        chosen(write_options({**here, "queue": "jobs"}), types)
    with pytest.raises(ConfigError, match="column 'queue' is int, but must be string"):
        chosen(write_options(here), {"payload": "binary", "queue": "int"})
    as_key = WriteOptions("file:///nowhere", "jobs", key="queue")
    assert chosen(as_key, {"payload": "binary", "queue": "string"}).queue is None


def test_each_row_is_in_its_queue_once(client: cassq.Client, pair: list[cassq.Queue]) -> None:
    """Also of two attempts at a partition, of which Spark counts one."""
    for _ in range(2):
        driver = writer(client)
        driver.write(iter([rows(0, 50)]))
        driver.commit([driver.write(iter([rows(0, 50)])), driver.write(iter([rows(50, 100)]))])
    assert waiting(pair) == halves(100)
    reap(client)
    assert [queue.audit().findings for queue in pair] == [[], []]


def test_a_partition_without_rows_of_a_queue_holds_up_nothing(
    client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    driver = writer(client)
    parts = [rows(0, 10, NAMES[0]), rows(0, 0), rows(10, 20, NAMES[1])]
    driver.commit([driver.write(iter([part])) for part in parts])
    assert waiting(pair) == [Counter(numbers(10)), Counter(numbers(10, 10))]


def test_a_queue_that_is_missing_or_takes_nothing_is_named_and_nothing_is_published(
    client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    driver = writer(client)
    with pytest.raises(QueueNotFoundError, match="there is no queue 'spark-none'"):
        driver.write(iter([rows(0, 10, *NAMES, "spark-none")]))
    driver.abort([None])
    pair[1].update(max_length=3, overflow="reject")
    driver = writer(client)
    filled = [driver.write(iter([rows(0, 10)]))]
    with pytest.raises(QueueFullError, match="'spark-odd'"):
        driver.commit(list(filled))
    driver.abort(list(filled))
    assert [queue.stats().pushed for queue in pair] == [0, 0]
    assert client.ports.catalog.writes.unfinished() == []


def test_a_driver_that_died_between_two_queues_publishes_the_other_when_started_again(
    client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    first = writer(client)
    filled = first.write(iter([rows(0, 100)]))
    assert isinstance(filled, Filled)
    attempt = filled.attempts[NAMES[0]]
    part = Part(filled.write._replace(queue=NAMES[0]), [attempt.begun], attempt.pipes)
    assert publish(part, aborts=True)
    again = writer(client)
    again.commit([again.write(iter([rows(0, 100)]))])
    assert waiting(pair) == halves(100)


def test_an_error_after_the_first_queue_says_which_have_their_rows(
    client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    """As if others had filled the second one since it was looked at."""
    pair[0].update(max_length=5, overflow="reject")
    parts = []
    for write_id in ("batch:x", "batch:y"):
        filled = writer(client, write_id).write(iter([rows(0, 5, NAMES[0])]))
        assert isinstance(filled, Filled)
        attempt = filled.attempts[NAMES[0]]
        write = filled.write._replace(queue=NAMES[0])
        parts.append(Part(write, [attempt.begun], attempt.pipes))
    with pytest.raises(QueueFullError) as caught:
        publish_each(parts, aborts=True)
    assert "the rows of 'spark-even' are published already" in caught.value.hint
    assert pair[0].stats().pushed == 5


def test_what_only_a_failed_attempt_wrote_to_is_removed(
    client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    driver = writer(client)
    driver.write(iter([rows(0, 10, NAMES[1])]))  # Spark did not count it
    driver.commit([driver.write(iter([rows(0, 10, NAMES[0])]))])
    states = [client.ports.catalog.writes.by_id(queue.id, "batch:x") for queue in pair]
    assert [row and row.state for row in states] == [WriteState.PUBLISHED, WriteState.ABORTED]
    assert waiting(pair) == [Counter(numbers(10)), Counter()]


def test_a_writer_needs_a_queue_or_a_column(client: cassq.Client) -> None:
    source = CassqSource({"url": client.url})
    with pytest.raises(ConfigError, match="`queue` is missing, and there is no column 'queue'"):
        source.writer(StructType().add("payload", StringType()), overwrite=False)


@everywhere
@pytest.mark.long(reason="several Spark jobs")
def test_a_frame_is_written_to_its_queues_though_tasks_fail(
    spark: Any, client: cassq.Client, pair: list[cassq.Queue]
) -> None:
    def fails_at_first(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails at its end")

    frame = spark.range(0, 3000, numPartitions=2).selectExpr(
        "cast(cast(id as string) as binary) as payload",
        f"if(id % 2 = 0, '{NAMES[0]}', '{NAMES[1]}') as queue",
    )
    failing = frame.mapInArrow(fails_at_first, "payload binary, queue string")
    for _ in range(2):
        save = failing.write.format("cassq").mode("append")
        save.options(url=client.url, writeId="routed").save()
    assert waiting(pair) == halves(3000)
    with pytest.raises(Exception, match="there is no queue 'nope'"):
        save = frame.selectExpr("payload", "'nope' as queue").write.format("cassq")
        save.mode("append").options(url=client.url).save()
    push(pair[0], b"still open")
    assert waiting(pair) == [Counter([b"still open"]), Counter()]


@pytest.mark.long(reason="Spark takes half a minute to start and stop a query")
def test_a_stream_writes_each_row_to_its_queue_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, pair: list[cassq.Queue], tmp_path: Path
) -> None:
    """Also a batch whose driver failed after it had published."""
    from tests.spark.failing import FLAG, register_failing
    from tests.spark.patience import at_last

    register_failing(spark)
    push(queue, *numbers(400))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / FLAG).touch()
    stream = spark.readStream.format("cassq").options(url=client.url, queue=queue.name).load()
    routed = stream.selectExpr(
        "payload", f"if(cast(string(payload) as int) % 2 = 0, '{NAMES[0]}', '{NAMES[1]}') as queue"
    )

    def run() -> None:
        writing = routed.writeStream.format("failing").trigger(availableNow=True)
        writing = writing.options(url=client.url, checkpointLocation=str(checkpoint))
        writing.start().awaitTermination()

    with pytest.raises(Exception, match="after it has published"):
        at_last(run)
    at_last(run)
    assert waiting(pair) == halves(400)
