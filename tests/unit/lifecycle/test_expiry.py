"""What has expired, from times just before, at and after each threshold."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cassq.extents.port import Slice
from cassq.lifecycle.expiry import older, plan_expiry, split
from cassq.lifecycle.moves import removals
from cassq.message.frames import Extras, decode, encode
from cassq.message.ranges import RangeSet
from cassq.model.queues import QueuePolicy
from cassq.model.rows import Claim, ClaimState, PipeRow, PipeState, Reason

OFFSET_MS = -500  # catalog time is so much less than wall time


def a_slice(
    times_ms: int | Sequence[int], dues_ms: int | Sequence[int] | None = None, base_seq: int = 10
) -> Slice:
    """A frame of five messages, but for the first and the last."""
    extras = Extras(times_ms, dues_ms=dues_ms)
    header, body = encode(base_seq, [b"x"] * 5, extras)
    return Slice(decode(header + body), 1, 4)


@pytest.mark.parametrize(
    ("ttl", "retain", "limit_ms"),
    [(None, None, None), (2.5, None, 2500), (None, 3, 3000), (2, 3, 2000), (4, 3, 3000)],
)
def test_the_shorter_limit_holds(
    ttl: float | None, retain: float | None, limit_ms: int | None
) -> None:
    assert QueuePolicy(message_ttl=ttl, retain_unconsumed=retain).age_limit_ms == limit_ms


@pytest.mark.parametrize(
    ("before_ms", "old"), [(499, []), (500, [11, 12, 13]), (501, [11, 12, 13])]
)
def test_a_frame_of_one_time_is_old_as_a_whole(before_ms: int, old: list[int]) -> None:
    assert list(older(a_slice(1000), before_ms, 0, OFFSET_MS)) == old


def test_messages_of_many_times_are_old_one_by_one() -> None:
    piece = a_slice([0, 1000, 3000, 1200, 0])
    assert list(older(piece, 700, 0, OFFSET_MS)) == [11, 13]


@pytest.mark.parametrize(("before_ms", "old"), [(799, 0), (800, 3)])
def test_no_message_is_older_than_its_pipe(before_ms: int, old: int) -> None:
    assert len(older(a_slice(1000), before_ms, 800, OFFSET_MS)) == old


def test_the_age_of_a_delayed_message_is_that_of_its_due_time() -> None:
    assert list(older(a_slice(0, 900), 899, 0, OFFSET_MS)) == []
    assert list(older(a_slice(0, 900), 900, 5000, OFFSET_MS)) == [11, 12, 13]
    assert list(older(a_slice(0, [0, 5, 901, 900, 0]), 900, 0, OFFSET_MS)) == [11, 13]


def seqs(slices: list[Slice]) -> list[int]:
    return [s for f, a, b in slices for s in range(f.base_seq + a, f.base_seq + b)]


@pytest.mark.parametrize(
    ("old", "head", "live"),
    [
        ([], [], [11, 12, 13, 21, 22, 23]),
        ([11, 12, 13, 21, 22, 23], [11, 12, 13, 21, 22, 23], []),
        ([11, 12, 13, 21], [11, 12, 13, 21], [22, 23]),
        ([11, 13, 23], [11], [12]),
        ([21], [], [11, 12, 13]),
        ([12], [], [11]),
    ],
)
def test_what_is_read_is_split_into_the_old_in_front_and_the_live_behind(
    old: list[int], head: list[int], live: list[int]
) -> None:
    slices = [a_slice(0, base_seq=10), a_slice(0, base_seq=20)]
    found = split(slices, RangeSet.of(old))
    assert [seqs(part) for part in found] == [head, live]


def test_each_range_is_a_fact_of_its_own() -> None:
    row = Claim("g", "p", 0, 9, 0, ClaimState.FREE, 0, 0)
    facts = removals(row, RangeSet.of([1, 2, 5]), Reason.EXPIRED, 9)
    assert [(f.start, f.end, f.reason, f.at_ms) for f in facts] == [
        (1, 3, "expired", 9),
        (5, 6, "expired", 9),
    ]


def a_pipe(pipe_id: str, created_ms: int, **changes: object) -> PipeRow:
    return PipeRow(pipe_id, "q", PipeState.SEALED, "o", created_ms, 9, **changes)  # type: ignore[arg-type]


def test_only_pipes_that_are_old_enough_are_looked_into() -> None:
    pipes = [
        a_pipe("young", 101),
        a_pipe("old", 100),
        a_pipe("for a", 5, group_id="a"),
        a_pipe("due later", 5, timer_ms=101),
        a_pipe("due", 5, timer_ms=100),
    ]
    planned = [(group, pipe.id) for group, pipe in plan_expiry(pipes, ["a", "b"], 100)]
    assert planned == [
        ("a", "old"), ("b", "old"), ("a", "for a"), ("a", "due"), ("b", "due"),
    ]  # fmt: skip
