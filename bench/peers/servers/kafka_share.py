"""A share group on a Kafka broker: consumers of one partition acknowledge message by message."""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaException, ShareConsumer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from bench.peers.peer import Place, Traits
from bench.peers.servers.kafka import LOOK_SECONDS, REQUEST_SECONDS, KafkaPeer

# The first poll of a member waits until the group has given it the partition.
JOIN_SECONDS = 20.0


class KafkaSharePeer(KafkaPeer):
    name = "kafka-share"
    title = "Kafka, share group"
    traits = Traits(
        server="kafka",
        warmup_messages=100_000,
        durable="page cache",
        only=("through",),
        note="pushed as above; a share group with explicit acknowledgements, committed by the poll",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._fetched: deque[Any] = deque()  # by the last poll, and not handed out yet
        self._out: list[Any] = []  # handed out, and not acknowledged
        self._joined = False

    @cached_property
    def _sharer(self) -> ShareConsumer:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.place.address,
                "group.id": self.place.queue,
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": self.batch,
            }
        )
        consumer.subscribe([self.place.queue])
        return consumer

    def create(self) -> None:
        self.make_topic(1)
        rule = ConfigResource(ResourceType.GROUP, self.place.queue)
        rule.add_incremental_config(
            ConfigEntry(
                "share.auto.offset.reset",
                "earliest",
                incremental_operation=AlterConfigOpType.SET,
            )
        )
        for changed in self._admin.incremental_alter_configs([rule]).values():
            changed.result(REQUEST_SECONDS)

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        if not self._fetched:
            self.ack()  # a poll wants to know first what became of all before
            wait_s = wait_s or LOOK_SECONDS
            found = self._sharer.poll(wait_s if self._joined else max(wait_s, JOIN_SECONDS))
            for message in found:
                if message.error() is not None:
                    raise KafkaException(message.error())
            self._joined = self._joined or len(found) > 0
            self._fetched.extend(found)
        taken = [self._fetched.popleft() for _ in range(min(limit, len(self._fetched)))]
        self._out += taken
        return [message.value() for message in taken]

    def ack(self) -> None:
        if not self._out:
            return
        for message in self._out:
            self._sharer.acknowledge(message)
        self._out = []
        for failure in self._sharer.commit_sync(REQUEST_SECONDS).values():
            if failure is not None:
                raise failure

    def close(self) -> None:
        super().close()
        if "_sharer" in self.__dict__:
            self._sharer.close()
