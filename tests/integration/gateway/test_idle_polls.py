"""Ten thousand clients wait for messages that do not come: what that costs a gateway."""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import pytest

import cassq
from cassq.base.clock import Stopwatch
from cassq.worker.eventloop.loops import loop_factory, raised_files
from tests.integration.gateway.listened import Client, call
from tests.integration.gateway.storm import Gateway
from tests.integration.gateway.storm_clients import URL as ACCOUNT_URL
from tests.integration.gateway.storm_clients import ask

URL = f"{ACCOUNT_URL}storm"
POLLS = 10_000
AT_ONCE = 200  # connections that are opened together
WATCHED_SECONDS = 8.0
CALM_SECONDS = 0.5
WAIT_SECONDS = 20
MEMORY_BYTES_MAX = 200 * 10**6
SHARE_MAX = 0.02  # of a core
TRIES = 5  # polls end while they are watched if the machine does much else
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def cpu_seconds(pid: int) -> float:
    """How long a process ran, to the nanosecond, whatever else there was for its cores to do."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock, by clock_getcpuclockid(3)


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def connected(port: int) -> Client:
    return Client(*await asyncio.open_connection("127.0.0.1", port))


async def share_within(pid: int, seconds: float) -> float:
    """The share of a core that a process takes for so long."""
    before, watch = cpu_seconds(pid), Stopwatch()
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / watch.seconds()


async def share_of(port: int, clients: list[Client]) -> float | None:
    """Poll from all clients; the share of a core that it takes once they all just wait. None if
    polls ended before they were watched for long enough."""
    waiting = 0
    for at, client in enumerate(clients, 1):
        client.send(call("ReceiveMessage", {"QueueUrl": URL, "WaitTimeSeconds": WAIT_SECONDS}))
        while at % AT_ONCE == 0 and waiting < at:
            _, facts = await ask(port, HEALTH)
            if facts["requests"] < waiting:
                return None
            waiting = facts["requests"]
    while await share_within(facts["pid"], CALM_SECONDS) > SHARE_MAX:
        pass  # what comes with a poll, such as a look for messages, is still being done
    share = await share_within(facts["pid"], WATCHED_SECONDS)
    _, facts = await ask(port, HEALTH)
    return share if facts["requests"] >= waiting else None


async def first_answer(clients: list[Client]) -> list[bytes]:
    """The body of the one answer that comes."""
    reading = [asyncio.ensure_future(client.read()) for client in clients]
    done, left = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
    for each in left:
        each.cancel()
    return [each.result().body for each in done]


async def measured(url: str) -> tuple[int, float]:
    """Memory in bytes, and the share of a core."""
    gateway = await Gateway.started(url)
    clients: list[Client] = []
    try:
        while len(clients) < POLLS:
            clients += await asyncio.gather(*(connected(gateway.port) for _ in range(AT_ONCE)))
        share = None
        for _ in range(TRIES):
            share = await share_of(gateway.port, clients)
            if share is not None:
                break
            await asyncio.gather(*(client.read() for client in clients))
        assert share is not None
        _, facts = await ask(gateway.port, HEALTH)
        memory = memory_bytes(facts["pid"])
        send = call("SendMessage", {"QueueUrl": URL, "MessageBody": "one"})
        assert (await ask(gateway.port, send))[0] == 200
        (answer,) = await first_answer(clients)
        assert b'"Body":"one"' in answer
        return memory, share
    finally:
        for client in clients:
            client.writer.transport.abort()
        await gateway.stop()


@pytest.mark.long(reason="10,000 connections are opened, and watched")
@pytest.mark.embedded_only(reason="measures a gateway of a directory")
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < POLLS + 1000, reason="too few open files"
)
def test_10_000_idle_polls_take_little(url: str, client: cassq.Client) -> None:
    client.create_queue("storm")
    raised_files()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        memory, share = runner.run(measured(url))
    print(f"{POLLS} long polls: {memory / 1e6:.0f} MB, {share:.2%} of a core")
    assert memory <= MEMORY_BYTES_MAX
    assert share <= SHARE_MAX
