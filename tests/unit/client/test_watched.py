"""Rows as they were a moment ago."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from cassq.client.watched import Watched
from cassq.errors import BackendTimeoutError, QueueNotFoundError
from cassq.model.queues import QueuePolicy
from cassq.model.rows import QueueRow
from tests.integration.deadlines import DEADLINE_SECONDS, joined


def row(version: int) -> QueueRow:
    return QueueRow("q", "jobs", QueuePolicy(), version, 1)


def failing(error: Exception) -> Callable[[], QueueRow]:
    def load() -> QueueRow:
        raise error

    return load


def test_a_row_is_read_when_it_is_refreshed_and_not_when_it_is_asked_for() -> None:
    versions = iter((2, 3))
    watched = Watched(row(1), lambda: row(next(versions)))
    assert [watched().version for _ in range(3)] == [1, 1, 1]
    for version in (2, 3):
        watched.refresh()
        assert [watched().version for _ in range(3)] == [version] * 3


def test_nobody_waits_while_it_is_read() -> None:
    at_it, go_on = threading.Event(), threading.Event()

    def load() -> QueueRow:
        at_it.set()
        assert go_on.wait(DEADLINE_SECONDS)
        return row(2)

    watched = Watched(row(1), load)
    refreshing = threading.Thread(target=watched.refresh)
    refreshing.start()
    assert at_it.wait(DEADLINE_SECONDS)
    assert watched().version == 1
    go_on.set()
    joined("it is read", refreshing)
    assert watched().version == 2


def test_what_this_client_changed_counts_at_once() -> None:
    watched = Watched(row(1), lambda: row(1))
    watched.put(row(2))
    assert watched().version == 2


def test_what_was_read_before_a_change_does_not_undo_it() -> None:
    watched: Watched[QueueRow]
    stored = iter((row(1), row(2)))

    def load() -> Iterator[QueueRow]:
        found = next(stored)
        if found.version == 1:
            watched.put(row(2))  # written after it was read, and before that is known
        yield found

    watched = Watched(row(1), lambda: next(load()))
    watched.refresh()
    assert watched().version == 2
    assert next(stored, None) is None  # it was read again


def test_the_last_known_row_applies_while_it_cannot_be_read() -> None:
    watched = Watched(row(1), failing(BackendTimeoutError("locked")))
    with pytest.raises(BackendTimeoutError):
        watched.refresh()
    assert watched().version == 1


def test_a_row_that_was_deleted_is_an_error_each_time() -> None:
    watched = Watched(row(1), failing(QueueNotFoundError("deleted")))
    assert watched().version == 1
    for ask in (watched.refresh, watched, watched):
        with pytest.raises(QueueNotFoundError):
            ask()
