"""A listener on a loopback port, a service that does what bodies say, and raw clients."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from cassq.base.clock import SystemClock
from cassq.gateway.request import Answer, Request
from cassq.gateway.wire.answering import Answering
from cassq.gateway.wire.http import BODIES_BYTES_MAX
from cassq.gateway.wire.listening import CONNECTIONS_MAX, Listener, listening_sockets
from cassq.worker.eventloop.loops import loop_factory
from tests.integration.deadlines import DEADLINE_SECONDS
from tests.unit.gateway.wired import counts


class Response(NamedTuple):
    """What a raw client has read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The MessageId in the body."""
        found: str = json.loads(self.body)["MessageId"]
        return found


class Puppet:
    """A service. SendMessage answers with its body as MessageId; "large" makes that long. Receives
    wait for `ring`; with the queue "stubborn" they answer though they are cancelled."""

    def __init__(self) -> None:
        self.ring = asyncio.Event()
        self.waiting = 0
        self.cancelled = 0
        self.given_back = asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        """See `Service`."""
        if request.action == "SendMessage":
            body = request.parameters["MessageBody"]
            padding = "x" * 900_000 if body == "large" else ""
            return Answer({"MessageId": body + padding}, self._give_back)
        if request.action == "ReceiveMessage":
            await self._wait(stubborn=request.parameters["QueueUrl"] == "stubborn")
            return Answer({"Messages": [{"Body": "b"}]}, self._give_back)
        return Answer({})

    async def _wait(self, *, stubborn: bool) -> None:
        self.waiting += 1
        try:
            await self.ring.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if not stubborn:
                raise
        finally:
            self.waiting -= 1

    async def _give_back(self) -> None:
        self.given_back.set()


class Client:
    """A raw client of HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *requests: bytes) -> None:
        """Write requests, or parts of them."""
        self.writer.write(b"".join(requests))

    async def read(self, *, head: bool = False) -> Response:
        """The next response. head: it has no body, whatever its headers say."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.rstrip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        status = int(first.split()[1])
        length = 0 if head or status == 100 else int(headers["content-length"])
        return Response(status, headers, await self.reader.readexactly(length))

    async def ended(self) -> bool:
        """Whether the server has closed the connection, and sent nothing more."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Go away."""
        self.writer.close()


class Gateway:
    """A listener that listens, its service, and its clients."""

    def __init__(self, listener: Listener, service: Puppet, port: int) -> None:
        self.listener = listener
        self.service = service
        self.port = port
        self.clients: list[Client] = []

    async def client(self, tls: ssl.SSLContext | None = None) -> Client:
        """Another client, which is connected."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=tls))
        self.clients.append(client)
        return client


@asynccontextmanager
async def listened(
    *,
    connections_max: int = CONNECTIONS_MAX,
    body_bytes_max: int = BODIES_BYTES_MAX,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway for a block."""
    service = Puppet()
    listener = Listener(
        Answering(service, counts(), SystemClock()),
        SystemClock(),
        connections_max=connections_max,
        body_bytes_max=body_bytes_max,
        tls=tls,
    )
    [sockets] = listening_sockets("127.0.0.1", 0, 1)
    port = sockets[0].getsockname()[1]
    listener.open(sockets)
    gateway = Gateway(listener, service, port)
    try:
        yield gateway
    finally:
        for client in gateway.clients:
            client.close()
        service.ring.set()
        await listener.stop(DEADLINE_SECONDS)


def run(
    test: Callable[[], Coroutine[Any, Any, None]],
    *,
    plain: bool = True,
    seconds: float = DEADLINE_SECONDS,
) -> None:
    """Run the body of a test for a limited time, in the loop of a gateway that has uvloop, and, if
    `plain`, in that of one that has not."""
    for factory in (loop_factory(), None) if plain else (loop_factory(),):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(in_time(test(), seconds))


async def in_time(work: Awaitable[Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """What `work` returns; fails if that takes too long."""
    async with asyncio.timeout(seconds):
        return await work


def call(action: str, parameters: object, headers: bytes = b"") -> bytes:
    """A request in the JSON encoding."""
    body = json.dumps(parameters).encode()
    return head(action, b"Content-Length: %d\r\n%b" % (len(body), headers)) + body


def head(action: str, headers: bytes) -> bytes:
    """The head of one."""
    target = action.encode()
    return b"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.%b\r\n%b\r\n" % (
        target,
        headers,
    )


def sending(body: str, headers: bytes = b"") -> bytes:
    """A SendMessage."""
    return call("SendMessage", {"QueueUrl": "q", "MessageBody": body}, headers)


def receiving(queue: str = "q") -> bytes:
    """A ReceiveMessage."""
    return call("ReceiveMessage", {"QueueUrl": queue})


_SEEDS = (
    sending("seed"),
    receiving("absent"),
    b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST /q HTTP/1.1\r\nHost: a\r\nContent-Length: 32\r\n\r\nAction=SendMessage&MessageBody=b",
    head("ListQueues", b"Transfer-Encoding: chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n",
    b"GET /?Action=ListQueues&MaxResults=3&X-Amz-Signature=a HTTP/1.0\r\nHost: a\r\n\r\n",
)
_PIECES = (
    b"\r\n",
    b"\x00",
    b"\xff\xfe",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 99999999999\r\n",
    b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"Expect: 100-continue\r\n",
    b"%00%zz&&==",
    b'{["\\ud800',
    b"a" * 40_000,
)


def mutated(chance: random.Random) -> bytes:
    """A request with some damage."""
    text = bytearray(chance.choice(_SEEDS))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(4):
            case 0:
                text[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                text[at : at + chance.randrange(30)] = b""
            case 2:
                text[at:at] = chance.choice(_PIECES)
            case 3:
                text[at:at] = text[at : at + chance.randrange(60)]
    return bytes(text)
