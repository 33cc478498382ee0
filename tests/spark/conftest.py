"""One Spark session for all tests, and places of queues for it."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
import cassq.spark
from tests import needs
from tests.contract.keyspaces import opened_keyspace
from tests.servers.kinds.cassandra import CassandraCluster
from tests.spark.places import CASSANDRA, EMBEDDED, PATIENT, QUICK_JVM

SETTINGS = PATIENT | {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.task.maxFailures": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.python.worker.faulthandler.enabled": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these tests is in want of the same tools, and waits for the same: a JVM that loads
    classes from the disk, starts workers and looks now and then."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            tools = ("java", "module:pyspark", "module:pyarrow")
            item.add_marker(pytest.mark.needs(*tools))
            item.add_marker(pytest.mark.filterwarnings("default"))
            item.add_marker(
                pytest.mark.waits(reason="Spark loads classes, starts workers and polls")
            )


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session in this process and its JVM, with two tasks at once, each in a Python of its own;
    a task may fail three times."""
    for tool in ("java", "module:pyspark", "module:pyarrow"):
        needs.require(tool)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("cassq's tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
    cassq.spark.register(session)
    yield session
    session.stop()
    from cassq.spark.heartbeats import keeper

    keeper().close()


@pytest.fixture(scope="session")
def spark_keyspace(cassandra1_for_the_session: CassandraCluster) -> Iterator[str]:
    for session in opened_keyspace(cassandra1_for_the_session, "spark"):
        yield cassandra1_for_the_session.url(session.contact.keyspace)
        from cassq.spark.heartbeats import keeper

        keeper().close()  # while those answer who its clients know


@pytest.fixture
def place_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Embedded, or in a keyspace, where queues of tests keep apart by their names."""
    if getattr(request, "param", EMBEDDED) == CASSANDRA:
        return str(request.getfixturevalue("spark_keyspace"))
    return f"file://{tmp_path}/queues"


@pytest.fixture
def client(place_url: str) -> Iterator[cassq.Client]:
    with cassq.connect(place_url) as client:
        yield client


@pytest.fixture
def queue(client: cassq.Client, request: pytest.FixtureRequest) -> Iterator[cassq.Queue]:
    """A queue of the test's own. What is open or held stays so, however long Spark takes."""
    name = f"spark-{abs(hash(request.node.name)) % 10**9}"
    yield client.create_queue(name, idle_seal=3600, claim_timeout=3600)
    client.delete_queue(name)
