"""The finished tasks of a chord's header: each is counted once, whatever happens to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cassq.base.clock import SystemClock
from cassq.catalog.result_port import Results
from cassq.catalog.sqlite.result_tables import SqliteResults
from cassq.celery.members import Members
from tests.integration.deadlines import in_threads


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    found = SqliteResults(tmp_path / "results.sqlite", SystemClock())
    yield found
    found.file.close()


def test_a_member_that_comes_again_keeps_its_place(results: Results) -> None:
    members = Members(results, "chord", 60)
    assert [members.join(each) for each in "abca"] == [1, 2, 3, 1]
    assert members.join("d") == 4


def test_a_member_that_was_killed_before_it_took_its_place_takes_it_later(
    results: Results,
) -> None:
    members = Members(results, "chord", 60)
    members.join("a")
    results.put("chord.of.b", b"2", 60)  # it noted the place that it wanted, and died
    assert members.join("c") == 2
    assert members.join("b") == 3


def test_a_member_that_was_killed_after_it_took_its_place_finds_itself(results: Results) -> None:
    members = Members(results, "chord", 60)
    results.put("chord.of.a", b"1", 60)
    results.put_new("chord.1", b"a", 60)
    assert members.join("b") == 2
    assert members.join("a") == 1


def test_members_that_join_at_once_get_all_places(results: Results) -> None:
    places: list[int] = []
    lock = threading.Lock()

    def join(number: int) -> None:
        members = Members(results, "chord", 60)
        for each in range(10):
            place = members.join(f"{number}-{each}")
            with lock:
                places.append(place)

    in_threads(4, join)
    assert sorted(places) == list(range(1, 41))


def test_the_end_is_noted(results: Results) -> None:
    assert not Members(results, "chord", 60).is_over()
    Members(results, "chord", 60).end()
    assert Members(results, "chord", 60).is_over()
