"""`python -m bench.sdk`: boto3 at the gateway, beside boto3 at a server that does nothing.

That server answers at once, always with the same, which boto3 takes for right; so it shows how much
boto3 can do at all. Each server has one core, and the client, whose threads share one lock, the
other; the rounds of a pair are one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import click
from botocore.config import Config

from bench.scenarios.gateway.load import BATCH
from bench.scenarios.gateway.scenario import BODY_BYTES
from bench.servers.server import free_port
from bench.servers.sqs import GatewayServer, SqsServer, client_core, pinned

BODY = "x" * BODY_BYTES
KEY = "any"
ROOT = Path(__file__).resolve().parents[1]


class NullServer(SqsServer):
    """Answers each action at once, with the same."""

    name = "null"

    def find(self) -> None:
        """It needs nothing."""

    def prepare(self) -> list[str]:
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {"PYTHONPATH": str(ROOT)}
        return pinned(sys.executable, "-m", "bench.sdk", "--null", self.address)

    def version(self) -> str:
        return "a server that does nothing"


def _answers() -> dict[bytes, bytes]:
    """The answer to each action, whole."""
    md5 = hashlib.md5(BODY.encode(), usedforsecurity=False).hexdigest()
    own = {"MessageId": "0" * 36, "MD5OfMessageBody": md5}
    done = [{"Id": str(at)} for at in range(BATCH)]
    handle = "A" * 120
    message = {"MessageId": "0" * 36, "ReceiptHandle": handle, "MD5OfBody": md5, "Body": BODY}
    bodies: dict[bytes, dict[str, Any]] = {
        b"CreateQueue": {"QueueUrl": "http://localhost/000000000000/q"},
        b"SendMessage": own,
        b"SendMessageBatch": {"Successful": [{**each, **own} for each in done]},
        b"ReceiveMessage": {"Messages": [message] * BATCH},
        b"DeleteMessageBatch": {"Successful": done},
    }
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-amz-json-1.0\r\nContent-Length: "
    found: dict[bytes, bytes] = {}
    for name, body in bodies.items():
        text = json.dumps(body)
        found[name] = f"{head}{len(text)}\r\n\r\n{text}".encode()
    return found


class _Connection(asyncio.Protocol):
    """A connection of the server that does nothing."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while b"\r\n\r\n" in self._read:
            head, _, rest = self._read.partition(b"\r\n\r\n")
            fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
            length = int(fields.get(b"content-length", b"0"))
            if len(rest) < length:
                return
            self._read = rest[length:]
            action = head.partition(b"AmazonSQS.")[2].partition(b"\r\n")[0]
            self._transport.write(self._answers.get(action, b"HTTP/1.1 404 No\r\n\r\n"))


async def _serve(address: str) -> None:
    answers, (host, _, port) = _answers(), address.rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answers), host, int(port))
    await server.serve_forever()


def _client(address: str, threads: int) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=f"http://{address}",
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
        config=Config(max_pool_connections=threads),
    )


def _steps(client: Any, queue: str) -> dict[str, Callable[[], int]]:
    """By name, what is done again and again; each returns how many messages it was about."""
    entries = [{"Id": str(at), "MessageBody": BODY} for at in range(BATCH)]

    def send() -> int:
        client.send_message(QueueUrl=queue, MessageBody=BODY)
        return 1

    def send_batch() -> int:
        return len(client.send_message_batch(QueueUrl=queue, Entries=entries)["Successful"])

    def receive() -> int:
        found = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=BATCH)["Messages"]
        handles = [message["ReceiptHandle"] for message in found]
        gone = [{"Id": str(at), "ReceiptHandle": handle} for at, handle in enumerate(handles)]
        return len(client.delete_message_batch(QueueUrl=queue, Entries=gone)["Successful"])

    return {"SendMessage": send, "batches of ten": send_batch, "received and deleted": receive}


def _rate(step: Callable[[], int], threads: int, seconds: float) -> float:
    """Messages a second of so many threads."""
    begun = time.perf_counter()

    def work() -> int:
        count = 0
        while time.perf_counter() - begun < seconds:
            count += step()
        return count

    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work) for _ in range(threads)]
        count = sum(each.result() for each in working)
    return count / (time.perf_counter() - begun)


@click.command()
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=16, show_default=True)
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Of each round.")
@click.option("--null", "address", hidden=True, help="Serve at this address, doing nothing.")
def main(pairs: int, threads: int, seconds: float, address: str | None) -> None:
    """Compare boto3 at the gateway with boto3 at a server that does nothing."""
    if address:
        asyncio.run(_serve(address))
        return
    rates: dict[tuple[str, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [
            stack.enter_context(kind(home / kind.name)) for kind in (NullServer, GatewayServer)
        ]
        os.sched_setaffinity(0, {client_core()})
        steps: dict[str, dict[str, Callable[[], int]]] = {}
        for server in servers:
            client = _client(server.address, threads)
            queue = client.create_queue(QueueName="q")["QueueUrl"]
            steps[server.name] = _steps(client, queue)
        for number in range(-1, pairs):  # the first warms up
            for name in steps["null"]:  # what is received was sent just before
                for server in servers[:: 1 if number % 2 else -1]:
                    rate = _rate(steps[server.name][name], threads, seconds)
                    if number >= 0:
                        rates.setdefault((name, server.name), []).append(rate)
    click.echo("| messages/s | nothing | gateway | of nothing |\n| --- | ---: | ---: | ---: |")
    for name in dict.fromkeys(each for each, _ in rates):
        null, own = rates[name, "null"], rates[name, "gateway"]
        share = statistics.median(b / a for a, b in zip(null, own, strict=True))
        medians = (statistics.median(null), statistics.median(own))
        click.echo(f"| {name} | {medians[0]:,.0f} | {medians[1]:,.0f} | {share:.2f} |")


if __name__ == "__main__":
    main()
