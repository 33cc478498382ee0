"""How poppers share a rate, on a catalog that is as slow as a test says."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from cassq.consumer.limits import Limits


class Shared:
    """The catalog and the clock of some poppers. swap_s: how long a conditional write takes, or
    what draws that."""

    def __init__(self, swap_s: float | Callable[[], float]) -> None:
        self.now = 1_000_000.0
        self._swap_s = swap_s
        self._text = ""
        self.catalog = SimpleNamespace(now_ms=lambda: int(self.now * 1000), leases=self)
        self.clock = SimpleNamespace(pause=lambda _seconds: None)
        self.sharing = None

    def shared(self, _name: str) -> str:
        return self._text

    def swap(self, _name: str, old: str, new: str) -> bool:
        self.now += self._swap_s if isinstance(self._swap_s, float) else self._swap_s()
        if self._text != old:
            return False
        self._text = new
        return True


def taken_at(
    rate: str,
    *,
    poppers: int,
    swap_s: float | Callable[[], float],
    task_s: float,
    seconds: float,
    late_s: float = 0.02,
) -> list[list[float]]:
    """When each of some poppers takes messages, one after another. late_s: how late they come at
    most, as the machine is busy."""
    shared: Any = Shared(swap_s)
    rules: Any = SimpleNamespace(concurrency=None, rate=rate)
    found: list[list[float]] = [[] for _ in range(poppers)]
    members = [limits_of(shared, f"popper{at}") for at in range(poppers)]
    next_at = [shared.now] * poppers
    until, rng = shared.now + seconds, random.Random(0)
    while (at := min(range(poppers), key=next_at.__getitem__)) is not None:
        shared.now = max(shared.now, next_at[at])
        if shared.now >= until:
            return found

        def take(_allowed: int, mine: list[float] = found[at]) -> Any:
            mine.append(shared.now)
            return [None]

        got = members[at].claim(1, 0, rules, take)
        waits = task_s if got else max(0.001, members[at].until(1.0))
        next_at[at] = shared.now + waits + rng.uniform(0.0, late_s)
    raise AssertionError("no popper")


@pytest.mark.parametrize(
    ("rate", "swap_s", "task_s", "seconds", "longest"),
    [("1000/h", 0.0, 1.0, 3600.0, 300.0), ("30/s", 0.03, 0.001, 60.0, 3.0)],
)
def test_no_popper_takes_so_many_slots_that_others_wait_for_long(
    rate: str, swap_s: float, task_s: float, seconds: float, longest: float
) -> None:
    taken = taken_at(rate, poppers=5, swap_s=swap_s, task_s=task_s, seconds=seconds)
    gaps = [max(b - a for a, b in pairwise(mine)) for mine in taken]
    assert max(gaps) <= longest
    assert min(map(len, taken)) >= max(map(len, taken)) / 2


def test_a_popper_alone_reserves_ahead_where_that_is_slow() -> None:
    (taken,) = taken_at("30/s", poppers=1, swap_s=0.3, task_s=0.001, seconds=60.0)
    assert len(taken) >= 0.7 * 30 * 60


@pytest.mark.parametrize("poppers", [1, 3])
def test_something_comes_however_slow_the_catalog_and_the_machine_are(poppers: int) -> None:
    draw = random.Random(1).uniform
    taken = taken_at(
        "30/s",
        poppers=poppers,
        swap_s=lambda: draw(0.2, 3.0),
        task_s=0.001,
        seconds=120.0,
        late_s=0.5,
    )
    assert min(map(len, taken)) >= 4
    whole = sorted(at for mine in taken for at in mine)
    assert all(last - first >= 1.0 for first, last in zip(whole, whole[30:], strict=False))


@pytest.mark.parametrize("claimed", [1, 0], ids=["taken", "left"])
def test_what_was_reserved_by_a_wrong_clock_holds_nobody_up(claimed: int) -> None:
    shared: Any = Shared(0.001)
    rules: Any = SimpleNamespace(concurrency=None, rate="30/s")
    wrong, other = (limits_of(shared, name) for name in ("wrong", "other"))
    shared.now += 3600
    wrong.claim(2, 0, rules, lambda allowed: taken(min(claimed, allowed)))
    shared.now -= 3600
    for member in (wrong, other):
        found = 0
        for _ in range(100):
            found += len(member.claim(2, 0, rules, taken))
            shared.now += max(0.001, member.until(0.02))
        assert found > 10


def limits_of(shared: Any, name: str) -> Limits:
    tally: Any = SimpleNamespace(limited=0)
    return Limits(shared, "g", name, tally, lambda: (0, 0), lambda *_: None)


def taken(allowed: int) -> Any:
    return [None] * allowed
