"""Other queues under the driver's URL, as on another machine: every task refuses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.errors import ConfigError, QueueNotFoundError
from cassq.producer import staging
from cassq.spark import is_published, publish, pusher
from cassq.spark.clients import Location, located, place_at
from tests.integration.stage import numbers, push

pytest.importorskip("pyspark")

from pyspark.sql.types import StructType

from cassq.spark.jobs import audit_tasks, rollup_rows
from cassq.spark.options import SCHEMA, read_options, stream_options
from cassq.spark.reading import BatchReader, ScanTask
from cassq.spark.staged import batch_id
from cassq.spark.streams.stream_reader import StreamReader
from cassq.spark.writing import BatchWriter, Columns, WriteTarget


@pytest.fixture
def others(client: cassq.Client) -> Location:
    """What the driver says when it found other queues than are here."""
    return located(client.url)._replace(identity="others", host="driver")


def refused(client: cassq.Client) -> Any:
    """What a task raises: it names both."""
    identity = client.ports.catalog.records.identity()
    return pytest.raises(ConfigError, match=rf"other queues .*{identity}.*driver \(others\)")


def test_the_queues_that_the_driver_found_are_used(client: cassq.Client) -> None:
    location = located(client.url)
    identity = client.ports.catalog.records.identity()
    assert place_at(location).ports.catalog.records.identity() == identity


def test_a_driver_learns_whether_a_write_is_published(
    client: cassq.Client, queue: cassq.Queue
) -> None:
    def there(write_id: str) -> bool:
        return is_published(client.url, queue.name, write_id)

    assert not there("w")
    push_staged = pusher(client.url, queue.name, write_id="w")
    receipts = list(push_staged([b"one", b"two"]))
    assert not there("w")
    assert publish(receipts) == 2
    assert (there("w"), there("other")) == (True, False)
    given_up = pusher(client.url, queue.name, write_id="other")
    list(given_up([b"three"]))
    row = client.ports.catalog.writes.by_id(queue.id, batch_id("other"))
    assert row is not None
    assert staging.abort(client.ports, row)
    assert not there("other")
    with pytest.raises(QueueNotFoundError):
        is_published(client.url, "nope", "w")


def test_a_copy_of_a_directory_on_another_machine_is_refused(client: cassq.Client) -> None:
    location = located(client.url)._replace(machine="another boot", host="driver")
    with pytest.raises(ConfigError, match="is a copy on .* of the directory .* driver") as caught:
        place_at(location)
    assert "keyspace" in caught.value.hint


@pytest.mark.long(reason="Spark jobs")
def test_a_pusher_finds_another_directory_at_its_path_and_pushes_nothing(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """Executors on other machines pushed to directories of their own and returned receipts."""
    path = tmp_path / "moved"
    with cassq.connect(f"file:{path}") as first:
        first.create_queue("jobs")
    push_there = pusher(f"file:{path}", "jobs")
    path.rename(tmp_path / "aside")
    with cassq.connect(f"file:{path}") as second:
        jobs = second.create_queue("jobs")
        rdd = spark.sparkContext.parallelize(numbers(10), 2)
        with pytest.raises(Exception, match="names other queues on"):
            rdd.mapPartitions(push_there).collect()
        assert jobs.stats().pushed == 0


@pytest.mark.usefixtures("spark")  # which parses the schema
@pytest.mark.parametrize("strict", ["true", "false"])
def test_readers_refuse_other_queues_even_if_they_may_lose_messages(
    client: cassq.Client, queue: cassq.Queue, others: Location, strict: str
) -> None:
    push(queue, *numbers(5))
    options = {"url": client.url, "queue": queue.name, "failOnDataLoss": strict}
    schema = StructType.fromDDL(SCHEMA)
    batch = BatchReader(read_options(options), schema)
    (task,) = batch.partitions()
    assert isinstance(task, ScanTask)
    stream = StreamReader(stream_options(options), schema)
    for reader in (batch, stream):
        assert sum(len(found) for found in reader.read(task)) == 5
        reader._location = others
        with refused(client):
            list(reader.read(task))


def test_a_writer_refuses_other_queues_before_it_takes_a_row(
    client: cassq.Client, queue: cassq.Queue, others: Location
) -> None:
    taken = 0

    def rows() -> Iterator[Any]:
        nonlocal taken
        taken += 1
        yield None

    target = WriteTarget(others, queue.name, Columns("payload", None, None), "driver")
    writer = BatchWriter(target, "batch:x")
    for act in (lambda: writer.write(rows()), lambda: writer.commit([]), lambda: writer.abort([])):
        with refused(client):
            act()
    assert taken == 0


@pytest.mark.parametrize(
    "task",
    [
        lambda location: audit_tasks.standings(location, [], []),
        lambda location: audit_tasks.walks(location, 1, []),
        lambda location: rollup_rows.rows(location, 0, []),
    ],
)
def test_tasks_of_jobs_refuse_other_queues(
    client: cassq.Client, others: Location, task: Callable[[Location], Iterator[Any]]
) -> None:
    with refused(client):
        list(task(others))
