"""Gateways of a FIFO queue are killed at any moment, while others serve it: each group keeps its
order, nothing that was answered is lost, and what was deleted stays deleted."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

import cassq
from tests.integration.gateway.asking import Asker, served

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = 3

# Sends numbers to groups of its own; receives from all groups and deletes.
PROGRAM = """
import asyncio, os, sys
from cassq.gateway.actions.service import open_service
from tests.integration.gateway.asking import Asker

def say(what, *words):
    os.write(1, (" ".join([what, *words]) + "\\n").encode())

async def send(sqs, group):
    for number in range(10**6):
        body = f"{number:06}"
        await sqs.send("jobs.fifo", body, MessageGroupId=group,
                       MessageDeduplicationId=f"{group}-{body}")
        say("sent", group, body)

async def receive(sqs):
    while True:
        for message in await sqs.receive("jobs.fifo", 3, WaitTimeSeconds=1, VisibilityTimeout=2):
            group, body = message["Attributes"]["MessageGroupId"], message["Body"]
            say("deleting", group, body)
            try:
                await sqs.delete("jobs.fifo", message)
            except Exception as exc:
                assert "expired" in str(exc), exc
                say("expired", group, body)
            else:
                say("deleted", group, body)

async def main():
    async with open_service(sys.argv[1]) as service, asyncio.TaskGroup() as tasks:
        sqs = Asker(service)
        for number in range(3):
            tasks.create_task(send(sqs, f"{sys.argv[2]}-{number}"))
        tasks.create_task(receive(sqs))

asyncio.run(main())
"""


def started(url: str, name: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, name],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )


def unanswered(said: list[tuple[str, str, str]]) -> set[tuple[str, str]]:
    """The message whose deletion a killed program had no answer of: it may be deleted or left."""
    deletes = [each for each in said if each[0] != "sent"]
    return {each[1:] for each in deletes[-1:] if each[0] == "deleting"}


def killed(program: subprocess.Popen[str], lines_most: int) -> list[tuple[str, str, str]]:
    """What a program said before it was killed, after so many lines."""
    with program:
        assert program.stdout is not None
        try:
            lines = [program.stdout.readline() for _ in range(lines_most)]
        finally:
            program.kill()
        lines += program.stdout.readlines()
    return [
        (found[1], found[2], found[3])
        for found in map(re.compile(r"([a-z]+) (\S+) (\d+)\n").fullmatch, lines)
        if found is not None
    ]


@pytest.mark.long(reason="kills gateways again and again")
@pytest.mark.embedded_only(reason="its program opens a directory")
def test_a_fifo_queue_survives_its_gateways(url: str, client: cassq.Client) -> None:
    chance = random.Random(2)
    said: list[tuple[str, str, str]] = []
    left: list[tuple[str, str]] = []
    unknown: set[tuple[str, str]] = set()

    async def create(sqs: Asker) -> None:
        await sqs.create("jobs.fifo", FifoQueue="true", VisibilityTimeout="2")

    async def drain(sqs: Asker) -> None:
        empty = 0
        while empty < 2:
            found = await sqs.receive("jobs.fifo", 10, WaitTimeSeconds=5)
            empty = 0 if found else empty + 1
            for message in found:
                left.append((message["Attributes"]["MessageGroupId"], message["Body"]))
                await sqs.delete("jobs.fifo", message)

    served(url, create)
    for number in range(ROUNDS):
        pair = [started(url, f"{number}{which}") for which in "ab"]
        words = [killed(program, chance.randint(1, 150)) for program in pair]
        unknown -= {each[1:] for each in chain(*words) if each[0] == "deleting"}  # they came again
        unknown |= unanswered(words[0]) | unanswered(words[1])
        said += chain(*words)
    served(url, drain)
    sent = {(group, body) for what, group, body in said if what == "sent"}
    deleted = [(group, body) for what, group, body in said if what == "deleted"]
    assert sent <= {*deleted, *left, *unknown}, "nothing that was answered is lost"
    assert not set(deleted) & set(left), "what was deleted stays deleted"
    assert len(set(deleted)) == len(deleted)
    for group in {group for group, _ in left}:
        mine = [body for each, body in left if each == group]
        assert mine == sorted(mine)
        assert all(body < mine[0] for each, body in deleted if each == group)
    assert client.queue("jobs.fifo").audit().findings == []
