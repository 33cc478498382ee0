"""Redis Streams with a consumer group, through pipelines and the parser in C."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

import redis

from bench.peers.peer import Peer, Place, Traits, slices

GROUP = b"group"
CONSUMER = b"consumer"
FIELD = b"p"


class RedisPeer(Peer):
    name = "redis"
    title = "Redis Streams"
    traits = Traits(
        server="redis",
        deep=True,
        note="appendfsync always, Unix socket, hiredis; pipelines of 500 (100 B), 250 (1 KB) XADD, "
        "XREADGROUP of as many, XACK and XDEL in one pipeline",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 500, 1_000: 250}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._stream = place.queue.encode()
        self._held: list[bytes] = []

    def _connect(self) -> redis.Redis:
        return redis.Redis(unix_socket_path=self.place.address)

    @cached_property
    def _client(self) -> redis.Redis:
        return self._connect()

    def create(self) -> None:
        self._client.xgroup_create(self._stream, GROUP, id="0", mkstream=True)

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        stream = self._stream
        pipeline = self._client.pipeline(transaction=False)
        for batch in slices(chunks, self.batch):
            for payload in batch:
                pipeline.execute_command("XADD", stream, b"*", FIELD, payload)
            pipeline.execute()

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # A connection a thread: the server writes and syncs once for all that arrived together.
        execute, stream = self._connect().execute_command, self._stream

        def push_one(payload: bytes) -> None:
            execute("XADD", stream, b"*", FIELD, payload)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        # A block of 0 ms would mean for ever.
        block = max(1, round(wait_s * 1_000)) if wait_s else None
        found: Any = self._client.xreadgroup(
            GROUP, CONSUMER, {self._stream: ">"}, count=limit, block=block
        )
        if not found:
            return []
        streams = found.values() if isinstance(found, dict) else [found[0][1]]
        payloads = []
        for entries in streams:
            for key, fields in entries:
                self._held.append(key)
                payloads.append(fields[FIELD])
        return payloads

    def ack(self) -> None:
        # Without XDEL the stream keeps every message that ever passed.
        pipeline = self._client.pipeline(transaction=False)
        pipeline.xack(self._stream, GROUP, *self._held)
        pipeline.xdel(self._stream, *self._held)
        pipeline.execute()
        self._held = []

    def close(self) -> None:
        self._client.close()

    def drop(self) -> None:
        client = self._connect()
        client.delete(self._stream)
        client.close()
