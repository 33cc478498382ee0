"""persist-queue's SQLiteAckQueue: a message a call, a transaction each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import persistqueue

from bench.peers.peer import Peer, Place, Traits, poll


class AsItIs:
    """A serializer for messages that are bytes already: pickling them would only cost time."""

    @staticmethod
    def dumps(value: bytes, **_: object) -> bytes:
        return value

    @staticmethod
    def loads(value: bytes, **_: object) -> bytes:
        return value


class PersistqueuePeer(Peer):
    name = "persist-queue"
    title = "persist-queue"
    traits = Traits(
        batches=False,
        note="SQLiteAckQueue, WAL, synchronous=FULL (SQLite's default); "
        "put, get and ack one at a time",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._held: list[int] = []

    @cached_property
    def _queue(self) -> persistqueue.SQLiteAckQueue:
        return persistqueue.SQLiteAckQueue(
            str(self.place.directory),
            auto_resume=False,
            multithreading=True,
            timeout=60.0,
            serializer=AsItIs,
        )

    def create(self) -> None:
        self._queue.qsize()

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        put = self._queue.put
        for chunk in chunks:
            for payload in chunk:
                put(payload)

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        put = self._queue.put

        def push_one(payload: bytes) -> None:
            put(payload)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        return poll(lambda: self._take(limit), wait_s)

    def _take(self, limit: int) -> list[bytes]:
        payloads: list[bytes] = []
        while len(payloads) < limit:
            try:
                taken = self._queue.get(block=False, raw=True)
            except persistqueue.Empty:
                break
            self._held.append(taken["pqid"])
            payloads.append(taken["data"])
        return payloads

    def ack(self) -> None:
        for key in self._held:
            self._queue.ack(id=key)
        # Acked messages stay in the table, and in the way of every get, until they are cleared.
        self._queue.clear_acked_data(max_delete=len(self._held), keep_latest=0)
        self._held = []

    def close(self) -> None:
        self._queue.close()
