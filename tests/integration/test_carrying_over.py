"""What a pusher does when it cannot tell whether its append counts: nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import cassq
from cassq.errors import BackendError, BackendTimeoutError
from cassq.extents.file_writer import FileWriter
from cassq.extents.files import FilesStore
from cassq.extents.port import ExtentWriter
from cassq.frames import Place
from tests.integration.stage import client_on, drain, numbers, payloads


class SilentWriter(FileWriter):
    """Does what it is told, and does not always say so."""

    appends_lost = 0

    def append(self, frames: Sequence[tuple[bytes, bytes]], end_seq: int) -> Place:
        end = super().append(frames, end_seq)
        if self.appends_lost:
            self.appends_lost -= 1
            raise BackendTimeoutError("no answer to an append", outcome_unknown=True)
        return end


class SilentStore(FilesStore):
    """The same, when it seals, and of its writers the newest."""

    seals_lost = 0

    def create(self, pipe_id: str, queue_name: str, *, strict: bool = False) -> ExtentWriter:
        self.newest = super().create(pipe_id, queue_name, strict=strict)
        self.newest.__class__ = SilentWriter
        return self.newest

    def seal(self, pipe_id: str) -> Place:
        if self.seals_lost:
            self.seals_lost -= 1
            raise BackendTimeoutError("no answer to a seal")
        return super().seal(pipe_id)


@pytest.fixture
def client(directory: Path) -> Iterator[cassq.Client]:
    client = client_on(directory, store_class=SilentStore)
    yield client
    client.close()


def lose(client: cassq.Client, *, appends: int = 1, seals: int = 0) -> None:
    """The next so many answers are lost."""
    store = client.ports.store
    assert isinstance(store, SilentStore)
    assert isinstance(store.newest, SilentWriter)
    store.newest.appends_lost, store.seals_lost = appends, seals


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_what_lies_below_the_end_is_not_carried_over(
    client: cassq.Client, consistency: str
) -> None:
    queue = client.create_queue("jobs", consistency=consistency)
    with queue.pusher() as pusher:
        pusher.push(b"0")
        lose(client)
        ids = pusher.push_many(numbers(5, 1))
        assert pusher.push(b"6").split(":")[0] != ids[0].split(":")[0]
    assert len(set(ids)) == 5
    assert payloads(drain(queue.popper())) == numbers(7)


def test_an_append_that_nobody_can_tell_of_is_an_error_on_a_cp_queue(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp")
    with queue.pusher() as pusher:
        pusher.push(b"0")
        lose(client, seals=1)
        with pytest.raises(BackendError) as caught:
            pusher.push(b"1")
        assert caught.value.outcome_unknown
        pusher.push(b"2")
    assert payloads(drain(queue.popper())) == numbers(3)


def test_an_append_that_nobody_can_tell_of_comes_once_more_on_an_ap_queue(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push(b"0")
        lose(client, seals=1)
        pusher.push(b"1")
    client.reaper.reap(client.ports.catalog.queues())
    assert payloads(drain(queue.popper())) == [b"0", b"1", b"1"]
