"""Pauses after a refused claim: they grow, but never to what a waiting message would notice."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.cassandra.partition.conditional_writer import REFUSALS_MAX, ConditionalWriter

KEY = ("g", "p")
SECONDS_MAX = 0.25
TIMES = 100  # each pause is a random one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def writer(clock: ManualClock) -> ConditionalWriter:
    """One whose session sends nothing."""
    keyspace = SimpleNamespace(cql=None, ids=None, clock=clock)
    return ConditionalWriter(keyspace)  # type: ignore[arg-type]


def pauses(writer: ConditionalWriter, clock: ManualClock, write_ms: float) -> list[float]:
    """What popper after popper waits that was refused many times, in seconds."""
    known = writer.memory.of(KEY)
    known.write_ms, found = write_ms, []
    for _ in range(TIMES):
        known.refused = REFUSALS_MAX
        before_ms = clock.boot_ms()
        writer.back_off(known)
        found.append((clock.boot_ms() - before_ms) / 1000)
    return found


def test_nobody_stands_back_for_long_however_slow_the_writes_are(
    writer: ConditionalWriter, clock: ManualClock
) -> None:
    assert 0 < max(pauses(writer, clock, write_ms=5_000)) <= SECONDS_MAX


def test_where_writes_are_quick_the_pauses_are_shorter(
    writer: ConditionalWriter, clock: ManualClock
) -> None:
    assert 0 < max(pauses(writer, clock, write_ms=2)) <= REFUSALS_MAX * 0.002
