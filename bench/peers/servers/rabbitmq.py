"""A quorum queue of RabbitMQ, through py-amqp: confirms and messages are taken as they come.

A confirm says that a message is synced. An acknowledgement covers all messages before it, and is
not answered; so a passive declaration after it waits until the server has read it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, ClassVar

import amqp

from bench.peers.peer import Peer, Place, Traits, slices

REQUEST_SECONDS = 30.0
IN_FLIGHT = 4_000
# What a consumer may have that is not acknowledged; more than any batch.
PREFETCH = 20_000
# An empty hand without a wait: as long as an answer may take.
LOOK_SECONDS = 0.1
BULK_MESSAGES = 1_000
PERSISTENT = 2


class RabbitmqPeer(Peer):
    name = "rabbitmq"
    title = "RabbitMQ"
    traits = Traits(
        server="rabbitmq",
        soon_warm=True,
        slowness=10,
        only=("through", "single", "latency"),
        note=f"a quorum queue; persistent messages, {IN_FLIGHT:,} confirms in flight; a consumer"
        f" with a prefetch of {PREFETCH:,}, a batch acknowledged at once",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 2_000}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._connections: list[amqp.Connection] = []
        self._sent = 0
        self._unconfirmed: dict[int, None] = {}  # tags, in order
        self._refused = 0
        self._come: deque[amqp.Message] = deque()
        self._last = 0  # the tag of the last message that was popped

    def _connect(self, *, waits: bool = False) -> amqp.Connection:
        """A connection. waits: whether each publication waits for its confirm."""
        connection = amqp.Connection(self.place.address, confirm_publish=waits)
        connection.connect()
        self._connections.append(connection)
        return connection

    @cached_property
    def _connection(self) -> amqp.Connection:
        return self._connect()

    def create(self) -> None:
        self._declare(self._connection.channel(), passive=False)

    def _declare(self, channel: amqp.Channel, *, passive: bool) -> None:
        channel.queue_declare(
            self.place.queue,
            passive=passive,
            durable=True,
            auto_delete=False,
            arguments={"x-queue-type": "quorum"},
        )

    # --- pushing --------------------------------------------------------------------------------

    @cached_property
    def _publishing(self) -> amqp.Channel:
        channel = self._connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_confirm)
        channel.events["basic_nack"].add(self._on_refusal)
        return channel

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        publish, queue = self._publishing.basic_publish, self.place.queue
        for batch in slices(chunks, self.batch):
            for payload in batch:
                self._sent += 1
                self._unconfirmed[self._sent] = None
                publish(amqp.Message(payload, delivery_mode=PERSISTENT), "", queue)
            self._await_confirms(IN_FLIGHT)
        self._await_confirms(0)

    def _await_confirms(self, open_max: int) -> None:
        while len(self._unconfirmed) > open_max:
            self._connection.drain_events(timeout=REQUEST_SECONDS)
        if self._refused:
            raise RuntimeError(f"{self._refused} messages were refused")

    def _on_confirm(self, tag: int, multiple: bool) -> None:
        if not multiple:
            self._unconfirmed.pop(tag, None)
            return
        covered = list(takewhile(lambda open_tag: open_tag <= tag, self._unconfirmed))
        for each in covered:
            del self._unconfirmed[each]

    def _on_refusal(self, *_: Any) -> None:
        self._refused += 1
        self._unconfirmed.clear()

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # A connection a thread.
        publish = self._connect(waits=True).channel().basic_publish
        queue = self.place.queue

        def push_one(payload: bytes) -> None:
            publish(amqp.Message(payload, delivery_mode=PERSISTENT), "", queue)

        return push_one

    # --- popping --------------------------------------------------------------------------------

    @cached_property
    def _consuming(self) -> amqp.Channel:
        channel = self._connection.channel()
        channel.basic_qos(0, PREFETCH, False)
        channel.basic_consume(self.place.queue, callback=self._come.append)
        return channel

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        channel, come = self._consuming, self._come
        deadline = time.monotonic() + (wait_s or LOOK_SECONDS)
        # Bulk readers wait for a full batch, so that they acknowledge less often.
        wanted = limit if limit >= BULK_MESSAGES else 1
        while len(come) < wanted and (left := deadline - time.monotonic()) > 0:
            try:
                channel.connection.drain_events(timeout=left)
            except TimeoutError:
                break
        found = [come.popleft() for _ in range(min(limit, len(come)))]
        if found:
            self._last = found[-1].delivery_tag
        return [message.body for message in found]

    def ack(self) -> None:
        if self._last:
            self._consuming.basic_ack(self._last, multiple=True)
            self._declare(self._consuming, passive=True)
        self._last = 0

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def drop(self) -> None:
        with amqp.Connection(self.place.address) as connection:
            connection.channel().queue_delete(self.place.queue)
