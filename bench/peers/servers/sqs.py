"""Queues behind the protocol of SQS, by the simplest client: batches of ten, as it has them."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.measuring.raw_http import SIGNATURE
from bench.peers.peer import Peer, Place, Traits, slices

BATCH = 10
WAIT_SECONDS_MAX = 20
TIMEOUT_SECONDS = 60.0
HEADERS = {"Content-Type": "application/x-amz-json-1.0", "Authorization": SIGNATURE}


class SqsPeer(Peer):
    """One of them. Payloads are sent in base64: bodies are text."""

    # Whether it has plain HTTP with thousands of messages in a request as well.
    has_plain = False

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.batch = BATCH
        self._connection = http.client.HTTPConnection(place.address, timeout=TIMEOUT_SECONDS)
        self._queue_url = ""
        self._held: list[str] = []

    def ask(self, action: str, **members: Any) -> dict[str, Any]:
        """What an action answers. Raises RuntimeError for an error."""
        headers = {**HEADERS, "X-Amz-Target": f"AmazonSQS.{action}"}
        self._connection.request("POST", "/", json.dumps(members).encode(), headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{action}: {answer.status} {body[:500]!r}")
        found: dict[str, Any] = json.loads(body) if body else {}
        return found

    @property
    def queue_url(self) -> str:
        """The queue's URL; it is there."""
        if not self._queue_url:
            self._queue_url = self.ask("GetQueueUrl", QueueName=self.place.queue)["QueueUrl"]
        return self._queue_url

    def create(self) -> None:
        self._queue_url = self.ask("CreateQueue", QueueName=self.place.queue)["QueueUrl"]

    def push(self, chunks: Iterable[Sequence[bytes]]) -> None:
        for batch in slices(chunks, BATCH):
            entries = [
                {"Id": str(at), "MessageBody": base64.b64encode(payload).decode()}
                for at, payload in enumerate(batch)
            ]
            self._whole(self.ask("SendMessageBatch", QueueUrl=self.queue_url, Entries=entries))

    @staticmethod
    def _whole(answer: dict[str, Any]) -> None:
        if answer.get("Failed"):
            raise RuntimeError(f"some of a batch failed: {answer['Failed']}")

    def lane(self, *, wakes: bool = False) -> Callable[[bytes], None]:
        own = type(self)(self.place)

        def push_one(payload: bytes) -> None:
            body = base64.b64encode(payload).decode()
            own.ask("SendMessage", QueueUrl=own.queue_url, MessageBody=body)

        return push_one

    def pop(self, limit: int, wait_s: float = 0.0) -> list[bytes]:
        found = self.ask(
            "ReceiveMessage",
            QueueUrl=self.queue_url,
            MaxNumberOfMessages=min(limit, BATCH),
            WaitTimeSeconds=min(WAIT_SECONDS_MAX, int(wait_s + 0.99)),
        ).get("Messages", [])
        self._held += [message["ReceiptHandle"] for message in found]
        return [base64.b64decode(message["Body"]) for message in found]

    def ack(self) -> None:
        for first in range(0, len(self._held), BATCH):
            batch = self._held[first : first + BATCH]
            entries = [{"Id": str(at), "ReceiptHandle": each} for at, each in enumerate(batch)]
            self._whole(self.ask("DeleteMessageBatch", QueueUrl=self.queue_url, Entries=entries))
        self._held = []

    def close(self) -> None:
        self._connection.close()

    def drop(self) -> None:
        self.ask("DeleteQueue", QueueUrl=self.queue_url)
        self._connection.close()


class GatewayPeer(SqsPeer):
    name = "cassq-gateway"
    title = "cassq gateway"
    traits = Traits(
        server="gateway",
        deep=True,
        soon_warm=True,
        warmup_messages=5_000,
        only=("gateway",),
        note="one process over a directory, on one core",
    )
    has_plain = True


class ElasticMqPeer(SqsPeer):
    name = "elasticmq"
    title = "ElasticMQ"
    traits = Traits(
        server="elasticmq",
        warmup_messages=20_000,
        only=("gateway",),
        durable="memory",
        note="messages in memory, the default; 2 GB of heap, on one core",
    )


class ElasticMqStoredPeer(SqsPeer):
    name = "elasticmq-stored"
    title = "ElasticMQ, stored"
    traits = Traits(
        server="elasticmq-stored",
        warmup_messages=5_000,
        only=("gateway",),
        durable="page cache",
        note="messages in H2 as well (messages-storage); 2 GB of heap, on one core",
    )


class MotoPeer(SqsPeer):
    name = "moto"
    title = "moto"
    traits = Traits(
        server="moto",
        batches=False,
        soon_warm=True,
        warmup_messages=300,
        only=("gateway",),
        durable="memory",
        note="moto.server, messages in memory, on one core",
    )
