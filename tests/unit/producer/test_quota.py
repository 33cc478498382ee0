"""Limits: what counts towards a queue's length, and how long a consumed pipe is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cassq.errors import ConfigError, UsageError
from cassq.lifecycle.purging import waiting
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.claims import failure_record, marked_leaving, marked_moving
from cassq.model.queues import QueuePolicy
from cassq.model.rows import Claim, ClaimState, Cursor, PipeRow, PipeState
from cassq.producer.quota import keeps, paused, uncommitted

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE
CURSOR = Cursor("g", "p", ack=Place(10, 0), chain=Place(40, 0))


def a_row(start: int, end: int, state: ClaimState, **changes: object) -> Claim:
    row = Claim("g", "p", start, end, 0, state, due_ms=100, deliveries=1)
    return replace(row, **changes)  # type: ignore[arg-type]


# --- the length ---------------------------------------------------------------------------------

ROWS = [
    a_row(10, 20, HELD, acked=RangeSet([(12, 15)])),
    a_row(20, 30, DONE),
    a_row(30, 39, FREE),
    a_row(39, 40, FREE, failure=failure_record("maxlen", "", "", 5, doomed=True)),
]


def test_uncommitted_messages_count_whichever_popper_holds_them() -> None:
    assert uncommitted(100, CURSOR, ROWS) == 60 + 7 + 9
    assert uncommitted(100, CURSOR, ROWS, doomed=True) == 60 + 7 + 9 + 1


def test_a_group_that_has_not_begun_has_committed_nothing() -> None:
    assert uncommitted(100, None, []) == 100


def test_a_chain_ahead_of_a_stale_end_counts_as_none() -> None:
    assert uncommitted(30, CURSOR, []) == 0


# --- what a purge takes -------------------------------------------------------------------------


@pytest.mark.parametrize(("now_ms", "held"), [(99, False), (100, True), (101, True)])
def test_what_nobody_holds_waits(now_ms: int, held: bool) -> None:
    found = waiting(CURSOR, ROWS, 100, now_ms)
    starts = [part.start.seq for part in found]
    assert starts == ([10] if held else []) + [30, 39, 40]
    assert sum(part.messages for part in found) == 60 + 9 + 1 + (7 if held else 0)


def test_a_row_with_nothing_left_does_not_wait() -> None:
    row = a_row(10, 20, FREE, acked=RangeSet([(10, 20)]))
    assert waiting(CURSOR, [row], 40, 0) == []


# --- what is kept -------------------------------------------------------------------------------

KEPT = QueuePolicy(retain_consumed=60, max_push_time_of_pipe=10)
SEALED = PipeRow("p", "q", PipeState.SEALED, "o", 1_000, 9, end=Place(5, 0))


@pytest.mark.parametrize(
    ("now_ms", "kept"), [(1_000, True), (80_999, True), (81_000, False), (81_001, False)]
)
def test_a_consumed_pipe_is_kept_for_its_time_after_its_newest_push(
    now_ms: int, kept: bool
) -> None:
    """It may have been ready for ten seconds, and open for ten."""
    assert keeps(SEALED, KEPT, now_ms) is kept


def test_without_retention_nothing_is_kept() -> None:
    assert not keeps(SEALED, QueuePolicy(), 1_000)


def test_an_empty_pipe_is_not_kept() -> None:
    assert not keeps(replace(SEALED, end=Place(0, 0)), KEPT, 1_000)
    assert not keeps(replace(SEALED, end=None), KEPT, 1_000)


# --- pausing ------------------------------------------------------------------------------------


def test_only_what_is_named_is_paused() -> None:
    assert paused(True, push=True, pop=True) == {"push_paused": True, "pop_paused": True}
    assert paused(False, push=False, pop=True) == {"pop_paused": False}
    with pytest.raises(UsageError):
        paused(True, push=False, pop=False)


# --- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["message_ttl", "retain_unconsumed", "max_length"])
def test_a_limit_may_be_none(name: str) -> None:
    assert getattr(QueuePolicy(), name) is None
    assert getattr(QueuePolicy(**{name: 5}), name) == 5
    for wrong in (0, -1, "5", True, float("nan")):
        with pytest.raises(ConfigError, match=name):
            QueuePolicy(**{name: wrong})


@pytest.mark.parametrize("name", ["retain_consumed", "dedup_window"])
def test_a_time_of_none_is_zero(name: str) -> None:
    assert getattr(QueuePolicy(**{name: 0}), name) == 0.0
    for wrong in (-0.001, None, "5", True, float("inf")):
        with pytest.raises(ConfigError, match=name):
            QueuePolicy(**{name: wrong})


@pytest.mark.parametrize("value", ["drop", "", None, 1])
def test_overflow_is_one_of_two(value: Any) -> None:
    with pytest.raises(ConfigError, match="overflow must be reject or drop-oldest"):
        QueuePolicy(overflow=value)


@pytest.mark.parametrize("name", ["push_paused", "pop_paused"])
def test_a_pause_is_a_flag(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be True or False"):
        QueuePolicy(**{name: 1})


@pytest.mark.parametrize("mark", ["moving", "leaving"])
@pytest.mark.parametrize("state", [FREE, HELD])
def test_a_purge_leaves_what_is_on_its_way_elsewhere(mark: str, state: ClaimState) -> None:
    """It may have arrived there: then it would be purged here and be there as well."""
    row = a_row(30, 31, state)
    failure = marked_moving(row) if mark == "moving" else marked_leaving(row, "rejected")
    assert waiting(CURSOR, [replace(row, failure=failure)], 40, 1_000) == []
    assert [part.row for part in waiting(CURSOR, [row], 40, 1_000)] == [row]
