"""Streams whose driver is killed in the middle, and that another driver takes up."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.inspect.history import HOUR_MS
from tests.integration.deadlines import eventually
from tests.integration.stage import drain, numbers, push
from tests.spark.processes.drivers import SECONDS, kill, running
from tests.spark.processes.test_killed_drivers import own_client

pytest.importorskip("pyspark")

from tests.spark.processes.holding import AFTER, BATCH, BEFORE, HELD
from tests.spark.processes.stream_driver import PER_BATCH, bring_at_last

pytestmark = pytest.mark.long(reason="drivers that are JVMs of their own")

__all__ = ["own_client"]


def is_held(process: subprocess.Popen[str], checkpoint: Path) -> bool:
    assert process.poll() is None, "the driver ended before"
    return (checkpoint / HELD).exists()


def prolong(client: cassq.Client, queue: cassq.Queue) -> None:
    """Have the lease of a queue's stream last longer than a query waits for one."""
    (group,) = client.ports.catalog.queues.groups(queue.id)
    leases, name = client.ports.catalog.leases, f"stream:{group.id}"
    owner = leases.owner(name)
    assert owner is not None
    assert leases.take(name, owner, HOUR_MS) is not None


@pytest.mark.parametrize(("waits", "published"), [(BEFORE, BATCH), (AFTER, BATCH + 1)])
def test_from_queue_to_queue_each_message_arrives_once_though_the_driver_is_killed(
    spark: Any, own_client: cassq.Client, tmp_path: Path, waits: str, published: int
) -> None:
    """A popper reads at the far end all the while. The next query takes up the work at once: the
    lease of the killed one would last for another hour."""
    source, target = own_client.create_queue("source"), own_client.create_queue("target")
    ids = [each for n in range(3) for each in push(source, *numbers(150, 150 * n))]
    checkpoint = tmp_path / "checkpoint"
    route = [own_client.url, source.name, target.name, str(checkpoint)]
    popper = target.popper()
    with running("tests.spark.processes.stream_driver", *route, waits) as process:
        eventually("a batch is held", lambda: is_held(process, checkpoint), seconds=SECONDS)
        kill(process)
    prolong(own_client, source)
    found = drain(popper)
    assert len(found) == published * PER_BATCH
    ids += push(source, *numbers(150, 450))
    bring_at_last(spark, "cassq", *route)
    found += drain(popper)
    assert Counter((message.key or b"").decode() for message in found) == Counter(ids)
    assert len({message.id for message in found}) == len(ids)
    assert source.stats().groups["default"].committed == len(ids)
    for queue in (source, target):
        assert queue.audit().findings == []
