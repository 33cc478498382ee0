"""How many pipes are desired, for loads just below, at and above each threshold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from cassq.model.queues import QueuePolicy
from cassq.model.rows import Member, PipeRow, PipeState, QueueRow
from cassq.model.scaling import (
    LEASES_KEPT,
    PIPE_MESSAGES_PER_SECOND,
    QueueLoad,
    by_key_lane,
    desired_pipes,
    key_lane_of,
    key_lane_of_pipe,
    next_desired,
    owner_of,
    pusher_of,
    share_of,
)
from cassq.reaper.scale import Busy, PresentPoppers, load_of, plan

POLICY = QueuePolicy(max_open_pipes=6, max_pop_width=8)
FULL = PIPE_MESSAGES_PER_SECOND
NOW_MS = 1_000_000
KEPT_MS = round(LEASES_KEPT * POLICY.lease * 1000)


def a_queue(desired: int = 1, desired_ms: int = NOW_MS, **policy: object) -> QueueRow:
    return QueueRow(
        "q", "mail", replace(POLICY, **policy), 1, 1, desired_pipes=desired, desired_ms=desired_ms
    )


def a_pipe(owner: str, rate: int = 0, **changes: object) -> PipeRow:
    row = PipeRow("p", "q", PipeState.OPEN, owner, created_ms=0, lease_ms=9, rate=rate)
    return replace(row, **changes)


# --- what a load asks for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "desired"),
    [(0, 1), (FULL, 1), (FULL + 1, 2), (3 * FULL, 3), (3 * FULL + 1, 4), (100 * FULL, 6)],
)
def test_pipes_follow_throughput_up_to_the_policy_s_most(rate: int, desired: int) -> None:
    assert desired_pipes(QueueLoad(rate, poppers=20), POLICY) == desired


@pytest.mark.parametrize(
    ("busy", "idle", "desired"), [(0, 0, 1), (1, 0, 1), (1, 1, 2), (1, 3, 4), (4, 0, 4), (9, 9, 6)]
)
def test_pipes_follow_the_poppers_that_need_one_each(busy: int, idle: int, desired: int) -> None:
    assert desired_pipes(QueueLoad(1, 20, busy, idle), POLICY) == desired


def test_there_are_no_more_pipes_than_poppers_or_than_a_popper_considers() -> None:
    load = QueueLoad(100 * FULL, poppers=3)
    assert desired_pipes(load, POLICY) == 3
    assert desired_pipes(load._replace(poppers=1), POLICY) == 1, "one keeps its order"
    assert desired_pipes(load._replace(poppers=0), POLICY) == 1
    assert desired_pipes(load, replace(POLICY, max_pop_width=2)) == 2


def test_there_are_never_fewer_than_the_policy_s_least() -> None:
    assert desired_pipes(QueueLoad(), replace(POLICY, min_open_pipes=4)) == 4
    assert desired_pipes(QueueLoad(0, 1), replace(POLICY, min_open_pipes=4, max_pop_width=1)) == 4


def test_a_strict_queue_has_one() -> None:
    strict = QueuePolicy(consistency="cp", min_open_pipes=3)
    assert desired_pipes(QueueLoad(100 * FULL, 20, 20, 20), strict) == 1
    assert share_of(replace(a_queue(4), policy=strict), [], "me") == 1


# --- up at once, down later -------------------------------------------------------------------


def test_more_are_desired_at_once() -> None:
    assert next_desired(a_queue(2, NOW_MS), 5, NOW_MS) == 5


@pytest.mark.parametrize(
    ("age_ms", "desired"), [(KEPT_MS - 1, None), (KEPT_MS, 2), (KEPT_MS + 1, 2)]
)
def test_fewer_are_desired_when_they_were_not_needed_for_a_while(
    age_ms: int, desired: int | None
) -> None:
    assert next_desired(a_queue(5, NOW_MS - age_ms), 2, NOW_MS) == desired


def test_a_number_that_still_holds_is_renewed_now_and_then() -> None:
    assert next_desired(a_queue(5, NOW_MS - KEPT_MS // 4 + 1), 5, NOW_MS) is None
    assert next_desired(a_queue(5, NOW_MS - KEPT_MS // 4), 5, NOW_MS) == 5


def test_the_least_there_may_be_needs_no_number() -> None:
    assert next_desired(a_queue(1, 0), 1, NOW_MS) is None
    assert next_desired(a_queue(1, 0, min_open_pipes=3), 3, NOW_MS) is None
    assert next_desired(a_queue(3, 0, min_open_pipes=3), 3, NOW_MS) is None


# --- what a load is ---------------------------------------------------------------------------


def members(holding: int, waiting: int) -> list[Member]:
    return [Member("g", str(n), NOW_MS, n >= holding) for n in range(holding + waiting)]


def test_a_load_is_made_of_all_pipes_and_of_the_groups_that_need_most() -> None:
    crowds = [
        PresentPoppers(False, members(1, 9), waits=True),
        PresentPoppers(True, members(2, 1), waits=True),
        PresentPoppers(True, members(1, 5)),
    ]
    busy = Busy(a_queue(), [a_pipe("a", 10), a_pipe("b", 5)], crowds)
    assert load_of(busy) == QueueLoad(rate=15, poppers=10, busy=2, idle=1)
    urgent = busy._replace(pipes=[*busy.pipes, a_pipe("a", 99, priority=3)])
    assert load_of(urgent) == load_of(busy), "those are not pushed side by side"


def test_poppers_are_idle_only_while_messages_wait() -> None:
    busy = Busy(a_queue(), [], [PresentPoppers(True, members(1, 3), waits=False)])
    assert load_of(busy) == QueueLoad(0, poppers=4, busy=1, idle=0)
    assert load_of(Busy(a_queue(), [], [])) == QueueLoad()


def test_a_plan_names_the_desired_number() -> None:
    crowd = PresentPoppers(True, members(1, 3), waits=True)
    (action,) = plan([Busy(a_queue(), [a_pipe("a", 1)], [crowd])], NOW_MS)
    assert (action.verb, action.subject, action.queue) == ("scale", "4 open pipes", "mail")
    assert plan([Busy(a_queue(4), [], [crowd])], NOW_MS) == []


# --- whose they are ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("desired", "owners", "shares"),
    [
        (1, "a", [1]),
        (5, "a", [5]),
        (5, "ab", [3, 2]),
        (6, "abc", [2, 2, 2]),
        (2, "abcd", [1, 1, 1, 1]),
    ],
)
def test_pushers_share_the_desired_pipes(desired: int, owners: str, shares: list[int]) -> None:
    pipes = [a_pipe(owner) for owner in owners for _ in range(2)]
    assert [share_of(a_queue(desired), pipes, owner) for owner in owners] == shares


def test_a_pusher_that_has_no_pipe_yet_counts_itself() -> None:
    assert share_of(a_queue(4), [a_pipe("a")], "me") == 2
    assert share_of(a_queue(4), [], "me") == 4


def test_timer_pipes_and_those_of_one_group_or_a_priority_do_not_count() -> None:
    others = [a_pipe("timer", timer_ms=5), a_pipe("group", group_id="g")]
    others.append(a_pipe("urgent", priority=9))
    assert share_of(a_queue(4), others, "me") == 4


def test_a_pusher_keeps_to_the_policy_whatever_is_desired() -> None:
    assert share_of(a_queue(1, min_open_pipes=3), [], "me") == 3
    assert share_of(a_queue(9, max_open_pipes=2), [], "me") == 2


# --- key lanes ----------------------------------------------------------------------------------


def test_a_key_always_has_the_same_lane() -> None:
    """What is in the pipes of a queue was pushed by these numbers."""
    lanes = {key: key_lane_of(key, 8) for key in (b"", b"a", b"user 7", b"\xff" * 40)}
    assert lanes == {b"": 2, b"a": 7, b"user 7": 6, b"\xff" * 40: 0}
    assert {key_lane_of(key, 1) for key in lanes} == {0}


def test_keys_are_spread_over_the_lanes() -> None:
    counts = Counter(key_lane_of(b"%d" % n, 16) for n in range(16_000))
    assert min(counts.values()) > 800
    assert max(counts.values()) < 1200


@pytest.mark.parametrize("number", range(6))
def test_a_pipe_s_lane_is_in_its_owner_s_name(number: int) -> None:
    owner = owner_of("a.1", number)
    assert key_lane_of_pipe(owner, 4) == number % 4
    assert pusher_of(owner) == "a.1"


def test_a_pipe_without_an_owner_is_in_the_first_lane() -> None:
    assert key_lane_of_pipe("", 4) == 0


def test_messages_are_apart_by_the_lanes_of_their_keys() -> None:
    keys = [b"a", None, b"user 7", b"a", None]
    assert by_key_lane(keys, 5, 8, turn=11) == {7: [0, 3], 3: [1, 4], 6: [2]}
    assert by_key_lane(None, 3, 8, turn=11) == {3: range(3)}
    assert by_key_lane(keys, 5, 1, turn=11) == {0: range(5)}
