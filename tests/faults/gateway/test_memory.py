"""Clients that mean harm, or are broken: the gateway refuses them, and needs no more memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.integration.deadlines import DEADLINE_SECONDS, eventually
from tests.integration.gateway.test_command import client, endpoint, gateway
from tests.integration.worker.processes import Home, home

__all__ = ["home"]

WAVES = 16
EACH = 150
# The allocator keeps the most that was held at once, about 7 MiB where all of a wave come together:
# once, in whichever wave that happens. Heads and bodies that are never freed are 10 MiB a wave.
SLACK_BYTES = 20 << 20

Strange = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def header_bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"POST / HTTP/1.1\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 500) for n in range(500))
    )
    assert b" 431 " in await reader.readline()


async def long_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"GET /" + b"a" * 300_000)
    assert b" 431 " in await reader.readline()


async def large_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n"
    writer.write(head + b"x" * 200_000)
    assert b" 413 " in await reader.readline()


async def endless_chunks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"%x\r\n%b\r\n" % (2_000_000, b"x" * 2_000_000))
    assert re.search(rb" 4(00|11|13) ", await reader.readline())


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(random.Random(1).randbytes(20_000))
    assert b" 400 " in await reader.readline()


async def half_a_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 90_000)
    await writer.drain()


STRANGE = (header_bomb, long_line, large_body, endless_chunks, garbage, half_a_request)


async def wave(host: str, port: int) -> None:
    """Some of each, all of them at the same time; about 0.1 s."""

    async def come(strange: Strange) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            with contextlib.suppress(ConnectionError):  # cut off while it still sends
                await strange(reader, writer)
        finally:
            writer.transport.abort()

    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as group:
        for strange in STRANGE:
            for _ in range(EACH // len(STRANGE)):
                group.create_task(come(strange))


def held_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


@pytest.mark.embedded_only(reason="it is about HTTP")
def test_memory_stays_what_it_is_whatever_clients_send(home: Home) -> None:
    with gateway(home) as process:
        sqs = client(process)
        url = sqs.create_queue(QueueName="mail")["QueueUrl"]
        address = endpoint(process).removeprefix("http://")
        host, _, port = address.rpartition(":")
        held: list[int] = []
        for _ in range(WAVES):
            asyncio.run(wave(host, int(port)))
            eventually("they are gone", lambda: "connections 1.0" in process.get("/metrics")[1])
            sqs.send_message(QueueUrl=url, MessageBody="it still serves")
            held.append(held_bytes(process.children()[0] if process.children() else process.pid))
        assert held[-1] <= held[0] + SLACK_BYTES, held
        assert "Traceback" not in process.errors
        assert process.terminate() == 0
