"""How poppers share a rate, on a catalog that is as slow as a test says."""

from __future__ import annotations

import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from cassq.consumer.limits import Limits


class Shared:
    """The catalog and the clock of some poppers. swap_s: how long a conditional write takes."""

    def __init__(self, swap_s: float) -> None:
        self.now = 1_000_000.0
        self._swap_s = swap_s
        self._text = ""
        self.catalog = SimpleNamespace(now_ms=lambda: int(self.now * 1000), leases=self)
        self.clock = SimpleNamespace(pause=lambda _seconds: None)
        self.sharing = None

    def shared(self, _name: str) -> str:
        return self._text

    def swap(self, _name: str, old: str, new: str) -> bool:
        self.now += self._swap_s
        if self._text != old:
            return False
        self._text = new
        return True


def taken_at(
    rate: str, *, poppers: int, swap_s: float, task_s: float, seconds: float
) -> list[list[float]]:
    """When each of some poppers takes messages, one after another."""
    shared: Any = Shared(swap_s)
    rules: Any = SimpleNamespace(concurrency=None, rate=rate)
    tally: Any = SimpleNamespace(limited=0)
    found: list[list[float]] = [[] for _ in range(poppers)]
    members = [
        Limits(shared, "g", f"popper{at}", tally, lambda: (0, 0), lambda *_: None)
        for at in range(poppers)
    ]
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
        next_at[at] = shared.now + waits + rng.uniform(0.0, 0.02)
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
