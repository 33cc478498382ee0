"""litequeue: a queue in a SQLite table, a message a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import litequeue

from bench.peers.peer import Peer, Place, Traits, poll, slices


class LitequeuePeer(Peer):
    name = "litequeue"
    title = "litequeue"
    traits = Traits(
        batches=False,
        note="synchronous=FULL; put, and done with prune, in its transactions of 1,000; "
        "pop one at a time",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lock = threading.Lock()
        self._held: list[str] = []

    @cached_property
    def _queue(self) -> litequeue.LiteQueue:
        queue = litequeue.LiteQueue(self.place.directory / "queue.db", timeout=60.0)
        # It sets NORMAL, with which a power cut takes acknowledged messages along.
        queue.conn.execute("PRAGMA synchronous = FULL")
        return queue

    def create(self) -> None:
        self._queue.qsize()

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        queue = self._queue
        for batch in slices(chunks, self.batch):
            with queue.transaction(mode="IMMEDIATE"):
                for payload in batch:
                    queue.put(payload)

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        queue, lock = self._queue, self._lock

        def push_one(payload: bytes) -> None:
            with lock:
                queue.put(payload)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return poll(lambda: self._take(limit), wait_s)

    def _take(self, limit: int) -> list[bytes]:
        payloads: list[bytes] = []
        if self._queue.peek() is None:
            return payloads  # A look at an empty queue takes no write lock.
        while len(payloads) < limit:
            message = self._queue.pop()
            if message is None:
                break
            self._held.append(message.message_id)
            payloads.append(message.data)
        return payloads

    def ack(self) -> None:
        with self._queue.transaction(mode="IMMEDIATE"):
            for message_id in self._held:
                self._queue.done(message_id)
            # Done messages stay in the table, and in the way, until they are pruned.
            self._queue.prune()
        self._held = []

    def close(self) -> None:
        self._queue.close()
