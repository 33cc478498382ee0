"""Poppers of one client that claim from the same pipe at the same time do it in one step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cassq
from cassq.base.sharing import Sharing
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.model.rows import Claim, Cursor
from tests.catalog_parts import WithRoles
from tests.integration.deadlines import eventually, joined
from tests.integration.stage import client_on, numbers, payloads, push

POPPERS = 5


class Slow:
    """A catalog's claims, of which the first waits until it is let go."""

    def __init__(self, claims: Any) -> None:
        self._claims = claims
        self.sizes: list[int] = []
        self.at_it, self.go_on = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._claims, name)

    def claim(self, cursor: Cursor, chain: Place, rows: Sequence[Claim], **more: Any) -> bool:
        self.sizes.append(len(rows))
        if len(self.sizes) == 1:
            self.at_it.set()
            assert self.go_on.wait(30)
        return bool(self._claims.claim(cursor, chain, rows, **more))


@pytest.fixture
def sharing() -> Sharing[Any, Any, Any]:
    return Sharing()


def test_a_thread_that_waits_for_its_clients_claim_gets_its_own_in_the_next(
    tmp_path: Path, sharing: Sharing[Any, Any, Any]
) -> None:
    with client_on(tmp_path) as client:
        push(client.create_queue("jobs"), *numbers(40))
        slow = Slow(client.ports.catalog.claims)
        catalog: Any = WithRoles(client.ports.catalog, claims=slow)
        ports: Ports = client.ports._replace(catalog=catalog, sharing=sharing)
        client.runtime._state.ports = ports  # type: ignore[union-attr]
        queue = client.queue("jobs")
        popped: dict[int, cassq.Messages] = {}
        poppers = [queue.popper() for _ in range(POPPERS)]

        def pop(number: int) -> None:
            popped[number] = poppers[number].pop(number + 1)

        threads = [threading.Thread(target=pop, args=(number,)) for number in range(POPPERS)]
        threads[0].start()
        assert slow.at_it.wait(30)
        (line,) = (each for each in sharing._lines.values() if each.lock.locked())
        for number in range(1, POPPERS):
            threads[number].start()
            eventually("it waits", lambda number=number: len(line.places) == number)
        slow.go_on.set()
        for thread in threads:
            joined("all have popped", thread)
        assert slow.sizes == [1, POPPERS - 1]
        assert [len(popped[number]) for number in range(POPPERS)] == [1, 2, 3, 4, 5]
        everything = [payload for number in range(POPPERS) for payload in payloads(popped[number])]
        assert everything == numbers(15)
        for number, popper in enumerate(poppers):
            popper.commit(popped[number])
            popper.close()
        with queue.popper() as popper:
            assert payloads(popper.pop(100)) == numbers(25, first=15)


def test_each_gets_what_is_left_in_turn_and_the_last_get_nothing(
    tmp_path: Path, sharing: Sharing[Any, Any, Any]
) -> None:
    with client_on(tmp_path) as client:
        push(client.create_queue("jobs"), *numbers(3))
        slow = Slow(client.ports.catalog.claims)
        catalog: Any = WithRoles(client.ports.catalog, claims=slow)
        client.runtime._state.ports = client.ports._replace(  # type: ignore[union-attr]
            catalog=catalog, sharing=sharing
        )
        queue = client.queue("jobs")
        poppers = [queue.popper() for _ in range(4)]
        counts: dict[int, int] = {}

        def pop(number: int) -> None:
            counts[number] = len(poppers[number].pop(1 if number == 0 else 2))

        threads = [threading.Thread(target=pop, args=(number,)) for number in range(4)]
        threads[0].start()
        assert slow.at_it.wait(30)
        (line,) = (each for each in sharing._lines.values() if each.lock.locked())
        for number in (1, 2, 3):
            threads[number].start()
            eventually("it waits", lambda number=number: len(line.places) == number)
        slow.go_on.set()
        for thread in threads:
            joined("all have popped", thread)
        assert sorted(counts.values()) == [0, 0, 1, 2]
        for popper in poppers:
            popper.close()
