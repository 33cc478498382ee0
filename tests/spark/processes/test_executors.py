"""Executors in processes of their own: tasks that run twice at once, and what is not installed
there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from tests import needs
from tests.integration.stage import drain, extents, numbers, payloads, reap
from tests.spark.processes.drivers import COUNT, run_to_the_end

pytestmark = pytest.mark.long(reason="a Spark cluster of several JVMs")

SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=200ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.5",
    "spark.speculation.minTaskRuntime=200ms",
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for tool in ("java", "module:pyspark", "module:pyarrow"):
        needs.require(tool)
    from tests.spark.processes.cluster import cluster

    with cluster(tmp_path_factory.mktemp("cluster")) as url:
        yield url


@pytest.mark.parametrize(
    ("waits", "said"), [("first", "written\n"), ("rdd-first", f"published {COUNT}\n")]
)
def test_of_a_task_that_runs_twice_at_once_one_attempt_counts(
    master: str, tmp_path: Path, waits: str, said: str
) -> None:
    """The first attempt has all its messages staged, and never ends: that the job does is due to
    the second, on the other worker."""
    with cassq.connect(f"file://{tmp_path}/queues") as client:
        queue = client.create_queue("jobs")
        assert run_to_the_end(master, queue, client.url, waits, *SPECULATION) == said
        assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(COUNT))
        assert queue.audit().findings == []
        reap(client)
        assert extents(client) == [], "nothing is left of the attempt that was beaten"


@pytest.mark.parametrize(
    ("waits", "said"), [("lost", "written\n"), ("rdd-lost", f"published {COUNT}\n")]
)
def test_a_stage_that_is_run_again_because_an_executor_was_lost_writes_once(
    master: str, tmp_path: Path, waits: str, said: str
) -> None:
    """What is lost with it, of the stage before, is made again, and both are in the write."""
    with cassq.connect(f"file://{tmp_path}/queues") as client:
        queue = client.create_queue("jobs")
        assert run_to_the_end(master, queue, client.url, waits) == said
        assert len(list(tmp_path.glob("first-stage-*"))) > 2, "some of it was made again"
        assert Counter(payloads(drain(queue.popper()))) == Counter(numbers(COUNT))
        assert queue.audit().findings == []
        reap(client)
        assert extents(client) == [], "nothing is left of attempts that do not count"


def test_a_write_from_an_executor_without_cassq_names_what_is_missing(
    master: str, tmp_path: Path
) -> None:
    """Found first on the executors' path is a module that cannot be imported."""
    said = "No module named 'cassq'"
    Path(tmp_path, "cassq.py").write_text(f'raise ModuleNotFoundError("{said}", name="cassq")\n')
    with cassq.connect(f"file://{tmp_path}/queues") as client:
        queue = client.create_queue("jobs")
        where = f"spark.executorEnv.PYTHONPATH={tmp_path}"
        assert said in run_to_the_end(master, queue, client.url, "no", where)
        assert queue.audit().pushed == 0


def test_an_executor_without_the_clusters_driver_says_what_to_install(
    master: str, spark_keyspace: str, tmp_path: Path
) -> None:
    """Found first on the executors' path is a module that cannot be imported, as one that is not
    there cannot."""
    Path(tmp_path, "cassandra.py").write_text("raise ModuleNotFoundError(name='cassandra')\n")
    with cassq.connect(spark_keyspace) as client:
        queue = client.create_queue("without-driver")
        where = f"spark.executorEnv.PYTHONPATH={tmp_path}"
        printed = run_to_the_end(master, queue, client.url, "no", where)
        assert "pip install 'cassq[cassandra]'" in printed
        assert queue.audit().pushed == 0
        client.delete_queue("without-driver")
