"""Group commit: pushes of many threads share their syncs, and none is lost or doubled."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import cassq
from cassq.extents.disk import Disk
from tests.integration.deadlines import in_threads
from tests.integration.stage import client_on, drain

THREADS, EACH = 16, 60


class CountingDisk(Disk):
    """A disk that counts the syncs of data."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_data(self, fd: int) -> None:
        self.syncs += 1
        super().sync_data(fd)


@pytest.mark.embedded_only(reason="it counts syncs")
def test_sixteen_threads_share_their_syncs(directory: Path) -> None:
    disk = CountingDisk()
    client = client_on(directory, disk)
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    ids: dict[bytes, str] = {}
    start = threading.Barrier(THREADS)

    def work(number: int) -> None:
        start.wait()
        for n in range(EACH):
            payload = b"%d/%d" % (number, n)
            ids[payload] = pusher.push(payload)

    in_threads(THREADS, work)
    pusher.close()
    assert disk.syncs < THREADS * EACH
    found = drain(queue.popper())
    assert {message.payload: message.id for message in found} == ids
    assert len(found) == THREADS * EACH
    client.close()


def test_each_threads_pushes_keep_their_order(queue: cassq.Queue) -> None:
    pusher = queue.pusher()

    def work(number: int) -> None:
        for n in range(40):
            if n % 3:
                pusher.push(b"%d/%d" % (number, n))
            else:
                pusher.push_many([b"%d/%d" % (number, n)])

    in_threads(8, work)
    pusher.close()
    seen: dict[bytes, list[int]] = {}
    for message in drain(queue.popper()):
        thread, _, n = message.payload.partition(b"/")
        seen.setdefault(thread, []).append(int(n))
    assert len(seen) == 8
    assert all(found == list(range(40)) for found in seen.values())


@pytest.mark.embedded_only(reason="it counts syncs")
def test_a_sync_belongs_to_every_push_that_is_alone(directory: Path) -> None:
    disk = CountingDisk()
    client = client_on(directory, disk)
    with client.create_queue("jobs").pusher() as pusher:
        pusher.push(b"warm")
        before = disk.syncs
        for _ in range(10):
            pusher.push(b"x")
        assert disk.syncs == before + 10
        pusher.push_many([b"x"] * 1000)
        assert disk.syncs == before + 11
    client.close()
