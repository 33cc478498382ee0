"""What a Python of Spark loads for a task: modules that only clients need take it half a second."""

from __future__ import annotations

import pytest

import cassq
from tests.integration.stage import drain, numbers, push
from tests.unit.cli.test_start import loaded_by

pa = pytest.importorskip("pyarrow")

# What belongs to a client: popping, the reaper, statistics; and what no task of this store needs.
NEVER = (
    *("cassq.client.client", "cassq.popper", "cassq.producer.pusher", "cassq.cassandra"),
    *("cassq.consumer", "cassq.dead_letters", "cassq.reaper", "cassq.alerts", "cassq.cli"),
    *("cassq.inspect.stats", "cassq.inspect.audit", "cassq.extents.sidecar", "cassandra", "pandas"),
    *("cassq.extents.replicas", "cassq.model.sidecar_rows", "cassq.model.schedules"),
    *("cassq.catalog.sqlite.sidecar_tables", "cassq.base.sharing", "concurrent.futures"),
)
WRITING = ("cassq.producer", "cassq.pipes", "cassq.spark.writing", "cassq.spark.encoding")
READING = ("cassq.spark.reading", "cassq.spark.decoding", "cassq.spark.streams")
READ = """
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType
from cassq.spark.source import CassqSource
schema = StructType().add("payload", BinaryType()).add("id", StringType()).add("seq", LongType())
schema = schema.add("pushed_at", TimestampType()).add("pipe", StringType())
reader = CassqSource({options!r}).reader(schema)
(task,) = reader.partitions()
assert sum(len(batch) for batch in reader.read(task)) == 5
"""
WRITE = """
import pyarrow as pa
from cassq.spark.clients import located
from cassq.spark.encoding import Columns
from cassq.spark.source import CassqSource
from cassq.spark.writing import BatchWriter, WriteTarget
target = WriteTarget(located({url!r}), {queue!r}, Columns("payload", None, None), "driver")
writer = BatchWriter(target, "batch:x")
batches = pa.ipc.open_stream(bytes.fromhex({rows!r}))
writer.commit([writer.write(iter(batches))])
"""
PUSH = """
from cassq.spark.clients import located
from cassq.spark.pushing import PartitionPusher
from cassq.spark.staged import StagedWrite
write = StagedWrite(located({url!r}), {queue!r}, "batch:x", "driver")
push = PartitionPusher(write.location, write.queue, 100, write)
assert len(list(push([b"one", b"two"]))) == 1
"""


def below(loaded: set[str], *packages: str) -> list[str]:
    """The modules that are one of these packages, or in one."""
    starts = tuple(f"{package}." for package in packages)
    return sorted(name for name in loaded if f"{name}.".startswith(starts))


def test_a_task_that_reads_loads_nothing_of_a_client_and_nothing_to_write(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    push(queue, *numbers(5))
    loaded = loaded_by(READ.format(options={"url": client.url, "queue": queue.name}))
    assert "cassq.spark.reading" in loaded
    assert below(loaded, *NEVER, *WRITING) == []


def test_a_task_that_writes_loads_nothing_of_a_client_and_nothing_to_read(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    batch = pa.record_batch({"payload": [b"one", b"two"]})
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    rows = stream.getvalue().to_pybytes().hex()
    loaded = loaded_by(WRITE.format(url=client.url, queue=queue.name, rows=rows))
    assert len(drain(queue.popper())) == 2
    assert "cassq.spark.encoding" in loaded
    assert below(loaded, *NEVER, *READING) == []


def test_a_task_that_stages_rows_of_an_rdd_needs_no_arrow(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    loaded = loaded_by(PUSH.format(url=client.url, queue=queue.name))
    assert "cassq.spark.pushing" in loaded
    assert below(loaded, *NEVER, *READING, "pyarrow", "cassq.spark.encoding") == []


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'cassq.spark' has no attribute 'publsh'"):
        cassq.spark.publsh  # type: ignore[attr-defined]  # noqa: B018
