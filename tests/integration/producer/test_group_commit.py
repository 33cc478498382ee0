"""Group commit: pushes of many threads share their syncs, and none is lost or doubled."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

import cassq
from cassq.errors import StorageFullError
from cassq.extents.files.disk import Disk
from cassq.message.frames import Place as At
from tests.contract.disks import no_space
from tests.integration.deadlines import DEADLINE_SECONDS, eventually, in_threads
from tests.integration.fronts import Append, FrontStore, client_with
from tests.integration.places import Place
from tests.integration.stage import client_on, drain, numbers

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


class FillingDisk(Disk):
    """A disk on which a write stands still until it is let go, and then there is no room left."""

    def __init__(self) -> None:
        self.standing = threading.Event()
        self.let_go = threading.Event()
        self.stands_still = False

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        if not self.stands_still or self.let_go.is_set():
            if self.let_go.is_set() and pos:
                raise no_space()
            return super().pwritev(fd, buffers, pos)
        self.standing.set()
        assert self.let_go.wait(DEADLINE_SECONDS)
        return super().pwritev(fd, buffers, pos)


@pytest.mark.embedded_only(reason="a disk is filled")
def test_a_failed_append_fails_each_push_in_it(directory: Path) -> None:
    disk = FillingDisk()
    client = client_on(directory, disk)
    pusher = client.create_queue("jobs").pusher()
    pusher.push(b"first")
    disk.stands_still = True
    outcomes: list[Exception | str] = []

    def push(number: int) -> None:
        try:
            outcomes.append(pusher.push(b"%d" % number))
        except StorageFullError as exc:
            outcomes.append(exc)

    threads = [threading.Thread(target=push, args=(0,))]
    threads[0].start()
    assert disk.standing.wait(DEADLINE_SECONDS)
    threads += [threading.Thread(target=push, args=(number,)) for number in range(1, 5)]
    for thread in threads[1:]:
        thread.start()
    eventually("they wait together", lambda: len(pusher._queue) == 4)
    disk.let_go.set()
    for thread in threads:
        thread.join(DEADLINE_SECONDS)
    failed = [each for each in outcomes if isinstance(each, StorageFullError)]
    assert (len(outcomes), len(failed)) == (5, 4), "what stood still was written"
    disk.stands_still = False
    disk.let_go.clear()
    client.close()


@pytest.mark.embedded_only(reason="an append is held up")
def test_each_of_several_waiting_pushes_learns_its_own_outcome(place: Place) -> None:
    """Of four that are appended in one go the first two fill a pipe, and the next one fails."""
    standing, let_go, appends = threading.Event(), threading.Event(), count(1)

    def around(append: Append) -> At:
        number = next(appends)
        if number == 1:
            standing.set()
            assert let_go.wait(DEADLINE_SECONDS)
        if number == 3:
            raise StorageFullError("no room")
        return append()

    with client_with(place, store=lambda store: FrontStore(store, around)) as client:
        queue = client.create_queue("jobs", max_pushes_per_pipe=3)
        pusher = queue.pusher()
        outcomes: dict[bytes, str | StorageFullError] = {}

        def push(payload: bytes) -> None:
            try:
                outcomes[payload] = pusher.push(payload)
            except StorageFullError as exc:
                outcomes[payload] = exc

        threads = [threading.Thread(target=push, args=(payload,)) for payload in numbers(5)]
        threads[0].start()
        assert standing.wait(DEADLINE_SECONDS)
        for thread in threads[1:]:
            thread.start()
        eventually("they wait together", lambda: len(pusher._queue) == 4)
        let_go.set()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
        failed = [each for each in outcomes.values() if isinstance(each, StorageFullError)]
        assert len(outcomes) == 5
        assert [(each.fields["pushed"], each.outcome_unknown) for each in failed] == [
            (0, False)
        ] * 2
        assert pusher.tally.pushed == 3
        assert pusher.tally.push_failures == {"StorageFullError": 2}
        pusher.close()
        found = {message.payload: message.id for message in drain(queue.popper())}
        assert found == {each: id for each, id in outcomes.items() if isinstance(id, str)}
