"""A hundred thousand requests, each with something wrong: a gateway refuses them as SQS does, never
with a defect of its own, and takes no more memory for them."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any
from urllib.parse import urlencode

import botocore.serialize
import pytest
from botocore.model import ServiceModel

import cassq
from cassq.gateway.wire.sqs import ACTIONS, LISTS, MAPS, SCALARS, STRUCTURES
from tests.gateway_model import installed_model
from tests.integration.gateway.asking import served
from tests.integration.gateway.listened import Client
from tests.integration.gateway.storm import Gateway
from tests.integration.gateway.storm_clients import ask
from tests.integration.gateway.test_idle_polls import memory_bytes

REQUESTS, CONNECTIONS = 100_000, 16
WARM = 0.4  # after this part of them, memory must not grow
GROWTH_BYTES_MAX = 24 * 10**6
READ_SECONDS = 60.0
MODEL = ServiceModel(installed_model(), "sqs")
QUEUES = ("jobs", "letters", "jobs.fifo", "none")
# In place of what should be there, at any depth.
STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10, 2**31, 2**63, -(2**64), 1.5, 1e308, "", "x", "\0", "\ud7ff\n",
    "é" * 200, "x" * 3000, "All", "=", "%", "../..", "arn:aws:sqs:::", "{}", "[", [], [[]], [None],
    ["x"] * 12, {}, {"": {}}, {"Id": "1"}, {"DataType": "Binary", "BinaryValue": "AA"},
)  # fmt: skip


class Mutator:
    """Makes requests that have something wrong, always the same ones for a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def request(self, action: str) -> tuple[bytes, bool]:
        """A request, and whether even its head is not what it should be."""
        chance = self._chance
        asked = self._changed(self._example(ACTIONS[action][0]))
        if isinstance(asked, dict) and action != "CreateQueue" and chance.random() < 0.8:
            queue = "gone" if action == "DeleteQueue" else chance.choice(QUEUES)
            asked = {**asked, "QueueUrl": f"http://localhost/000000000000/{queue}"}
        headers = "Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: AmazonSQS." + action
        try:
            if chance.random() < 0.3:
                operation = MODEL.operation_model(action)
                made = botocore.serialize.create_serializer("query", False).serialize_to_request(
                    asked, operation
                )
                headers = "Content-Type: application/x-www-form-urlencoded"
                body = urlencode(made["body"]).encode()
            else:
                body = json.dumps(asked).encode()
        except Exception:  # botocore refuses what has a wrong type
            body = json.dumps(asked).encode()
        if chance.random() < 0.3:
            body = self._bytes_changed(body)
        lines = (
            "POST / HTTP/1.1",
            "Host: localhost",
            headers,
            f"Content-Length: {len(body)}",
            "",
            "",
        )
        whole = "\r\n".join(lines).encode() + body
        if chance.random() < 0.05:
            return self._bytes_changed(whole), True
        return whole, False

    def _example(self, shape: str) -> Any:
        """A value of a shape, that may be right."""
        chance = self._chance
        if shape in SCALARS:
            kind = SCALARS[shape]
            if kind == "string":
                return chance.choice(
                    ("1", "jobs", "x", "All", "String", "arn:aws:sqs:us-east-1:000000000000:jobs")
                )
            return {"boolean": True, "blob": "eA=="}.get(kind, chance.choice((0, 1, 10)))
        if shape in LISTS:
            return [self._example(LISTS[shape]) for _ in range(chance.randrange(3))]
        if shape in MAPS:
            names = ("DelaySeconds", "Policy", "RedrivePolicy", "a", "AWSTraceHeader")
            return {chance.choice(names): self._example(MAPS[shape][1])}
        return {
            name: self._example(its[0])
            for name, its in STRUCTURES[shape].items()
            if its[2] or chance.random() < 0.5
        } | ({"WaitTimeSeconds": 0} if shape == "ReceiveMessageRequest" else {})

    def _changed(self, asked: Any) -> Any:
        """Something of it replaced, left out or added."""
        chance = self._chance
        if isinstance(asked, dict) and asked and chance.random() < 0.85:
            name = chance.choice([*asked])
            if name == "WaitTimeSeconds":
                return asked
            if chance.random() < 0.15:
                return {key: value for key, value in asked.items() if key != name}
            return {**asked, name: self._changed(asked[name])}
        if isinstance(asked, list) and asked and chance.random() < 0.8:
            at = chance.randrange(len(asked))
            return [*asked[:at], self._changed(asked[at]), *asked[at + 1 :]]
        strange = chance.choice(STRANGE)
        if isinstance(asked, dict):
            return strange if chance.random() < 0.2 else {**asked, f"{strange!s:.20}": strange}
        return strange

    def _bytes_changed(self, text: bytes) -> bytes:
        chance, changed = self._chance, bytearray(text)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(changed) + 1)
            match chance.randrange(4):
                case 0:
                    changed[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del changed[at : at + chance.randrange(1, 40)]
                case 2:
                    changed[at:at] = chance.randbytes(chance.randrange(1, 9))
                case _:
                    changed[at:at] = changed[at : at + chance.randrange(1, 30)]
        return bytes(changed)


class Asking:
    """Asks one request after another. statuses: how often each came, 0 for none."""

    def __init__(self, port: int, seed: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._port = port
        self._mutator, self._chance = Mutator(seed), random.Random(seed)
        self._client: Client | None = None

    async def ask(self, count: int) -> None:
        """Ask so many."""
        actions = [each for each in ACTIONS if each != "CreateQueue"]
        try:
            for _ in range(count):
                makes = self._chance.random() < 0.002  # a few, as each queue stays
                action = "CreateQueue" if makes else self._chance.choice(actions)
                await self._one(*self._mutator.request(action))
        finally:
            self._close()

    async def _one(self, request: bytes, torn: bool) -> None:
        if self._client is None:
            self._client = Client(*await asyncio.open_connection("127.0.0.1", self._port))
        self._client.send(request)
        if torn:
            self._client.writer.write_eof()  # the server may wait for more
        try:
            async with asyncio.timeout(READ_SECONDS):
                response = await self._client.read()
        except (EOFError, ConnectionError):
            assert torn, request
            self.statuses[0] += 1
            self._close()
            return
        self.statuses[response.status] += 1
        assert response.status != 500, (request, response.body)
        if torn or response.headers.get("connection") == "close":
            self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.writer.transport.abort()
            self._client = None


async def many(port: int, count: int, seed: int) -> Counter[int]:
    """How often there was which status."""
    asking = [Asking(port, seed + number) for number in range(CONNECTIONS)]
    async with asyncio.TaskGroup() as group:
        for each in asking:
            group.create_task(each.ask(count // CONNECTIONS))
    return sum((each.statuses for each in asking), Counter[int]())


async def measured(url: str) -> tuple[Counter[int], int]:
    """The statuses, and by how many bytes the gateway grew."""
    gateway = await Gateway.started(url)
    try:
        _, facts = await ask(gateway.port, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        found = await many(gateway.port, int(REQUESTS * WARM), 1)
        before = memory_bytes(facts["pid"])
        found += await many(gateway.port, int(REQUESTS * (1 - WARM)), 1001)
        grown = memory_bytes(facts["pid"]) - before
        _, after = await ask(gateway.port, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert after["pid"] == facts["pid"], "it crashed"
        return found, grown
    finally:
        await gateway.stop()


@pytest.mark.long(reason="asks a hundred thousand times")
@pytest.mark.embedded_only(reason="its gateway opens a directory")
def test_garbage_is_refused_and_costs_no_memory(url: str, client: cassq.Client) -> None:
    client.create_queue("letters")
    client.create_queue("jobs", dead_letters="letters")
    served(url, lambda sqs: sqs.create("jobs.fifo", FifoQueue="true"))
    statuses, grown = asyncio.run(measured(url))
    print(f"{dict(statuses)}, {grown / 1e6:.0f} MB more")
    assert not statuses.keys() & {500, 503}
    assert statuses[400] > REQUESTS / 4
    assert statuses[200] > REQUESTS / 100
    assert grown <= GROWTH_BYTES_MAX
