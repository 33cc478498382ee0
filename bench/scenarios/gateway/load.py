"""Load on a server of SQS' protocol from 64 raw connections, and what comes of it.

Requests are made before they are timed, but for those that need what was received. Each connection
asks for the next thing once it has its answer, as a client with 64 threads does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count as counter
from statistics import median
from typing import Any

import msgspec
import uvloop

from bench.measuring.children import Figures, Gate, Seat
from bench.measuring.drain import LostMessagesError
from bench.measuring.meter import Meter
from bench.measuring.payloads import chunk
from bench.measuring.raw_http import FailedError, RawConnection, request, sqs_request
from bench.peers.peer import Place
from bench.peers.servers.sqs import SqsPeer
from bench.results.figures import percentile, rate

CONNECTIONS = 64
BATCH = 10
GROUPS = 1_000  # of a FIFO queue
LENGTH_LINE = re.compile(rb"Content-Length: \d+\r\n")
PLAIN_CONNECTIONS = 4
PLAIN_BATCH = 5_000
POLLERS = 8
WAIT_SECONDS = 5
SETTLE_SECONDS = 0.005  # long after a request has come to a server that has nothing else to do
LEAVING_ROUNDS = 200
# What it takes until all that was sent on schedule is seen, at most.
STALL_SECONDS_MAX = 60.0
# How often a request is made again that the server could not answer, as SDKs do.
RETRIES = 4
# The first messages find caches cold and connections new.
WARMUP_SHARE = 0.1
MSGPACK = "application/msgpack"

# Asks for something once; returns how many messages that was about.
Step = Callable[[RawConnection], Coroutine[Any, Any, int]]


class Load:
    """A queue, and connections to its server."""

    def __init__(self, place: Place, queue_url: str, connections: list[RawConnection]) -> None:
        self.place = place
        self.queue_url = queue_url
        self.connections = connections
        texts = [base64.b64encode(each).decode() for each in chunk(place.size, BATCH)]
        self._bodies = [text[: place.size] for text in texts]
        self._send = self.request("SendMessage", MessageBody=self._bodies[0])
        entries = [{"Id": str(at), "MessageBody": body} for at, body in enumerate(self._bodies)]
        self._send_batch = self.request("SendMessageBatch", Entries=entries)
        self._receive = self.request("ReceiveMessage", MaxNumberOfMessages=BATCH)
        lines = b"".join(json.dumps(body).encode() + b"\n" for body in self._bodies)
        path = f"/v1/queues/{place.queue}"
        self.plain_push = request(
            "POST", f"{path}/messages", place.address, lines * (PLAIN_BATCH // BATCH)
        )
        self.plain_receive = request(
            "GET", f"{path}/messages?max={PLAIN_BATCH}", place.address, b"", Accept=MSGPACK
        )

    def request(self, action: str, **members: Any) -> bytes:
        """An action on the queue."""
        return sqs_request(self.place.address, action, QueueUrl=self.queue_url, **members)

    async def ask(self, connection: RawConnection, asked: bytes) -> bytes:
        """The answer to a request, which is made again if the server fails, as SDKs do."""
        for _ in range(RETRIES):
            try:
                return await connection.ask(asked)
            except FailedError:
                continue
        return await connection.ask(asked)

    async def send(self, connection: RawConnection) -> int:
        """Send one message."""
        await self.ask(connection, self._send)
        return 1

    async def send_batch(self, connection: RawConnection) -> int:
        """Send ten."""
        body = await self.ask(connection, self._send_batch)
        if b'"Failed":[{' in body:
            raise LostMessagesError(f"some of a batch failed: {body[:500]!r}")
        return BATCH

    async def fill(self, count: int, *, plainly: bool = False) -> None:
        """Send about so many."""
        if plainly and count >= PLAIN_BATCH:
            for _ in range(count // PLAIN_BATCH):
                await self.push_plainly(self.connections[0])
        else:
            await repeated(self, self.send_batch, most=count)

    async def receive(self, connection: RawConnection) -> int:
        """Receive up to ten, and delete them together."""
        found = json.loads(await self.ask(connection, self._receive)).get("Messages")
        if not found:
            return 0
        await self.delete(connection, [message["ReceiptHandle"] for message in found])
        return len(found)

    async def delete(self, connection: RawConnection, handles: list[str]) -> None:
        """Delete messages together."""
        entries = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        body = await self.ask(connection, self.request("DeleteMessageBatch", Entries=entries))
        if b'"Failed":[{' in body:
            raise LostMessagesError(f"some of a batch failed: {body[:500]!r}")

    async def push_plainly(self, connection: RawConnection) -> int:
        """Push thousands by plain HTTP, as lines."""
        await self.ask(connection, self.plain_push)
        return PLAIN_BATCH

    async def pop_plainly(self, connection: RawConnection) -> int:
        """Receive thousands by plain HTTP, and settle them together."""
        found = msgspec.msgpack.decode(await self.ask(connection, self.plain_receive))
        if not found:
            return 0
        receipts = {"ack": [message["receipt"] for message in found]}
        path = f"/v1/queues/{self.place.queue}/settle"
        asked = request("POST", path, self.place.address, json.dumps(receipts).encode())
        if json.loads(await self.ask(connection, asked))["invalid"]:
            raise LostMessagesError("some receipts were not valid")
        return len(found)


class FifoLoad(Load):
    """A FIFO queue. Each message has a deduplication id of its own, and the next of `GROUPS`
    groups: both are written into requests that were made before."""

    def __init__(self, place: Place, queue_url: str, connections: list[RawConnection]) -> None:
        super().__init__(place, queue_url, connections)
        self._numbers = counter()
        own = {"MessageGroupId": "%03d", "MessageDeduplicationId": "%016d"}
        self._one = self._made(self.request("SendMessage", MessageBody=self._bodies[0], **own), 1)
        entries = [
            {"Id": str(at), "MessageBody": body, **own} for at, body in enumerate(self._bodies)
        ]
        self._ten = self._made(self.request("SendMessageBatch", Entries=entries), BATCH)

    async def send(self, connection: RawConnection) -> int:
        """Send one message."""
        self._send = self._filled(self._one, 1)
        return await super().send(connection)

    async def send_batch(self, connection: RawConnection) -> int:
        """Send ten."""
        self._send_batch = self._filled(self._ten, BATCH)
        return await super().send_batch(connection)

    def _made(self, asked: bytes, messages: int) -> bytes:
        """A request that says how long it is once it is filled in, which is the same each time."""
        body = self._filled(asked, messages).partition(b"\r\n\r\n")[2]
        return LENGTH_LINE.sub(b"Content-Length: %d\r\n" % len(body), asked, count=1)

    def _filled(self, made: bytes, messages: int) -> bytes:
        numbers = [next(self._numbers) for _ in range(messages)]
        return made % tuple(each for number in numbers for each in (number % GROUPS, number))


@asynccontextmanager
async def loaded(seat: Seat, label: str, kind: type[Load] = Load) -> AsyncIterator[Load]:
    """The load on a new queue."""
    place = seat.part(label).place
    fifo = kind is FifoLoad
    if fifo:
        place = replace(place, queue=f"{place.queue}.fifo")
    asked: dict[str, Any] = {"Attributes": {"FifoQueue": "true"}} if fifo else {}
    opened = [RawConnection(place.address) for _ in range(CONNECTIONS)]
    try:
        made = await opened[0].ask(
            sqs_request(place.address, "CreateQueue", QueueName=place.queue, **asked)
        )
        load = kind(place, json.loads(made)["QueueUrl"], opened)
        yield load
        await opened[0].ask(load.request("DeleteQueue"))
    finally:
        for each in opened:
            each.close()


async def repeated(
    load: Load,
    step: Step,
    seconds: float = float("inf"),
    *,
    most: int = 0,
    connections: int = CONNECTIONS,
) -> int:
    """Let connections repeat a step for so long, or until it was about `most` messages (0: any
    number), or finds nothing. Returns how many messages it was about."""
    deadline, done, begun = time.perf_counter() + seconds, 0, 0

    async def work(connection: RawConnection) -> None:
        nonlocal done, begun
        while time.perf_counter() < deadline and not (most and begun >= most):
            begun += BATCH
            count = await step(connection)
            done += count
            if not count:
                return

    await asyncio.gather(*map(work, load.connections[:connections]))
    return done


def in_loop(_gate: Gate, work: Callable[..., Coroutine[Any, Any, Figures]], *given: Any) -> Figures:
    """A job: work in an event loop."""
    figures: Figures = uvloop.run(work(*given))
    return figures


def has_plain(seat: Seat, kind: type[Load]) -> bool:
    """Whether the server has plain HTTP as well, and the load makes use of it."""
    peer = seat.peer_class()
    return kind is Load and issubclass(peer, SqsPeer) and peer.has_plain


async def throughput(
    seat: Seat, seconds: float, kind: type[Load] = Load, waiting: int = 0
) -> Figures:
    """What the server does for the 64 connections in each of the ways there are. waiting: how many
    messages wait when they begin to receive; 0: those that were sent in batches."""
    figures: Figures = {}
    server = seat.place.server_pid
    whole = Meter(server)

    async def timed(name: str, load: Load, step: Step, connections: int = CONNECTIONS) -> None:
        meter = Meter(server)
        with meter, whole:
            count = await repeated(load, step, seconds, connections=connections)
        if not count:
            raise LostMessagesError(f"{name}: there was nothing")
        figures[name] = rate(count, meter.wall_s)
        figures[f"{name}_us"] = meter.server_cpu_s / count * 1e6

    async with loaded(seat, "single", kind) as load:
        await timed("send", load, load.send)
    async with loaded(seat, "tens", kind) as load:
        await timed("batch", load, load.send_batch)
        if not waiting:
            await timed("receive", load, load.receive)
    if waiting:
        async with loaded(seat, "waiting", kind) as load:
            await load.fill(waiting)
            await timed("receive", load, load.receive)
    if has_plain(seat, kind):
        async with loaded(seat, "plain") as load:
            await timed("plain_push", load, load.push_plainly, PLAIN_CONNECTIONS)
            await timed("plain_pop", load, load.pop_plainly, PLAIN_CONNECTIONS)
    return {**figures, **whole.costs()}


def due_times(count: int, rate_per_s: int) -> Iterator[float]:
    """When each message is to be sent, by the loop's clock."""
    start = asyncio.get_running_loop().time()
    return (start + number / rate_per_s for number in range(count))


