"""Spark on queues whose messages are on sidecars: processes that driver and tasks talk to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.stage import drain, extents, numbers, payloads, push, reap
from tests.servers.fixtures import running
from tests.servers.kinds import sidecar
from tests.spark.test_reading import load, read
from tests.spark.test_streams import follow, write_and_fail, write_stream
from tests.spark.test_writing import frame_of, saved

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def place_url() -> Iterator[str]:
    for sidecars in running(sidecar.cluster(nodes=2, replicas=2)):
        yield sidecars.url()


def fails_at_first(batches: Any) -> Any:
    """The first attempt at a task fails after it has filled pipes."""
    from pyspark import TaskContext

    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        raise RuntimeError("the first attempt fails at its end")


@pytest.mark.long(reason="Spark and sidecars")
def test_what_tasks_write_is_there_once_and_is_read_by_tasks(
    spark: Any, client: cassq.Client, queue: cassq.Queue
) -> None:
    for _ in range(2):
        frame = frame_of(spark, 0, 3000, 2).mapInArrow(fails_at_first, "payload binary")
        saved(frame, queue, client, writeId="once")
    assert read(spark, queue, client) == sorted(numbers(3000))
    with queue.pusher() as pusher:
        pusher.push(b"open", key=b"k")
        (row,) = load(spark, queue, client).filter("key is not null").collect()
        assert (bytes(row.payload), bytes(row.key)) == (b"open", b"k")
    found = drain(queue.popper())
    assert Counter(payloads(found)) == Counter([*numbers(3000), b"open"])
    audit = queue.audit()
    assert (audit.pushed, audit.findings) == (3001, [])
    reap(client)
    assert extents(client) == [], "neither what was committed, nor what failed attempts left"


@pytest.mark.long(reason="the same stream is tested on a directory")
def test_a_stream_from_queue_to_queue_publishes_each_batch_once(
    spark: Any, client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    """The driver fails after the first batch is published, and runs again."""
    target = client.create_queue(f"{queue.name}-out")
    checkpoint = tmp_path / "checkpoint"
    push(queue, *numbers(150))
    frame = follow(spark, client, queue, maxMessagesPerTrigger="100")
    write_and_fail(spark, frame, client, target, checkpoint)
    assert target.stats().groups["default"].waiting == 100
    push(queue, *numbers(150, 150))
    write_stream(frame, client, target, checkpoint)
    assert Counter(payloads(drain(target.popper()))) == Counter(numbers(300))
    assert queue.stats().groups["default"].committed == 300
    for each in (queue, target):
        assert each.audit().findings == []
    client.delete_queue(target.name)
