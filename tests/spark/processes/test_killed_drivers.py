"""Drivers that are killed, and started again: what they wrote under an id is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, extents, numbers, payloads, reap
from tests.spark.processes.drivers import (
    CLUSTER,
    COUNT,
    SECONDS,
    WRITE_ID,
    driver,
    kill,
    run_to_the_end,
)


def staged(client: cassq.Client) -> list[str]:
    """The pipes that wait, whole, for their write to be published."""
    rows = [client.ports.catalog.pipes.by_id(pipe_id) for pipe_id in extents(client)]
    return [row.id for row in rows if row is not None and row.stage and row.end is not None]


@pytest.fixture
def own_client(tmp_path: Path) -> Iterator[cassq.Client]:
    with cassq.connect(f"file://{tmp_path}/queues") as client:
        yield client


@pytest.mark.long(reason="a Spark cluster of several JVMs")
def test_a_driver_killed_between_write_and_commit_leaves_nothing_and_is_done_once_again(
    own_client: cassq.Client,
) -> None:
    queue = own_client.create_queue("jobs")
    with driver("local[2]", queue, own_client.url, "before") as process:
        eventually("a task is done", lambda: len(staged(own_client)) == 1, seconds=SECONDS)
        kill(process)
    assert drain(queue.popper()) == []
    assert queue.audit().pushed == 0
    assert run_to_the_end(CLUSTER, queue, own_client.url) == "written\n"
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(COUNT))
    assert queue.audit().findings == []
    reap(own_client)
    assert extents(own_client) == [], "what the first one had staged is removed"


@pytest.mark.long(reason="drivers that are JVMs of their own")
def test_a_driver_killed_after_its_commit_has_written_once_however_often_it_is_started(
    spark: Any, own_client: cassq.Client
) -> None:
    queue = own_client.create_queue("jobs")
    with driver("local[2]", queue, own_client.url, "after") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        kill(process)
    ids = spark.range(0, COUNT, numPartitions=2)
    writer = ids.selectExpr("cast(id as string) as payload").write.format("cassq").mode("append")
    writer.options(url=own_client.url, queue=queue.name, writeId=WRITE_ID).save()
    assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(COUNT))
    assert queue.audit().findings == []
