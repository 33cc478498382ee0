"""What a pusher does when it cannot tell whether its append counts: nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cassq
from cassq.errors import BackendError, BackendTimeoutError
from cassq.extents.port import ExtentStore
from cassq.message.frames import Place
from tests.integration import places
from tests.integration.fronts import Append, FrontStore, client_with
from tests.integration.stage import drain, numbers, payloads


class SilentStore(FrontStore):
    """Does what it is told, and does not always say so."""

    def __init__(self, store: ExtentStore) -> None:
        super().__init__(store, self._append)
        self.appends_lost = self.seals_lost = 0

    def _append(self, append: Append) -> Place:
        end = append()
        if self.appends_lost:
            self.appends_lost -= 1
            raise BackendTimeoutError("no answer to an append", outcome_unknown=True)
        return end

    def seal(self, pipe_id: str) -> Place:
        if self.seals_lost:
            self.seals_lost -= 1
            raise BackendTimeoutError("no answer to a seal")
        return self._store.seal(pipe_id)


@pytest.fixture
def client(place: places.Place) -> Iterator[cassq.Client]:
    with client_with(place, store=SilentStore) as client:
        yield client


def lose(client: cassq.Client, *, appends: int = 1, seals: int = 0) -> None:
    """The next so many answers are lost."""
    store: Any = client.ports.store
    store.appends_lost, store.seals_lost = appends, seals


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


def test_an_append_of_unknown_outcome_is_an_error_on_a_cp_queue(client: cassq.Client) -> None:
    queue = client.create_queue("jobs", consistency="cp")
    with queue.pusher() as pusher:
        pusher.push(b"0")
        lose(client, seals=1)
        with pytest.raises(BackendError) as caught:
            pusher.push(b"1")
        assert caught.value.outcome_unknown
        pusher.push(b"2")
    assert payloads(drain(queue.popper())) == numbers(3)


def test_an_append_of_unknown_outcome_is_repeated_on_an_ap_queue(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher:
        pusher.push(b"0")
        lose(client, seals=1)
        pusher.push(b"1")
    client.reaper.reap(client.ports.catalog.queues.listed())
    assert payloads(drain(queue.popper())) == [b"0", b"1", b"1"]
