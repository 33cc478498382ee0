"""cassq with its messages on sidecars and its catalog in a directory, all of one machine."""

from __future__ import annotations

from typing import ClassVar

from bench.peers.ours.embedded import CassqPeer
from bench.peers.peer import Traits
from cassq.settings import Consistency

# Claims as large as batches: each claim is a transaction of the catalog.
CLAIM_MESSAGES = 50_000


class CassqSidecarsPeer(CassqPeer):
    name = "cassq-sidecars"
    title = "cassq on sidecars"
    traits = Traits(
        server="sidecars",
        warmup_messages=100_000,
        soon_warm=True,
        only=("sidecars", "sidecar-failover"),
        durable="disk, of all replicas",
        note="push_many in batches of 20,000, pop of 50,000 (100 B), 20,000 (1 KB);"
        f" max_claim_messages {CLAIM_MESSAGES:,}",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 50_000, 1_000: 20_000}

    @property
    def url(self) -> str:
        return self.place.address

    def create(self, consistency: Consistency = "ap") -> None:
        self.client.create_queue(
            self.place.queue, consistency=consistency, max_claim_messages=CLAIM_MESSAGES
        )

    def drop(self) -> None:
        self.__dict__.pop("client", None)  # closed by now
        with self.client as client:
            client.delete_queue(self.place.queue)
