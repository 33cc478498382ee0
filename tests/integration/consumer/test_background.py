"""What a client looks at now and then is done in the background, where there is one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.sharing import Background, Sharing
from tests.catalog_parts import WithRoles
from tests.integration.deadlines import eventually
from tests.integration.stage import client_on, numbers, payloads, push


class Held:
    """A catalog's records; a note of success is not written until it is let go."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self.at_it, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def note_success(self, group_id: str, at_ms: int) -> None:
        self.at_it.set()
        assert self.go_on.wait(30)
        self._records.note_success(group_id, at_ms)


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.close()


@pytest.fixture
def client(tmp_path: Path, background: Background) -> Iterator[cassq.Client]:
    """A client whose poppers share their looks, as where these take round trips."""
    with client_on(tmp_path) as made:
        sharing: Sharing[Any, Any, Any] = Sharing(background)
        state: Any = made.runtime._state
        state.ports = made.ports._replace(sharing=sharing)
        yield made
        background.close()


def test_what_another_popper_releases_does_not_wait_while_there_are_always_new_messages(
    client: cassq.Client,
) -> None:
    queue = client.create_queue("jobs")
    with queue.pusher() as pusher, queue.popper() as popper, queue.popper() as another:
        pusher.push_many(numbers(3))
        released = another.pop(1)
        popper.commit(popper.pop(1))
        another.release(released)

        def is_there() -> bool:
            pusher.push(b"new")
            messages = popper.pop(1)
            popper.commit(messages)
            return payloads(messages) == numbers(1)

        eventually("it comes again before new ones", is_there)


def test_a_commit_does_not_wait_until_its_success_is_noted(client: cassq.Client) -> None:
    held = Held(client.ports.catalog.records)
    catalog: Any = WithRoles(client.ports.catalog, records=held)
    state: Any = client.runtime._state
    state.ports = client.ports._replace(catalog=catalog)
    queue = client.create_queue("jobs")
    push(queue, *numbers(1))
    with queue.popper() as popper:
        popper.commit(popper.pop(1))
        assert held.at_it.wait(30)
        assert not held.go_on.is_set()
        held.go_on.set()
