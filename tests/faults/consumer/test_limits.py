"""Limits of a group while its poppers are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest

import cassq
from tests.integration.places import DirectoryPlace

MESSAGES = 300
CONCURRENCY = 3
KILLS = 4
WORKERS = 4
RATE = 50  # a second

# Notes each message it has in hand, and that it has it no more, in a file that all append to.
WORKER = """
import os, sys, time, cassq
url, events = sys.argv[1:]
log = os.open(events, os.O_WRONLY | os.O_APPEND)
popper = cassq.connect(url).queue("jobs").popper()
while True:
    messages = list(popper.pop(2, wait=0.5))
    for message in messages:
        os.write(log, b"+ %d %s\\n" % (os.getpid(), message.payload))
    for message in messages:
        time.sleep(0.002)
        os.write(log, b"- %d %s\\n" % (os.getpid(), message.payload))
        message.ack()
"""


# Notes when each message was claimed.
QUICK_WORKER = """
import os, sys, cassq
url, events = sys.argv[1:]
log = os.open(events, os.O_WRONLY | os.O_APPEND)
popper = cassq.connect(url).queue("jobs").popper()
while True:
    for message in popper.pop(1, wait=0.5):
        os.write(log, b"+ %d %s\\n" % (message._delivery.claimed_ms, message.payload))
        popper.commit([message])
"""


def most_in_hand(events: Path) -> tuple[int, set[bytes]]:
    """How many were in hand at once, and all that were done."""
    hands: set[tuple[bytes, bytes]] = set()
    most, done = 0, set()
    for line in events.read_bytes().splitlines():
        verb, pid, payload = line.split()
        if verb == b"+":
            hands.add((pid, payload))
            most = max(most, len(hands))
        elif verb == b"-":
            hands.discard((pid, payload))
            done.add(payload)
        else:
            hands = {each for each in hands if each[0] != pid}
    return most, done


@contextmanager
def killed_now_and_then(
    script: str, url: str, events: Path
) -> Iterator[tuple[list[int], Callable[[int, int], None]]]:
    """Four workers. Yields the pids of those that were killed, and what kills one, and starts
    another, where more are `done` of `most` than those that were killed stand for."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", script, url, str(events)])

    workers, rng = [start() for _ in range(WORKERS)], random.Random(7)
    killed: list[int] = []

    def kill(done: int, most: int) -> None:
        if len(killed) < KILLS and done > len(killed) * most // (KILLS + 1):
            worker = workers.pop(rng.randrange(len(workers)))
            worker.kill()
            worker.wait()
            with events.open("ab") as log:
                log.write(b"k %d 0\n" % worker.pid)
            workers.append(start())
            killed.append(worker.pid)

    try:
        yield killed, kill
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.waits(reason="the permits of killed processes last for two claim timeouts")
def test_the_limit_in_hand_holds_however_many_poppers_are_killed(tmp_path: Path) -> None:
    place, events = DirectoryPlace(tmp_path / "data"), tmp_path / "events"
    events.touch()
    with cassq.connect(place.url) as client:
        queue = client.create_queue(
            "jobs", concurrency=CONCURRENCY, claim_timeout=1, max_deliveries=100
        )
        with queue.pusher() as pusher:
            pusher.push_many([b"%d" % number for number in range(MESSAGES)])
        with killed_now_and_then(WORKER, place.url, events) as (killed, kill):
            while queue.stats().groups["default"].committed < MESSAGES:
                kill(len(most_in_hand(events)[1]), MESSAGES)
        most, done = most_in_hand(events)
        assert 1 <= most <= CONCURRENCY
        assert len(done) == MESSAGES
        assert killed
        assert queue.audit().findings == []


def claimed_ms(events: Path) -> list[int]:
    """When messages were claimed, in order."""
    lines = [line.split() for line in events.read_bytes().splitlines()]
    return sorted(int(line[1]) for line in lines if line[0] == b"+")


def test_no_more_come_than_the_rate_however_many_poppers_are_killed(tmp_path: Path) -> None:
    """In no span of time: of each worker one may be late, which was on its way before."""
    place, events = DirectoryPlace(tmp_path / "data"), tmp_path / "events"
    events.touch()
    with cassq.connect(place.url) as client:
        queue = client.create_queue("jobs", rate=f"{RATE}/s", claim_timeout=1, max_deliveries=100)
        with queue.pusher() as pusher:
            pusher.push_many([b"%d" % number for number in range(MESSAGES)])
        with killed_now_and_then(QUICK_WORKER, place.url, events) as (killed, kill):
            while queue.stats().groups["default"].committed < MESSAGES:
                kill(len(claimed_ms(events)), MESSAGES)
        times = claimed_ms(events)
        for first, last in combinations(range(len(times)), 2):
            span_ms = times[last] - times[first]
            assert last - first <= RATE * span_ms / 1000 + WORKERS + 1
        assert len(times) >= MESSAGES
        assert killed
        assert queue.audit().findings == []
