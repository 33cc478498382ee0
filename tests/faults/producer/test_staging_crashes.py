"""Writes of staged pipes while processes die: after every single thing that is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import cassq
from cassq.producer.staging import DRIVER_LEASE_MS
from tests.faults.actors import Act
from tests.integration.stage import LaterClock, client_on, drain, extents, payloads, reap

WRITTEN = Counter([b"0:0", b"0:1", b"1:0", b"1:1"])
STEPS_MAX = 60


def deaths_of(act: Act, tmp_path: Path) -> Iterator[Path]:
    """A directory for each step after which a write can die, left by one that did."""
    for step in range(1, STEPS_MAX):
        directory = tmp_path / str(step)
        with cassq.connect(f"file://{directory}") as client:
            client.create_queue("jobs")
        actor = act("write_and_die", str(directory), step, "d1")
        actor.join()
        yield directory
        if actor.reports("survived"):
            assert step > 10, "the write was never interrupted"
            return
    pytest.fail(f"a write has more than {STEPS_MAX} steps")


@pytest.mark.waits(reason="leases of dead writers run out")
def test_a_write_that_died_anywhere_was_published_wholly_or_not_at_all(
    act: Act, tmp_path: Path
) -> None:
    found = set()
    for directory in deaths_of(act, tmp_path):
        with client_on(directory, clock=LaterClock()) as client:
            got = Counter(payloads(drain(client.queue("jobs").popper())))
            assert got in (Counter(), WRITTEN), directory
            found.add(bool(got))
            assert client.queue("jobs").audit().findings == []
    assert found == {False, True}


@pytest.mark.waits(reason="leases of dead writers run out")
def test_a_write_that_died_anywhere_and_is_started_again_is_there_once(
    act: Act, tmp_path: Path
) -> None:
    for directory in deaths_of(act, tmp_path):
        again = act("write_and_die", str(directory), 0, "d2")
        assert again.join() == 0
        with client_on(directory, clock=LaterClock()) as client:
            assert Counter(payloads(drain(client.queue("jobs").popper()))) == WRITTEN, directory
            reap(client)
            assert extents(client) == [], directory
            assert client.queue("jobs").audit().findings == []


@pytest.mark.waits(reason="leases of dead writers run out")
def test_of_a_write_that_died_anywhere_nothing_is_left_after_the_lease(
    act: Act, tmp_path: Path
) -> None:
    for directory in deaths_of(act, tmp_path):
        clock = LaterClock()
        with client_on(directory, clock=clock) as client:
            drain(client.queue("jobs").popper())
            reap(client)
            clock.later_ms += DRIVER_LEASE_MS
            reap(client)
            reap(client)
            assert client.ports.catalog.writes.unfinished() == []
            assert extents(client) == [], directory
