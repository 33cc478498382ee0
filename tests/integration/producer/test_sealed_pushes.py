"""Pushes of several frames of which somebody seals the pipe in the middle: each message counts
once, and what is told of them is so."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.clock import SystemClock
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    StorageFullError,
)
from cassq.extents.files.disk import Disk
from cassq.extents.files.store import FilesStore
from cassq.extents.port import ExtentStore, ExtentWriter
from cassq.lifecycle.sealing import seal_pipe
from cassq.message.frames import Place as At
from cassq.message.frames import frame_seqs
from cassq.pipes import PipeWriter
from tests.integration.fronts import FrontWriter, client_with
from tests.integration.places import Place
from tests.integration.stage import client_on, drain, numbers, payloads, reap

pytestmark = pytest.mark.embedded_only(reason="writes are parted on the disk, and in its store")

COUNT = 40_000  # three frames


class HaltingDisk(Disk):
    """A disk on which `between` happens in the middle of the next long write. share: how much of
    it is written by then."""

    def __init__(self) -> None:
        self.between: Callable[[], object] | None = None
        self.share = 0.0

    def pwritev(self, fd: int, buffers: Sequence[bytes], pos: int) -> int:
        data = b"".join(buffers)
        if self.between is None or len(data) < COUNT:
            return super().pwritev(fd, buffers, pos)
        between, self.between = self.between, None
        part = int(len(data) * self.share)
        done = os.pwrite(fd, data[:part], pos)
        between()
        return done + os.pwrite(fd, data[part:], pos + done)


@pytest.fixture
def disk() -> HaltingDisk:
    return HaltingDisk()


@pytest.fixture
def client(tmp_path: Path, disk: HaltingDisk) -> Iterator[cassq.Client]:
    with client_on(tmp_path, disk) as client:
        yield client


def check(queue: cassq.Queue, ids: Sequence[str], pushed: Sequence[bytes]) -> None:
    """Each of these messages is there once, under its id, and nothing else is."""
    assert len(ids) == len(set(ids)) == len(pushed)
    assert queue.audit().findings == []
    messages = drain(queue.popper(), 10_000)
    found = {message.id: message.payload for message in messages}
    assert len(messages) == len(found) == len(pushed), "none is lost or doubled"
    assert [found[each] for each in ids] == list(pushed)
    assert queue.audit().findings == []


@pytest.mark.parametrize("consistency", ["ap", "cp"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.45, 0.83, 0.99])
def test_a_seal_in_the_middle_of_an_append_leaves_each_message_once(
    client: cassq.Client, disk: HaltingDisk, tmp_path: Path, consistency: str, share: float
) -> None:
    """What lies below the end that the sealer found counts; what comes after is carried over."""
    queue = client.create_queue("jobs", consistency=consistency)
    pusher = queue.pusher()
    first = pusher.push(b"first")
    pipe_id = first.split(":")[0]
    sealer = FilesStore(tmp_path / "pipes", SystemClock(), durability="disk", disk=Disk())
    ends: list[At | None] = []

    def seal() -> None:
        ends.append(seal_pipe(client.ports.catalog, sealer, pipe_id))

    disk.between, disk.share = seal, share
    pushed = numbers(COUNT)
    ids = pusher.push_many(pushed)
    (end,) = ends
    assert end is not None
    assert end.seq < 1 + COUNT, "it was sealed before all of it was there"
    assert sum(each.startswith(pipe_id) for each in ids) == end.seq - 1
    pusher.close()
    check(queue, [first, *ids], [b"first", *pushed])


class PartingStore:
    """A store that appends the first frames of an append, and then does not say so. plan: how many
    of each that comes; None: all, as ever, and so of those after. error: what is raised then."""

    def __init__(self, store: ExtentStore) -> None:
        self._store = store
        self.plan: list[int | None] = []
        self.error: Callable[[], Exception] = lambda: BackendTimeoutError(
            "no answer to an append", outcome_unknown=True
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        return PartingWriter(self._store.create(pipe_id, queue_name, strict=strict), self)


class PartingWriter(FrontWriter):
    """A writer of a `PartingStore`."""

    def __init__(self, writer: ExtentWriter, store: PartingStore) -> None:
        super().__init__(writer, lambda append: append())
        self._store = store

    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> At:
        count = self._store.plan.pop(0) if self._store.plan else None
        if count is None:
            return super().append(frames, end_seq)
        if count:
            base_seq, messages = frame_seqs(frames[count - 1][0])
            super().append(frames[:count], base_seq + messages)
        raise self._store.error()


@pytest.fixture
def parted(place: Place) -> Iterator[tuple[cassq.Client, PartingStore]]:
    with client_with(place, store=PartingStore) as client:
        store: Any = client.ports.store
        yield client, store


@pytest.mark.parametrize("consistency", ["ap", "cp"])
@pytest.mark.parametrize("frames", [0, 1, 2, 3])
def test_an_append_that_was_done_in_part_is_carried_over_from_there(
    parted: tuple[cassq.Client, PartingStore], consistency: str, frames: int
) -> None:
    client, store = parted
    queue = client.create_queue("jobs", consistency=consistency)
    with queue.pusher() as pusher:
        first = pusher.push(b"first")
        store.plan = [frames]
        pushed = numbers(COUNT)
        ids = pusher.push_many(pushed)
    check(queue, [first, *ids], [b"first", *pushed])


def test_a_push_that_fails_in_its_second_append_says_how_many_are_there(
    parted: tuple[cassq.Client, PartingStore],
) -> None:
    client, store = parted
    queue = client.create_queue("jobs")
    pushed = [b"%d" % number + bytes(1024 * 1024) for number in range(12)]  # two appends
    store.error = lambda: StorageFullError("no space left")
    with queue.pusher() as pusher:
        pusher.push(b"first")
        store.plan = [None, 0]
        with pytest.raises(StorageFullError) as caught:
            pusher.push_many(pushed)
    there = caught.value.fields["pushed"]
    assert 0 < there < len(pushed)
    assert payloads(drain(queue.popper())) == [b"first", *pushed[:there]]


def test_a_push_whose_pipe_is_gone_does_not_say_that_it_failed(
    client: cassq.Client, disk: HaltingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was delivered, and even consumed, before its pusher came to look."""
    queue = client.create_queue("jobs")
    pusher = queue.pusher()
    pusher.push(b"first")
    payload, found = bytes(2 * COUNT), []

    def meanwhile() -> None:
        (pipe,) = queue.pipes()
        assert seal_pipe(client.ports.catalog, client.ports.store, pipe.id) is not None
        with queue.popper() as popper:
            messages = popper.pop(10)
            found.extend(payloads(messages))
            popper.commit(messages)
        while queue.pipes():
            reap(client)

    def refuse(*_: object) -> None:
        raise BackendUnavailableError("no room for a new pipe")

    monkeypatch.setattr(PipeWriter, "_create", refuse)
    disk.share = 1.0
    disk.between = lambda: in_thread(meanwhile)
    with pytest.raises(BackendError, match="no room") as failed:
        pusher.push(payload)
    assert found == [b"first", payload]
    assert failed.value.outcome_unknown


def in_thread(act: Callable[[], object]) -> None:
    """A thread inside a call may not call again; another may."""
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
