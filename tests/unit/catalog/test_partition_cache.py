"""What is cached of a partition of claims, while other threads change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from cassq.catalog.cassandra.partition.partition_cache import PartitionCache
from cassq.message.frames import Place
from cassq.model.rows import Claim, ClaimState, Cursor

KEY = ("g", "p")
CURSOR = Cursor(*KEY, ack=Place(0, 0), chain=Place(30, 300))


class Restless:
    """Stands for a claim. meanwhile: called each time that it is looked at."""

    due_ms = 50

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    @property
    def state(self) -> ClaimState:
        self._meanwhile()
        return ClaimState.HELD


def a_claim(start: int, due_ms: int) -> Claim:
    return Claim(*KEY, start, start + 5, 10 * start, ClaimState.HELD, due_ms, deliveries=1)


def test_the_first_due_time_is_that_of_the_open_claims() -> None:
    cache = PartitionCache(KEY)
    assert cache.due_ms is None
    cache.load(CURSOR, [a_claim(0, 30), a_claim(5, 20)], 1)
    assert cache.due_ms == 20
    cache.change(CURSOR, [5], [])
    assert cache.due_ms == 30
    cache.forget()
    assert cache.due_ms is None


def test_a_write_while_the_first_due_time_is_sought_is_not_missed() -> None:
    cache = PartitionCache(KEY)
    cache.load(CURSOR, [a_claim(0, 30)], 1)
    restless = Restless(lambda: cache.change(CURSOR, [], [a_claim(5, 10)]))
    cache.rows[0] = cast(Claim, restless)
    assert cache.due_ms in {10, 50}  # as before the write, or as after it
    assert cache.due_ms == 10


def test_the_first_due_time_is_sought_once_for_each_change() -> None:
    cache = PartitionCache(KEY)
    sought: list[int] = []
    cache.load(CURSOR, [a_claim(0, 30)], 1)
    cache.rows[0] = cast(Claim, Restless(lambda: sought.append(1)))
    for _ in range(3):
        assert cache.due_ms == 50
    assert sought == [1]
