"""cassq with everything in Cassandra: the same calls as embedded, another URL."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

from bench.peers.ours.embedded import CassqPeer
from bench.peers.peer import Traits
from cassq.settings import Consistency

KEYSPACE = "cassq"


class CassqCassandraPeer(CassqPeer):
    name = "cassq-cassandra"
    title = "cassq on Cassandra"
    traits = Traits(
        server="cassandra",
        warmup_messages=100_000,
        only=(
            *("cassandra", "cassandra-single", "cassandra-cp", "cassandra-batches"),
            *("cassandra-poppers", "cassandra-workers", "cassandra-retired", "spark-cassandra"),
        ),
        durable="commit log",
        note="consistency QUORUM; push_many and pop in batches of 50,000 (100 B), 20,000 (1 KB);"
        " max_claim_messages 50,000",
    )
    # Frames enough for some to be under way at once, and to make each claim's round trip worth it.
    batch_of_size: ClassVar[dict[int, int]] = {100: 50_000, 1_000: 20_000}

    @property
    def url(self) -> str:
        return f"cassandra://{self.place.address}/{KEYSPACE}?consistency=quorum"

    def make_schema(self) -> None:
        """The keyspace and its tables; a few reads where they are there already."""
        replicas = min(3, len(self.place.address.split(",")))
        command = ["schema", "apply", "--replication", str(replicas)]
        subprocess.run([sys.executable, "-m", "cassq", "--url", self.url, *command], check=True)

    def create(self, consistency: Consistency = "ap") -> None:
        self.make_schema()
        self.client.create_queue(
            self.place.queue, consistency=consistency, max_claim_messages=50_000
        )

    def drop(self) -> None:
        self.__dict__.pop("client", None)  # closed by now
        with self.client as client:
            client.delete_queue(self.place.queue)