async def latency(seat: Seat, rate_per_s: int, seconds: float) -> Figures:
    """Messages are sent on schedule; others wait for them in long polls. How long each takes."""
    async with loaded(seat, "latency") as load:
        loop = asyncio.get_running_loop()
        count = int(rate_per_s * seconds)
        due = due_times(count, rate_per_s)
        delays_ms: list[float] = []
        poll = load.request(
            "ReceiveMessage", MaxNumberOfMessages=BATCH, WaitTimeSeconds=WAIT_SECONDS
        )

        async def follow(connection: RawConnection) -> None:
            while len(delays_ms) < count:
                found = json.loads(await load.ask(connection, poll)).get("Messages", [])
                now = loop.time()
                delays_ms.extend((now - float(each["Body"])) * 1000 for each in found)
                if found:
                    await load.delete(connection, [each["ReceiptHandle"] for each in found])

        async def send(connection: RawConnection) -> None:
            for at in due:
                await asyncio.sleep(max(0.0, at - loop.time()))
                # One that waited for its turn counts from when it was due.
                await load.ask(connection, load.request("SendMessage", MessageBody=repr(at)))

        following = [asyncio.ensure_future(follow(each)) for each in load.connections[:POLLERS]]
        await asyncio.gather(*map(send, load.connections[POLLERS:]))
        try:
            async with asyncio.timeout(STALL_SECONDS_MAX):
                await asyncio.gather(*following)
        except TimeoutError:
            lost = count - len(delays_ms)
            raise LostMessagesError(f"{lost} of {count} messages did not come") from None
    counted = delays_ms[int(count * WARMUP_SHARE) :]
    return {"p50_ms": percentile(counted, 0.50), "p99_ms": percentile(counted, 0.99)}


