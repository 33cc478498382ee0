"""Limits of a group while its poppers are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

import cassq
from tests.integration.places import DirectoryPlace

MESSAGES = 300
CONCURRENCY = 3
KILLS = 4

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

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", WORKER, place.url, str(events)])

        workers = [start() for _ in range(4)]
        try:
            killed, rng = 0, random.Random(7)
            while queue.stats().groups["default"].committed < MESSAGES:
                _, done = most_in_hand(events)
                if killed < KILLS and len(done) > killed * MESSAGES // (KILLS + 1):
                    worker = workers.pop(rng.randrange(len(workers)))
                    worker.kill()
                    worker.wait()
                    with events.open("ab") as log:
                        log.write(b"k %d 0\n" % worker.pid)
                    workers.append(start())
                    killed += 1
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        most, done = most_in_hand(events)
        assert 1 <= most <= CONCURRENCY
        assert len(done) == MESSAGES
        assert killed >= 1
        assert queue.audit().findings == []
