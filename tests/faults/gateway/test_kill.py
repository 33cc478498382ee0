"""A gateway is killed at any moment: what it answered holds, and other gateways go on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import cassq
from tests.integration.deadlines import ticks
from tests.integration.gateway.asking import Asker, bodies, served

ROOT = Path(__file__).resolve().parents[3]
KILLS = 2

PROGRAM = """
import asyncio, os, sys
from cassq.gateway.actions.service import open_service
from tests.integration.gateway.asking import Asker

def say(what, body, handle):
    os.write(1, f"{what} {body} {handle}\\n".encode())

async def send(sqs, name):
    for number in range(10**6):
        await sqs.send("jobs", f"{name}-{number}")
        say("sent", f"{name}-{number}", "-")

async def receive(sqs, hold):
    while True:
        for message in await sqs.receive("jobs", 7, WaitTimeSeconds=1, VisibilityTimeout=hold):
            body, handle = message["Body"], message["ReceiptHandle"]
            say("received", body, handle)
            if hold == 1:
                await sqs.delete("jobs", message)
                say("deleted", body, handle)

async def main():
    async with open_service(sys.argv[1]) as service, asyncio.TaskGroup() as group:
        sqs = Asker(service)
        for number in range(10):
            group.create_task(send(sqs, f"{sys.argv[2]}-{number}"))
        group.create_task(receive(sqs, int(sys.argv[3])))

asyncio.run(main())
"""


def run_until_killed(
    url: str, name: str, hold: int, line_count: int, word: str = ""
) -> list[list[str]]:
    """What the program said before it was killed, after it had said so many lines with a word."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, name, str(hold)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        try:
            lines = []
            while line_count and (line := program.stdout.readline()):
                lines.append(line)
                line_count -= word in line
        finally:
            program.kill()
        lines += program.stdout.readlines()
    return [line.split() for line in lines if line.endswith("\n")]


async def drained(sqs: Asker) -> list[dict[str, Any]]:
    """Everything that can be received now."""
    found: list[dict[str, Any]] = []
    while messages := await sqs.receive("jobs", 10):
        found += messages
    return found


@pytest.mark.embedded_only(reason="its program opens a directory")
@pytest.mark.waits(reason="until what a killed gateway had received comes again")
def test_handles_outlive_the_gateway_and_so_do_deadlines(url: str, client: cassq.Client) -> None:
    client.create_queue("jobs", retain_unconsumed=600.0)

    async def main(sqs: Asker) -> None:
        lines = run_until_killed(url, "a", 8, 3, "received")
        killed_at = monotonic()
        handles = {body: handle for what, body, handle in lines if what == "received"}
        assert handles
        left = await drained(sqs)
        assert not handles.keys() & set(bodies(left)), "nobody else gets them before their time"
        (first, handle), *others = handles.items()
        await sqs.ask("DeleteMessage", "jobs", ReceiptHandle=handle)
        again: list[str] = []
        # Others come, too: those that were received, and not yet said to be.
        while not {body for body, _ in others} <= set(again):
            for message in await sqs.receive("jobs", 10, WaitTimeSeconds=5):
                again.append(message["Body"])
                if message["Body"] in handles:
                    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
        assert first not in again
        assert monotonic() - killed_at < 60

    served(url, main)
    assert client.queue("jobs").audit().findings == []


@pytest.mark.embedded_only(reason="its program opens a directory")
def test_what_killed_gateways_answered_holds(url: str, client: cassq.Client) -> None:
    queue, chance = client.create_queue("jobs", retain_unconsumed=600.0), random.Random(1)
    said: list[list[str]] = []
    for run in range(KILLS):
        said += run_until_killed(url, f"run{run}", 1, chance.randint(1, 600))
    sent = {body for what, body, _ in said if what == "sent"}
    deleted = {body for what, body, _ in said if what == "deleted"}
    left: set[str] = set()

    async def main(sqs: Asker) -> None:
        while True:
            left.update(bodies(await drained(sqs)))
            group = queue.stats().groups["default"]
            if group.waiting == 0 and group.pending <= len(left):
                return
            ticks(100)

    served(url, main)
    assert sent
    assert deleted
    assert not deleted & left, "what was deleted came again"
    # Of what was received by those killed, deletions may have been written and not answered.
    assert len(sent - deleted - left) <= 7 * KILLS
    assert queue.audit().findings == []
