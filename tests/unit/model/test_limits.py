"""The limits of a group: whatever poppers do, no more than is allowed in any time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cassq.model import limits
from cassq.model.limits import Permits
from cassq.model.queues import rate_of

RATES = ["1/s", "3/s", "10/s", "500/s", "20000/s", "7/m", "100/h"]


def used_at(rate: str, rng: random.Random, enough: int, poppers: int = 4) -> list[int]:
    """When poppers use the slots of a rate that they reserve, at the worst of times: each of them
    waits, and uses what it has at the beginning, or at the last moment."""
    slots, next_us, now_us = limits.slots_of(rate), 0, 1_000_000_000
    used: list[int] = []
    while len(used) < enough:
        found = limits.reserved(slots, next_us, now_us, rng.randint(1, 5 * slots.most))
        if not found:
            now_us += rng.randint(1, slots.slot_us)
            continue
        next_us = found[-1].next_us
        for share in found:
            at_us = rng.choice([max(now_us, share.begin_us), share.end_us])
            used += [at_us] * rng.randint(0, share.left)
        now_us += rng.choice([0, 0, slots.slot_us * found[0].left // poppers])
    return sorted(used)


@pytest.mark.parametrize("rate", RATES)
def test_in_no_unit_of_time_are_more_used_than_the_rate_allows(rate: str) -> None:
    count, unit_ms = rate_of(rate)
    for seed in range(5):
        used = used_at(rate, random.Random(seed), 3 * count + 100)
        for first, last in zip(used, used[count:], strict=False):
            assert last - first >= unit_ms * 1000


@pytest.mark.parametrize("rate", RATES)
def test_one_popper_that_is_never_late_uses_over_nine_tenths_of_it(rate: str) -> None:
    count, unit_ms = rate_of(rate)
    slots, next_us, now_us = limits.slots_of(rate), 0, 1_000_000_000
    begun_us, used = now_us, 0
    while used < 3 * count:
        found = limits.reserved(slots, next_us, now_us, slots.most)
        if not found:
            now_us += slots.slot_us // 2
            continue
        next_us, now_us = found[-1].next_us, max(now_us, found[-1].begin_us)
        used += sum(share.left for share in found)
    took_us = next_us - begun_us
    assert used / took_us >= 0.92 * count / (unit_ms * 1000)


def test_slots_are_reserved_one_after_the_other() -> None:
    slots = limits.slots_of("500/s")
    (first,) = limits.reserved(slots, 0, 1_000_000, 3)
    (second,) = limits.reserved(slots, first.next_us, 1_000_000, 3)
    assert (first.left, second.left) == (3, 3)
    assert second.begin_us == first.next_us == 1_000_000 + 3 * slots.slot_us


def test_more_slots_than_a_share_has_are_several_shares() -> None:
    slots = limits.slots_of("500/s")
    found = limits.reserved(slots, 0, 1_000_000, 2 * slots.most + 1)
    assert [share.left for share in found] == [slots.most, slots.most, 1]
    ends = [share.next_us for share in found]
    assert [share.begin_us for share in found] == [1_000_000, *ends[:-1]]


def test_nobody_reserves_far_ahead() -> None:
    slots = limits.slots_of("1/m")
    assert not limits.reserved(slots, 64_200_000, 0, 1)
    assert limits.reserved(slots, 64_200_000, 64_000_000, 1)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(0, 30), st.booleans(), st.integers(0, 50)),
        max_size=40,
    ),
    st.integers(1, 20),
)
def test_poppers_together_never_have_more_permits_than_there_are(
    steps: list[tuple[str, int, bool, int]], most: int
) -> None:
    permits: Permits = {}
    now_ms = 0
    for popper, wanted, less, passed_ms in steps:
        now_ms += passed_ms
        permits = limits.permits_of(limits.permits_as_text(permits, "a"), now_ms)
        before = dict(permits)
        if less:
            permits = limits.kept(permits, popper, wanted, now_ms + 100)
        else:
            permits = limits.permitted(permits, popper, wanted, most, now_ms + 100)
        assert sum(count for count, _ in permits.values()) <= most
        others = {name: each for name, each in permits.items() if name != popper}
        assert others == {name: each for name, each in before.items() if name != popper}
        mine = permits.get(popper, (0, 0))[0]
        assert mine <= wanted
        free = most - sum(count for count, _ in before.values())
        assert less or mine == min(wanted, free + before.get(popper, (0, 0))[0])


def test_permits_that_are_over_are_free() -> None:
    text = limits.permits_as_text({"a": (3, 100), "b": (2, 200)}, "a")
    assert limits.permits_of(text, 99) == {"a": (3, 100), "b": (2, 200)}
    assert limits.permits_of(text, 100) == {"b": (2, 200)}
    assert limits.permits_of("", 0) == {}
    assert limits.permits_as_text({}, "a") == ""


def test_the_next_slot_is_read_from_the_shared_text() -> None:
    slots, times = limits.slots_of("5/s"), [0, 1, 1_700_000_000_000_000]
    texts = [limits.next_as_text(each, slots, "a popper") for each in times]
    assert [
        limits.next_us_of(text, slots, each) for text, each in zip(texts, times, strict=True)
    ] == times
    assert limits.next_us_of("", slots, 0) == 0


def test_the_next_slot_of_a_changed_rate_counts_from_the_last_one() -> None:
    hourly, often = limits.slots_of("1/h"), limits.slots_of("100/s")
    last_us = 1_700_000_000_000_000
    text = limits.next_as_text(last_us + hourly.slot_us, hourly, "p")
    assert limits.next_us_of(text, often, last_us) == last_us + often.slot_us
    text = limits.next_as_text(last_us + often.slot_us, often, "p")
    assert limits.next_us_of(text, hourly, last_us) == last_us + hourly.slot_us


@pytest.mark.parametrize("rate", ["1/h", "100/s"])
def test_a_slot_that_only_a_wrong_clock_can_have_reserved_does_not_count(rate: str) -> None:
    slots, now_us = limits.slots_of(rate), 1_700_000_000_000_000
    furthest_us = limits.reserved(slots, now_us + limits.AHEAD_US, now_us, slots.most)[-1].next_us
    text = limits.next_as_text(furthest_us, slots, "p")
    assert limits.next_us_of(text, slots, now_us) == furthest_us
    text = limits.next_as_text(now_us + 3 * 3600 * 1_000_000, slots, "p")
    assert limits.next_us_of(text, slots, now_us) == 0
