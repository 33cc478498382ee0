"""A topic of one partition on a Kafka broker, written with and without a sync of every append."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from confluent_kafka import (
    OFFSET_STORED,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.peers.peer import Peer, Place, Traits, slices

OFFSETS_TOPIC = "__consumer_offsets"
REQUEST_SECONDS = 30.0
# How often the thread that serves callbacks looks whether it is still needed.
POLLER_SECONDS = 0.1
# An empty hand without a wait: as long as an idle fetch needs to come back.
LOOK_SECONDS = 1.0
BULK_MESSAGES = 1_000
FILL_SECONDS = 0.02
NEVER_SYNC = str(2**63 - 1)


class KafkaPeer(Peer):
    name = "kafka"
    title = "Kafka, page cache"
    traits = Traits(
        server="kafka",
        warmup_messages=500_000,
        deep=True,
        durable="page cache",
        note="one partition; acks=all, produce_batch, linger 5 ms, batches up to 1 MB; "
        "consume and commit in batches of 5,000",
    )
    batch_of_size: ClassVar[dict[int, int]] = {100: 5_000, 1_000: 5_000}
    flush_messages = NEVER_SYNC

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._errors: list[str] = []
        self._last: Message | None = None
        self._poller: threading.Thread | None = None
        self._closed = threading.Event()

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.place.address})

    def _producer(self, **options: object) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.place.address,
                "acks": "all",
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
                "batch.size": 1_000_000,
                **options,
            }
        )

    @cached_property
    def _bulk_producer(self) -> Producer:
        # A callback for every message would be the largest cost of all; failures alone are enough.
        return self._producer(**{"linger.ms": 5, "delivery.report.only.error": True})

    @cached_property
    def _single_producer(self) -> Producer:
        return self._producer(**{"linger.ms": 0, "max.in.flight": 2})

    @cached_property
    def _consumer(self) -> Consumer:
        consumer = Consumer(
            {
                "bootstrap.servers": self.place.address,
                "group.id": self.place.queue,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
                # By default a full prefetch queue pauses fetching for a second: that alone would
                # bring 100-byte messages down to a third of the rate.
                "fetch.queue.backoff.ms": 1,
                "fetch.wait.max.ms": 100,
                # As much read ahead as keeps the rate up, and no more: what is fetched while
                # messages are still being pushed does not count as popping.
                "queued.min.messages": 20_000,
                "fetch.message.max.bytes": 2_000_000,
            }
        )
        # Assigned, not subscribed: joining a group takes seconds that no figure should hold.
        consumer.assign([TopicPartition(self.place.queue, 0, OFFSET_STORED)])
        return consumer

    def create(self) -> None:
        self.make_topic(1)
        self._sync_offsets_alike()

    def make_topic(self, partitions: int) -> None:
        topic = NewTopic(
            self.place.queue,
            num_partitions=partitions,
            # On each of the brokers, of which `address` names all.
            replication_factor=len(self.place.address.split(",")),
            config={"flush.messages": self.flush_messages},
        )
        for made in self._admin.create_topics([topic]).values():
            made.result(REQUEST_SECONDS)

    def _sync_offsets_alike(self) -> None:
        """Give the topic of committed offsets the same rule: a commit is an acknowledgement."""
        # The first commit of any group makes that topic.
        self._consumer.commit(offsets=[TopicPartition(self.place.queue, 0, 0)], asynchronous=False)
        rule = ConfigResource(ResourceType.TOPIC, OFFSETS_TOPIC)
        rule.add_incremental_config(
            ConfigEntry(
                "flush.messages", self.flush_messages, incremental_operation=AlterConfigOpType.SET
            )
        )
        for changed in self._admin.incremental_alter_configs([rule]).values():
            changed.result(REQUEST_SECONDS)

    def _failed(self, error: object, _message: object) -> None:
        if error is not None:
            self._errors.append(str(error))

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        producer, topic = self._bulk_producer, self.place.queue
        for batch in slices(chunks, self.batch):
            records = [{"value": payload} for payload in batch]
            # What did not fit into the client's buffer is marked, and is sent once there is room.
            while producer.produce_batch(topic, records, on_delivery=self._failed) < len(records):
                records = [{"value": r["value"]} for r in records if "_error" in r]
                producer.poll(0.01)
            producer.poll(0)
        left = producer.flush(REQUEST_SECONDS)
        if left or self._errors:
            raise RuntimeError(f"{left} messages not delivered; {self._errors[:1]}")

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        # One producer for all threads, so that they share requests and syncs; one thread to serve
        # its callbacks, as a thread that polls for itself keeps the news of others from them.
        producer, topic = self._single_producer, self.place.queue
        if self._poller is None:
            self._poller = threading.Thread(target=self._serve_callbacks, args=(producer,))
            self._poller.start()
        delivered = threading.Event()

        def on_delivery(error: object, message: object) -> None:
            self._failed(error, message)
            delivered.set()

        def push_one(payload: bytes) -> None:
            delivered.clear()
            producer.produce(topic, payload, on_delivery=on_delivery)
            if not delivered.wait(REQUEST_SECONDS):
                raise RuntimeError(f"not delivered within {REQUEST_SECONDS:.0f} s")
            if self._errors:
                raise RuntimeError(self._errors[0])

        return push_one

    def _serve_callbacks(self, producer: Producer) -> None:
        while not self._closed.is_set():
            producer.poll(POLLER_SECONDS)

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        # A fetch takes longer than no time at all: without a wait it would never be seen.
        found = self._consume(limit, wait_s or LOOK_SECONDS)
        if found:
            self._last = found[-1]
        return [message.value() for message in found]

    def _consume(self, limit: int, wait_s: float) -> list[Any]:
        first = self._consumer.poll(wait_s)
        if first is None:
            return []
        # Bulk readers wait a moment for a full batch, so that they commit less often.
        fill_s = FILL_SECONDS if limit >= BULK_MESSAGES else 0.0
        found = [first, *self._consumer.consume(limit - 1, fill_s)] if limit > 1 else [first]
        for message in found:
            if message.error() is not None:
                raise KafkaException(message.error())
        return found

    def ack(self) -> None:
        if self._last is not None:
            self._consumer.commit(message=self._last, asynchronous=False)
        self._last = None

    def close(self) -> None:
        self._closed.set()
        if self._poller is not None:
            self._poller.join()
        if "_consumer" in self.__dict__:
            self._consumer.close()

    def drop(self) -> None:
        for gone in self._admin.delete_topics([self.place.queue]).values():
            gone.result(REQUEST_SECONDS)


class KafkaSyncedPeer(KafkaPeer):
    name = "kafka-synced"
    title = "Kafka, synced"
    traits = Traits(
        server="kafka",
        warmup_messages=500_000,
        durable="disk",
        note="as above with flush.messages=1, on the topic of the committed offsets too",
    )
    flush_messages = "1"
