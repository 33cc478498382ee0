"""Sharing: one thread does for several what they all want."""

from __future__ import annotations

import threading

import pytest

from cassq.sharing import Sharing
from tests.integration.deadlines import eventually, joined


def test_who_comes_while_somebody_is_at_it_is_served_with_the_others_who_wait() -> None:
    sharing: Sharing[str, int, str] = Sharing()
    served: list[tuple[list[int], str | None]] = []
    at_it, go_on = threading.Event(), threading.Event()

    def serve(wishes: list[int], last: str | None) -> str:
        served.append((wishes, last))
        if wishes == [0]:
            at_it.set()
            assert go_on.wait(30)
        return f"after {wishes}"

    threads = [
        threading.Thread(target=sharing.together, args=("pipe", number, serve))
        for number in range(4)
    ]
    threads[0].start()
    assert at_it.wait(30)
    line = sharing._lines["pipe"]
    for number in (1, 2, 3):
        threads[number].start()
        eventually("it waits", lambda number=number: len(line.places) == number)
    go_on.set()
    for thread in threads:
        joined("all are served", thread)
    assert served == [([0], None), ([1, 2, 3], "after [0]")]


def test_wishes_for_different_things_do_not_wait_for_one_another() -> None:
    sharing: Sharing[str, int, None] = Sharing()
    served: list[int] = []

    def inner(wishes: list[int], _last: None) -> None:
        served.extend(wishes)

    def outer(wishes: list[int], _last: None) -> None:
        sharing.together("another", 2, inner)
        served.extend(wishes)

    sharing.together("one", 1, outer)
    assert served == [2, 1]


def test_an_error_is_told_to_who_did_it_and_nothing_is_left_behind() -> None:
    sharing: Sharing[str, int, str] = Sharing()

    def fail(wishes: list[int], last: str | None) -> str:
        raise ValueError(wishes)

    def serve(wishes: list[int], last: str | None) -> str:
        assert (wishes, last) == ([2], None)
        return "served"

    with pytest.raises(ValueError, match="1"):
        sharing.together("pipe", 1, fail)
    sharing.together("pipe", 2, serve)
