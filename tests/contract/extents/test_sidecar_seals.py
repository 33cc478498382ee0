"""Sealing an extent on sidecars: every rule of it, whoever fails, lies, is late or comes twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from cassq.base.clock import ManualClock
from cassq.errors import BackendUnavailableError, PipeSealedError
from cassq.extents.port import ExtentMissingError
from cassq.extents.protocol.messages import Drop, Fenced
from cassq.extents.sidecar.sealing import agreed_end
from cassq.extents.sidecar.store_context import majority
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import append, placement_of
from tests.contract.extents.sealed_sidecars import ACKED, TAIL, pushed, read_from, tail
from tests.contract.extents.test_extents import PIPE, expected
from tests.contract.memory_sidecars import MemorySidecar


@pytest.fixture
def place(tmp_path: Path) -> SidecarPlace:
    """Three sidecars, so that every extent is on all of them."""
    return SidecarPlace(tmp_path, sidecars=3)


# --- the rule ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "replicas", "end"),
    [
        ([], 1, None),
        ([(7, 5)], 1, 7),
        ([(4, 5)], 1, None),
        ([(7, 5)], 2, None),
        ([(7, 5), (8, 7)], 2, 7),
        ([(7, 5)], 3, None),
        ([(7, 5), (5, 5)], 3, 5),
        ([(7, 5), (5, 5), (6, 0)], 3, 5),
        ([(7, 6), (5, 5)], 3, None),  # the second has less than was acknowledged
        ([(7, 6), (5, 5), (6, 6)], 3, 6),
        ([(7, 6), (0, 0), (6, 6)], 3, 6),
        ([(9, 0), (9, 0)], 3, 9),
        ([(9, 0), (9, 0)], 4, None),
        ([(9, 0), (9, 0), (3, 0)], 5, 3),
        ([(0, 0), (0, 0)], 3, 0),
    ],
)
def test_the_end_is_the_smallest_of_a_majority_that_counts(
    answers: list[tuple[int, int]], replicas: int, end: int | None
) -> None:
    assert agreed_end([Fenced(end, acked, False) for end, acked in answers], replicas) == end


def test_a_copy_that_is_not_whole_does_not_count() -> None:
    copy, whole = Fenced(3, 0, True), Fenced(7, 6, False)
    assert agreed_end([whole, copy], 3) is None
    assert agreed_end([whole, copy, whole], 3) == 7
    assert agreed_end([replace(whole, acked=0), whole, replace(copy, acked=8)], 3) is None


# --- every state of every replica -------------------------------------------------------------


def intact(sidecar: MemorySidecar) -> None:
    """It has what was acknowledged."""


def further(sidecar: MemorySidecar) -> None:
    sidecar.serve([tail()])


def away(sidecar: MemorySidecar) -> None:
    sidecar.down = True


def stopped(sidecar: MemorySidecar) -> None:
    sidecar.stopped = True


def lost(sidecar: MemorySidecar) -> None:
    sidecar.lose_directory()


def dropped(sidecar: MemorySidecar) -> None:
    sidecar.serve([Drop([PIPE])])


def damaged(sidecar: MemorySidecar) -> None:
    sidecar.engine.lose(PIPE, 2)


def cut_short(sidecar: MemorySidecar) -> None:
    """It has less than it was told to be acknowledged, and does not know."""
    sidecar.engine.cut(PIPE, 2)
    sidecar.engine.sync()


def set_back(sidecar: MemorySidecar) -> None:
    """It is as it was before, and does not even know what was acknowledged."""
    sidecar.engine.cut(PIPE, 2)
    sidecar.engine.note(PIPE, acked=2, epoch=1)
    sidecar.engine.sync()


def copying(sidecar: MemorySidecar) -> None:
    sidecar.engine.cut(PIPE, 2)
    sidecar.engine.note(PIPE, copying=True)


COUNT = {intact: ACKED, further: TAIL}
GONE = (lost, dropped)
STATES = (intact, further, away, stopped, lost, dropped, damaged, cut_short, set_back, copying)
# Those that were set back may be a majority: if nobody knows better, they are right.
COMBINATIONS = [
    states
    for states in itertools.combinations_with_replacement(STATES, 3)
    if states.count(set_back) < majority(3 - sum(state in GONE for state in states))
    or {intact, further, cut_short} & set(states)
]


@pytest.mark.parametrize(
    "states",
    COMBINATIONS,
    ids=lambda states: " ".join(state.__name__ for state in states),
)
def test_whatever_happened_to_the_replicas_a_seal_is_right_or_refused(
    place: SidecarPlace, clock: ManualClock, states: tuple[Callable[[MemorySidecar], None], ...]
) -> None:
    writer = pushed(place, clock)
    for state, sidecar in zip(states, place.sidecars, strict=True):
        state(sidecar)
    place.beat()
    store = place.open(clock)
    ends = [COUNT[state] for state in states if state in COUNT]
    left = [state for state in states if state not in GONE]
    if len(ends) < majority(len(left)):
        gone = all(state in GONE for state in states)
        with pytest.raises(ExtentMissingError if gone else BackendUnavailableError) as caught:
            store.seal(PIPE)
        assert caught.value.retryable is not gone
        assert placement_of(place).end is None, "it stays unsealed"
        return
    assert store.seal(PIPE).seq == min(ends)
    assert placement_of(place).end == min(ends)
    assert read_from(place, clock, min(ends)) == expected(0, min(ends))
    for state, sidecar in zip(states, place.sidecars, strict=True):
        sidecar.down = sidecar.stopped = False
        sidecar.deliver()
        if state in COUNT:
            replica = sidecar.replica(PIPE)
            assert replica is not None
            assert (replica.end, replica.final) == (min(ends), min(ends)), "the tail was cut"
    with pytest.raises((PipeSealedError, BackendUnavailableError)):
        append(writer, 1)
    assert place.open(clock).seal(PIPE).seq == min(ends)


@pytest.mark.parametrize("behind", range(3))
def test_a_replica_that_was_down_while_the_others_were_sealed_changes_nothing(
    place: SidecarPlace, clock: ManualClock, behind: int
) -> None:
    """It was not fenced, and would take more; what it takes is never acknowledged."""
    writer = pushed(place, clock)
    store = place.open(clock)
    place.network.cut.add(place.sidecars[behind].name)
    end = store.seal(PIPE)
    replica = place.sidecars[behind].replica(PIPE)
    assert replica is not None
    assert not replica.fenced
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    assert replica.end == ACKED + 1, "it took it"
    assert writer.end == end == place.open(clock).seal(PIPE)
    assert read_from(place, clock, ACKED) == expected(0, ACKED)
