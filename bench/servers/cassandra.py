"""Cassandra, one node or three, started by the command that tests start their servers with."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar

from bench.servers.server import MissingServerError, Server

ROOT = Path(__file__).parents[2]
INSTALL = "apt-get install -y openjdk-17-jdk-headless maven; pip install cassandra-driver"

# The tests' nodes are small and quick to start; these are for throughput. Flushes and commit-log
# segments as large as Cassandra's own defaults make them on such a machine.
OPTIONS = {
    "memtable_heap_space": "512MiB",
    "memtable_offheap_space": "512MiB",
    "commitlog_segment_size": "32MiB",
    "commitlog_total_space": "4096MiB",
    "networking_cache_size": "128MiB",
    "key_cache_size": "64MiB",
    # On a busy machine an answer may take long; that shows in the figures, and ends no run.
    "write_request_timeout": "30s",
    "read_request_timeout": "30s",
    "range_request_timeout": "30s",
    "cas_contention_timeout": "30s",
}


class CassandraServer(Server):
    """One node that syncs its commit log before it answers (`commitlog_sync: batch`)."""

    name = "cassandra"
    ready_seconds_max: ClassVar[float] = 120.0
    nodes: ClassVar[int] = 1
    commitlog_sync: ClassVar[str] = "batch"
    heap_mib: ClassVar[int] = 2_048

    def find(self) -> None:
        try:
            import cassandra  # noqa: F401

            from tests.servers.kinds import cassandra as cluster
            from tests.servers.parts.errors import MissingServerError as NotToBeHadError
        except ImportError as error:
            raise MissingServerError(f"{error.name} is not installed ({INSTALL})") from error
        try:
            cluster.cluster(self.nodes).find()
        except NotToBeHadError as error:
            raise MissingServerError(str(error)) from error

    def prepare(self) -> list[str]:
        self.environment = {"PYTHONPATH": str(ROOT)}
        # Clusters are known by their names all over the machine: this one's place is its own.
        name = f"{self.home.parent.name}-{self.name}"
        options = [f"--option={key}={value}" for key, value in OPTIONS.items()]
        return [
            *(sys.executable, "-m", "tests.servers", "up", "cassandra", "--json"),
            *(f"--name={name}", f"--home={self.home / 'cluster'}", f"--nodes={self.nodes}"),
            *(f"--commitlog-sync={self.commitlog_sync}", f"--heap-mib={self.heap_mib}"),
            *("--full-jit", *options),
        ]

    def ready(self) -> bool:
        # The command prints one line when all nodes answer and see one another.
        log = (self.home / "output.log").read_text(errors="replace")
        if not log.startswith("{") or not log.endswith("\n"):
            return False
        self.address = ",".join(json.loads(log.splitlines()[0])["contact_points"])
        return True

    def version(self) -> str:
        from tests.servers.parts import jars

        nodes = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        settings = (
            f"{nodes}, commitlog_sync {self.commitlog_sync}, {self.heap_mib} MiB of heap each"
        )
        driver = f"cassandra-driver {version('cassandra-driver')}"
        return f"Cassandra {jars.version(jars.pom_of('cassandra'))} ({settings}; {driver})"


class CassandraPeriodicServer(CassandraServer):
    """One node as it comes: it answers at once, and syncs its commit log every ten seconds."""

    name = "cassandra-periodic"
    commitlog_sync = "periodic"


class CassandraThreeServer(CassandraServer):
    """Three nodes, on which everything is kept three times."""

    name = "cassandra-three"
    nodes = 3
    heap_mib = 1_024
