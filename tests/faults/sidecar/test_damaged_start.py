"""Bits flip in each kind of file of a sidecar that is down: it starts and is repaired, or says what
to do; two whole replicas are enough for everything."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from tests.integration.deadlines import eventually
from tests.integration.reaper.sidecar_processes import SidecarProcess, SidecarProcesses
from tests.servers.kinds.sidecar import flip_bit

pytestmark = [
    pytest.mark.needs("module:rocksdict"),
    pytest.mark.long(reason="processes that are killed, and repairs that are waited for"),
]

COUNT, PIPES = 40, 4
PAYLOAD = b"x" * 5000
BLOCKS_BYTES = 600  # what follows the blocks with frames in a table, at least
REPAIR_SECONDS = 60.0
KINDS = {
    "a block with frames": ("*.sst", lambda size: size // 3),
    "the index": ("*.sst", lambda size: size - BLOCKS_BYTES),
    "the footer": ("*.sst", lambda size: size - 20),
    "the log": ("*.log", lambda size: size // 2),
    "the manifest": ("MANIFEST-*", lambda size: size // 2),
    "the name of the manifest": ("CURRENT", lambda size: size // 2),
    "the options": ("OPTIONS-*", lambda size: size // 2),
    "the marks": ("marks", lambda size: 65536 + 20),
}
NEEDS_EMPTY = {"the manifest", "the name of the manifest"}


@pytest.fixture
def sidecars(tmp_path: Path) -> Iterator[SidecarProcesses]:
    found = SidecarProcesses(tmp_path, 3)
    yield found
    found.close()


def pushed(queue: cassq.Queue, name: str) -> set[bytes]:
    """Push to some pipes, each of which is sealed."""
    found = set()
    for pipe in range(PIPES):
        with queue.pusher() as pusher:
            payloads = [f"{name} {pipe} {n} ".encode() + PAYLOAD for n in range(COUNT)]
            for payload in payloads:
                pusher.push(payload)
            found |= set(payloads)
    return found


def flipped(sidecar: SidecarProcess, kind: str) -> None:
    """Turn a bit of the largest such file."""
    pattern, place = KINDS[kind]
    path = max(sidecar.data.rglob(pattern), key=lambda each: each.stat().st_size)
    flip_bit(path, place(path.stat().st_size), random.Random(kind).randrange(8))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sidecar_starts_with_a_flipped_bit_and_all_is_repaired(
    sidecars: SidecarProcesses, kind: str
) -> None:
    queue = sidecars.client.create_queue("jobs")
    there = pushed(queue, "before")
    hurt = sidecars["c"]
    hurt.stop()  # which writes what it has to tables
    sidecars.lost("c")
    hurt.start()
    sidecars.settled()
    there |= pushed(queue, "after")
    hurt.kill()
    flipped(hurt, kind)
    if kind in NEEDS_EMPTY:
        with pytest.raises(AssertionError, match="the same --name and an empty directory"):
            hurt.start()
        hurt.lose_data()
    hurt.start()
    sidecars.settled()

    def is_well() -> bool:
        sidecars.client.reap()
        return sidecars.run("sidecar", "check").returncode == 0

    eventually("all is well", is_well, seconds=REPAIR_SECONDS)
    info = sidecars.upkeep.info(sidecars.upkeep.fleet().sidecars["c"])
    assert (info["state"], info["failure"], info["starved"]) == ("up", "", "")
    assert len(sidecars.where()) == 2 * PIPES
    assert {len(names) for names in sidecars.where().values()} == {3}
    sidecars["a"].kill()  # what is read now is also on the one that was hurt
    found: list[bytes] = []
    with queue.popper() as popper:
        while messages := popper.pop(1000, wait=2.0):
            found += [bytes(message.payload) for message in messages]
            popper.commit(messages)
    assert len(found) == len(there)
    assert set(found) == there
