"""A program with an event loop is killed at any moment: nothing acknowledged is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.stage import Connect, drain

ROOT = Path(__file__).resolve().parents[3]
KILLS = 6

PROGRAM = """
import asyncio, os, sys
import cassq.aio

def say(what, payload):
    os.write(1, f"{what} {payload.decode()}\\n".encode())

async def push(queue, name):
    for number in range(10**6):
        payload = f"{name}-{number}".encode()
        await queue.push(payload)
        say("pushed", payload)

async def pop(popper):
    while True:
        messages = await popper.pop(7, wait=1.0)
        await popper.commit(messages)
        for message in messages:
            say("committed", message.payload)

async def main():
    async with cassq.aio.connect(sys.argv[1]) as client:
        queue = await client.queue("jobs")
        async with queue.popper() as popper, asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(push(queue, f"{sys.argv[2]}-{number}"))
            group.create_task(pop(popper))
            group.create_task(pop(popper))

asyncio.run(main())
"""


@pytest.mark.embedded_only(reason="its program opens a directory")
def test_a_killed_event_loop_loses_nothing_acknowledged(url: str, connect: Connect) -> None:
    client, chance = connect(), random.Random(1)
    queue = client.create_queue("jobs", claim_timeout=0.5, lease=0.5, max_deliveries=1000)
    pushed: set[bytes] = set()
    committed: list[bytes] = []
    for run in range(KILLS):
        lines = run_until_killed(url, f"run{run}", lines_most=chance.randint(1, 600))
        pushed |= {payload for what, payload in lines if what == b"pushed"}
        committed += [payload for what, payload in lines if what == b"committed"]
    left: list[bytes] = []
    with queue.popper() as popper:
        while True:
            found = drain(popper)
            left += [message.payload for message in found]
            group = queue.stats().groups["default"]
            if not (found or group.waiting or group.pending or group.delayed):
                break
    assert pushed
    assert committed
    assert len(committed) == len(set(committed))  # what was committed did not come again
    assert not set(committed) & set(left)
    # What was not said to be committed may have been, just before a kill.
    assert len(pushed - set(committed) - set(left)) <= 2 * 7 * KILLS
    assert queue.audit().balanced


def run_until_killed(url: str, name: str, lines_most: int) -> list[tuple[bytes, bytes]]:
    """What the program said before it was killed, after it had said so many lines."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, name],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        try:
            lines = [program.stdout.readline() for _ in range(lines_most)]
        finally:
            program.kill()
        lines += program.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith(b"\n")]
    return [(what, payload) for what, payload in whole]
