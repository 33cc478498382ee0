"""Reads, writes and streams through Spark Connect, with a server on the client's machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cassq
from tests.integration.stage import numbers, push
from tests.spark.processes.connect_client import WRITTEN
from tests.spark.processes.drivers import SECONDS, running


@pytest.mark.needs("module:grpc_status")
@pytest.mark.long(reason="a Spark Connect server of its own")
def test_a_client_of_spark_connect_reads_writes_and_streams(
    client: cassq.Client, queue: cassq.Queue, tmp_path: Path
) -> None:
    push(queue, *numbers(100))
    arguments = [client.url, queue.name, str(tmp_path)]
    with running("tests.spark.processes.connect_client", *arguments) as process:
        printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    found = json.loads(printed.splitlines()[-1])
    assert found["session"].startswith("pyspark.sql.connect")
    assert (found["read"], found["streamed"]) == (100, 100 + WRITTEN)
    audit = queue.audit()
    assert audit.balanced, audit.findings
    assert audit.pushed == 100 + WRITTEN
    assert audit.groups["default"].committed == 100 + WRITTEN
