"""Merging dead letters while processes die: after every single thing that is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cassq
from tests.faults.actors import Act
from tests.integration.dead_letters.test_merging import DEAD, letters_of_jobs
from tests.integration.stage import Connect, LaterClock, client_on, drain, numbers, payloads, reap

LETTERS = 12
STEPS_MAX = 60


def deaths_of(act: Act, tmp_path: Path, set_up: Any, where: dict[str, Any]) -> Iterator[Path]:
    """A directory for each step after which a merge can die, left by one that did."""
    for step in range(1, STEPS_MAX):
        directory = tmp_path / str(step)
        set_up(directory)
        actor = act("merge_and_die", str(directory), step, where)
        actor.join()
        yield directory
        if actor.reports("survived"):
            assert step > 2, "the merge was never interrupted"
            return
    pytest.fail(f"a merge has more than {STEPS_MAX} steps")


def begin(directory: Path, *, claimed: bool) -> None:
    """Dead letters in `directory`; claimed: one pipe of theirs was claimed from."""
    with cassq.connect(f"file://{directory}") as client:
        client.create_queue("jobs", max_deliveries=1, sick_check=False)
        letters_of_jobs(client, LETTERS)
        if claimed:
            popper = client.queue(DEAD).popper()
            popper.release(popper.pop(LETTERS - 2))


MERGES = {
    "whole": ({}, False),
    "copied": ({}, True),
    "filtered": ({"headers": {"odd": "1"}}, False),
    "filtered, claimed": ({"headers": {"odd": "1"}}, True),
}


@pytest.mark.parametrize(("where", "claimed"), MERGES.values(), ids=MERGES)
def test_a_merge_that_died_anywhere_is_continued_and_duplicates_nothing(
    act: Act, tmp_path: Path, where: dict[str, Any], claimed: bool
) -> None:
    for directory in deaths_of(act, tmp_path, lambda d: begin(d, claimed=claimed), where):
        with client_on(directory, clock=LaterClock()) as client:
            reap(client)
            outcome = client.queue("jobs").dead_letters().merge(**where)
            assert outcome.complete
            assert outcome.held == 0
            back = payloads(drain(client.queue("jobs").popper()))
            left = payloads(drain(client.queue(DEAD).popper()))
            meant = [p for p in numbers(LETTERS) if not where or int(p) % 2]
            assert sorted(back) == sorted(meant), directory
            assert Counter(back + left) == Counter(numbers(LETTERS)), directory
            assert client.queue("jobs").audit().findings == []
            assert client.queue(DEAD).audit().findings == []
            reap(client)
            assert client.queue(DEAD).audit().findings == []


@pytest.mark.parametrize(("where", "claimed"), MERGES.values(), ids=MERGES)
def test_a_consumer_of_dead_letters_gets_none_that_an_unfinished_merge_returned(
    act: Act, tmp_path: Path, where: dict[str, Any], claimed: bool
) -> None:
    for directory in deaths_of(act, tmp_path, lambda d: begin(d, claimed=claimed), where):
        with client_on(directory, clock=LaterClock()) as client:
            left = payloads(drain(client.queue(DEAD).popper()))
            reap(client)
            back = payloads(drain(client.queue("jobs").popper()))
            assert Counter(back + left) == Counter(numbers(LETTERS)), directory
            assert client.queue("jobs").audit().findings == []
            assert client.queue(DEAD).audit().findings == []


def test_of_merges_side_by_side_each_letter_comes_back_once(
    act: Act, tmp_path: Path, connect: Connect, directory: Path
) -> None:
    client = connect()
    client.create_queue("jobs", max_deliveries=1, sick_check=False)
    letters_of_jobs(client, 500)
    actors = [act("merge_and_die", str(directory), 0, {"text": str(n)}) for n in range(4)]
    for actor in actors:
        assert actor.join() == 0
    client.queue("jobs").dead_letters().merge()
    back = payloads(drain(client.queue("jobs").popper()))
    assert Counter(back) == Counter(numbers(500))
    assert client.queue("jobs").audit().findings == []
    assert client.queue(DEAD).audit().findings == []