async def after_leaving(seat: Seat, rounds: int = LEAVING_ROUNDS) -> Figures:
    """One client that waits first leaves while a message is sent; how long it takes until the next
    one that waits has it. The message may be on its way to who left."""
    async with loaded(seat, "leaving") as load:
        loop = asyncio.get_running_loop()
        sender, waiter = load.connections[:2]
        poll = load.request(
            "ReceiveMessage", WaitTimeSeconds=WAIT_SECONDS, MessageSystemAttributeNames=["All"]
        )
        delays_ms: list[float] = []
        counts: set[str] = set()
        for _ in range(rounds):
            leaver = RawConnection(load.place.address)
            leaving = asyncio.ensure_future(leaver.ask(poll))
            await asyncio.sleep(SETTLE_SECONDS)  # it is the first in line
            waiting = asyncio.ensure_future(load.ask(waiter, poll))
            await asyncio.sleep(SETTLE_SECONDS)
            sending = asyncio.ensure_future(
                load.ask(sender, load.request("SendMessage", MessageBody="x"))
            )
            leaver.close()
            leaving.cancel()
            left = loop.time()
            (message,) = json.loads(await waiting)["Messages"]
            delays_ms.append((loop.time() - left) * 1000)
            counts.add(message["Attributes"]["ApproximateReceiveCount"])
            await sending
            await load.delete(waiter, [message["ReceiptHandle"]])
    if counts != {"1"}:
        raise LostMessagesError(f"what was on its way to who left was counted: {sorted(counts)}")
    return {"leave_p50_ms": percentile(delays_ms, 0.50), "leave_ms": max(delays_ms)}


async def at_backlogs(
    seat: Seat, backlogs: tuple[int, ...], window: int, rounds: int, kind: type[Load] = Load
) -> Figures:
    """Receive and delete from queues in which so many wait, in turn; as many are sent again, which
    is not timed."""
    rates: dict[int, list[float]] = {backlog: [] for backlog in backlogs}
    filling = Meter(seat.place.server_pid)
    async with AsyncExitStack() as stack:
        loads: dict[int, Load] = {}
        for backlog in backlogs:
            loads[backlog] = load = await stack.enter_async_context(
                loaded(seat, str(backlog), kind)
            )
            with filling:
                await load.fill(backlog, plainly=has_plain(seat, kind))
        for number in range(rounds + 1):
            for backlog, load in loads.items():
                meter = Meter()
                with meter:
                    count = await repeated(load, load.receive, most=window)
                await load.fill(count)
                if number > 0:  # the first round warms up
                    rates[backlog].append(rate(count, meter.wall_s))
    deepest, shallowest = rates[max(backlogs)], rates[min(backlogs)]
    return {
        **{f"pop@{backlog}": median(rates[backlog]) for backlog in backlogs},
        "held": median(a / b for a, b in zip(deepest, shallowest, strict=True)),
        **filling.costs(),
    }
