"""Rows as they were a moment ago."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator

import pytest

from cassq.client.watched import Watched, WatchedQueue
from cassq.errors import BackendTimeoutError, GroupNotFoundError, QueueNotFoundError
from cassq.model.queues import GroupPolicy, QueuePolicy
from cassq.model.rows import GroupRow, QueueRow
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


# --- a queue, and its groups that have poppers --------------------------------------------------


def group(seconds: float, name: str = "default") -> GroupRow:
    return GroupRow(f"id-{name}", "q", name, GroupPolicy(claim_timeout=seconds), 1)


class Stored:
    """What a catalog holds, and how it was read. meanwhile: called after each read of both."""

    def __init__(self) -> None:
        self.queue = row(1)
        self.groups = [group(10), group(20, "audit")]
        self.reads: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def load(self) -> QueueRow:
        self.reads.append("queue")
        return self.queue

    def both(self) -> tuple[QueueRow, list[GroupRow]]:
        self.reads.append("both")
        found = self.queue, list(self.groups)
        self.meanwhile()
        return found


def watched_queue(stored: Stored) -> WatchedQueue:
    return WatchedQueue(stored.queue, stored.load, stored.both, operator.call)


def test_one_read_serves_a_queue_and_all_of_its_groups() -> None:
    stored = Stored()
    watched = watched_queue(stored)
    default, audit = (watched.group(each) for each in stored.groups)
    stored.queue, stored.groups = row(2), [group(11), group(21, "audit")]
    watched.refresh()
    assert stored.reads == ["both"]
    assert watched.row().version == 2
    assert (default().policy.claim_timeout, audit().policy.claim_timeout) == (11, 21)


def test_groups_without_a_popper_are_not_read() -> None:
    stored = Stored()
    watched_queue(stored).refresh()
    assert stored.reads == ["queue"]


def test_a_group_that_is_gone_is_an_error_for_its_poppers_alone() -> None:
    stored = Stored()
    watched = watched_queue(stored)
    default, audit = (watched.group(each) for each in stored.groups)
    stored.groups = stored.groups[:1]
    watched.refresh()
    assert default().policy.claim_timeout == 10
    with pytest.raises(GroupNotFoundError, match="audit.* was deleted"):
        audit()


def test_a_group_of_the_same_name_is_not_the_same_group() -> None:
    stored = Stored()
    watched = watched_queue(stored)
    default = watched.group(stored.groups[0])
    stored.groups = [GroupRow("another", "q", "default", GroupPolicy(), 2)]
    watched.refresh()
    with pytest.raises(GroupNotFoundError):
        default()


def test_a_group_that_this_client_changed_while_it_was_read_keeps_the_change() -> None:
    stored = Stored()
    watched = watched_queue(stored)
    default = watched.group(stored.groups[0])

    def change() -> None:
        stored.meanwhile = lambda: None
        stored.groups[0] = group(30)  # written after it was read, and before that is known
        watched.use(stored.groups[0])

    stored.meanwhile = change
    watched.refresh()
    assert default().policy.claim_timeout == 30
    assert stored.reads == ["both", "both"]


def test_a_deleted_queue_is_read_no_more_for_an_hour() -> None:
    stored = Stored()
    watched = watched_queue(stored)
    watched.group(stored.groups[0])

    def gone() -> None:
        raise QueueNotFoundError("deleted")

    stored.meanwhile = gone
    assert watched.refresh() == 3600.0
    with pytest.raises(QueueNotFoundError):
        watched.row()
