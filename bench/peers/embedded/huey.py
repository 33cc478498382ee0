"""huey's SQLite storage: a message a call; a message popped is a message forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from huey.storage import SqliteStorage

from bench.peers.peer import Peer, Traits, poll


class HueyPeer(Peer):
    name = "huey"
    title = "huey (SQLite)"
    traits = Traits(
        batches=False,
        note="fsync=True; one at a time; deletes at pop and has no ack: a crash loses what is out",
    )

    @cached_property
    def _storage(self) -> SqliteStorage:
        return SqliteStorage(
            name=self.place.queue,
            filename=str(self.place.directory / "queue.db"),
            fsync=True,
            timeout=60,
        )

    def create(self) -> None:
        self._storage.queue_size()

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        enqueue = self._storage.enqueue
        for chunk in chunks:
            for payload in chunk:
                enqueue(payload)

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        enqueue: Callable[[bytes], None] = self._storage.enqueue
        return enqueue

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return poll(lambda: self._take(limit), wait_s)

    def _take(self, limit: int) -> list[bytes]:
        payloads: list[bytes] = []
        while len(payloads) < limit:
            payload = self._storage.dequeue()
            if payload is None:
                break
            payloads.append(payload)
        return payloads

    def ack(self) -> None:
        """Nothing is left to acknowledge: the message went when it was handed out."""

    def close(self) -> None:
        self._storage.close()
