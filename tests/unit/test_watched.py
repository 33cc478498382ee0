"""Rows as they were a moment ago."""

from __future__ import annotations

import threading

import pytest

from cassq.catalog.rows import QueueRow
from cassq.clock import ManualClock
from cassq.queues import QueuePolicy
from cassq.watched import Watched
from tests.integration.deadlines import joined

AGE_MS = 1000


def row(version: int) -> QueueRow:
    return QueueRow("q", "jobs", QueuePolicy(), version, 1)


def test_a_row_is_loaded_again_when_it_is_old() -> None:
    clock, versions = ManualClock(), iter((2, 3))
    watched = Watched(row(1), lambda: row(next(versions)), clock, AGE_MS)
    assert watched().version == 1
    clock.advance(AGE_MS / 1000)
    assert [watched().version for _ in range(2)] == [2, 2]
    watched.forget()
    assert watched().version == 3


def test_while_one_thread_loads_it_others_go_on_with_what_is_known() -> None:
    clock, at_it, go_on = ManualClock(), threading.Event(), threading.Event()

    def load() -> QueueRow:
        at_it.set()
        assert go_on.wait(30)
        return row(2)

    watched = Watched(row(1), load, clock, AGE_MS)
    clock.advance(AGE_MS / 1000)
    loading = threading.Thread(target=watched)
    loading.start()
    assert at_it.wait(30)
    assert watched().version == 1
    go_on.set()
    joined("it is loaded", loading)
    assert watched().version == 2


def test_a_failure_to_load_is_told_each_time() -> None:
    clock = ManualClock()

    def load() -> QueueRow:
        raise LookupError("gone")

    watched = Watched(row(1), load, clock, AGE_MS)
    clock.advance(AGE_MS / 1000)
    for _ in range(2):
        with pytest.raises(LookupError):
            watched()
