"""Where the replicas of a new extent come to, and what becomes of it when sidecars are away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars
from cassq.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    StorageFullError,
)
from cassq.extents.protocol.messages import Open
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.opening import AHEAD_SECONDS, OPEN_LAG, OPEN_MS_MAX
from cassq.model.sidecar_rows import Placement, SidecarRow, SidecarState
from tests.catalog_parts import put_part
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import (
    append,
    names_of,
    others,
    place,
    placement_of,
    seconds_of,
    sidecars_of,
    store,
)
from tests.contract.extents.test_extents import OTHER, PIPE
from tests.contract.memory_sidecars import MemorySidecar
from tests.simulation.worlds.memory_engine import LEASE_MS

__all__ = ["place", "store"]


def test_a_new_extent_is_on_as_many_sidecars_as_it_should_be(
    place: SidecarPlace, store: SidecarStore
) -> None:
    store.create(PIPE, "/team/q", strict=True)
    found = placement_of(place)
    assert (found.wanted, len(names_of(found)), found.end) == (3, 3, None)
    assert (found.queue_name, found.strict) == ("/team/q", True)
    for sidecar in sidecars_of(place):
        replica = sidecar.replica(PIPE)
        assert replica is not None
        assert (replica.queue_name, replica.strict, replica.epoch) == ("/team/q", True, 1)
    assert all(sidecar.replica(PIPE) is None for sidecar in others(place))


def test_the_placement_is_recorded_when_the_replicas_are_there(
    place: SidecarPlace, clock: ManualClock, tmp_path: Path
) -> None:
    there: list[int] = []

    class Looks(SqliteSidecars):
        def add_placement(self, placement: Placement) -> bool:
            there.append(sum(s.replica(PIPE) is not None for s in place.sidecars))
            return super().add_placement(placement)

    put_part(place.catalog, Looks)
    place.open(clock).create(PIPE, "q")
    assert there == [3]


@pytest.mark.parametrize("dead", [1, 2])
def test_sidecars_that_are_gone_are_passed_over(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock, dead: int
) -> None:
    for sidecar in place.sidecars[:dead]:
        sidecar.down = True
    for number in range(8):
        assert seconds_of(clock, partial(store.create, f"{number:024x}", "q")) < 0.1
        found = placement_of(place, f"{number:024x}")
        assert len(names_of(found)) == 3
        assert names_of(found).isdisjoint(s.name for s in place.sidecars[:dead])


def test_a_sidecar_that_is_stopped_is_waited_for_once(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    place.sidecars[0].stopped = True
    took = [seconds_of(clock, partial(store.create, f"{n:024x}", "q")) for n in range(12)]
    assert max(took) == pytest.approx(OPEN_LAG)
    assert len([seconds for seconds in took if seconds > 0]) == 1
    for number in range(12):
        assert len(names_of(placement_of(place, f"{number:024x}"))) == 3


def test_an_extent_that_no_push_needs_yet_waits_for_the_slow_third_replica(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = SidecarPlace(tmp_path, sidecars=3)
    store = place.open(clock)
    place.sidecars[2].slow = 4 * OPEN_LAG
    assert seconds_of(clock, partial(store.create, PIPE, "q")) == pytest.approx(OPEN_LAG)
    assert len(names_of(placement_of(place))) == 2
    assert store.create_ahead(OTHER, "q").missing == 0
    assert len(names_of(placement_of(place, OTHER))) == 3
    place.sidecars[2].slow = 2 * AHEAD_SECONDS
    took = seconds_of(clock, partial(store.create_ahead, f"{7:024x}", "q"))
    assert took <= OPEN_LAG + AHEAD_SECONDS, "but not for ever"
    assert len(names_of(placement_of(place, f"{7:024x}"))) == 2


def test_no_sidecar_has_two_replicas_of_an_extent(tmp_path: Path, clock: ManualClock) -> None:
    """Though what it reports changes while a slow one is waited for."""
    reads: list[int] = []
    recorded: list[Placement] = []

    class Busy(SqliteSidecars):
        def listed(self) -> list[SidecarRow]:
            reads.append(len(reads))
            return [replace(row, load=len(reads)) for row in super().listed()]

        def add_placement(self, placement: Placement) -> bool:
            recorded.append(placement)
            return super().add_placement(placement)

    place = SidecarPlace(tmp_path, sidecars=3)
    put_part(place.catalog, Busy)
    place.sidecars[2].slow = 2 * AHEAD_SECONDS
    place.open(clock).create_ahead(PIPE, "q")
    assert len(reads) > 1
    names = sorted(each.sidecar for each in recorded[0].replicas)
    assert names == sorted(sidecar.name for sidecar in place.sidecars[:2])


def test_an_extent_that_no_push_needs_yet_is_on_another_sidecar_than_a_slow_one(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    place.sidecars[0].stopped = True
    for number in range(8):
        took = seconds_of(clock, partial(store.create_ahead, f"{number:024x}", "q"))
        assert took <= OPEN_LAG + 0.001
        assert len(names_of(placement_of(place, f"{number:024x}"))) == 3


def test_a_sidecar_that_failed_is_tried_again_after_a_while(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    for sidecar in place.sidecars[1:]:
        sidecar.stopped = True
    with pytest.raises(BackendUnavailableError):
        store.create(PIPE, "q")
    for sidecar in place.sidecars:
        sidecar.stopped = False
    clock.advance(120)
    store.create(OTHER, "q")
    assert len(names_of(placement_of(place, OTHER))) == 3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sidecar: setattr(sidecar, "state", SidecarState.DRAINING),
        lambda sidecar: setattr(sidecar, "state", SidecarState.GONE),
        lambda sidecar: setattr(sidecar.engine, "free_min", 1 << 50),
    ],
    ids=["draining", "gone", "full"],
)
@pytest.mark.parametrize("reported", [True, False])
def test_those_that_take_no_new_extents_get_none(
    place: SidecarPlace,
    store: SidecarStore,
    spoil: Callable[[MemorySidecar], None],
    reported: bool,
) -> None:
    """Whether their rows tell of it yet or not."""
    bad = place.sidecars[:2]
    for sidecar in bad:
        spoil(sidecar)
        sidecar.replica_state.draining = sidecar.state is not SidecarState.UP
        if reported:
            place.catalog.sidecars.set_state(sidecar.name, sidecar.state)
    if reported:
        place.beat()
    for number in range(6):
        store.create(f"{number:024x}", "q")
        found = names_of(placement_of(place, f"{number:024x}"))
        assert len(found) == 3
        assert found.isdisjoint(sidecar.name for sidecar in bad)
    if reported:
        assert not any(isinstance(request, Open) for s in bad for request in s.asked)


def test_with_too_few_sidecars_an_extent_has_a_majority_of_its_replicas_at_least(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    for sidecar in place.sidecars[:3]:
        sidecar.down = True
    writer = store.create(PIPE, "q")
    found = placement_of(place)
    assert (len(found.replicas), found.wanted) == (2, 3)
    assert store._context.requests.under_replicated == 1
    append(writer, 3)
    assert place.open(clock).seal(PIPE).seq == 3
    place.sidecars[3].down = True
    with pytest.raises(BackendUnavailableError) as caught:
        store.create(OTHER, "q")
    assert caught.value.retryable
    assert caught.value.hint
    assert place.catalog.sidecars.placements_of([OTHER]) == [None]


def test_full_sidecars_say_so(place: SidecarPlace, store: SidecarStore) -> None:
    for sidecar in place.sidecars:
        sidecar.engine.free_min = 1 << 50
    with pytest.raises(StorageFullError):
        store.create(PIPE, "q")


def test_sidecars_that_are_known_to_be_full_are_not_asked_and_say_so(
    place: SidecarPlace, store: SidecarStore
) -> None:
    for sidecar in place.sidecars:
        sidecar.engine.free_min = 1 << 50
    place.beat()
    with pytest.raises(StorageFullError, match="s1: read-only, for lack of space"):
        store.create(PIPE, "q")
    assert not any(isinstance(request, Open) for s in place.sidecars for request in s.asked)


def test_the_error_says_for_each_sidecar_why_it_did_not_take_an_extent(
    place: SidecarPlace, store: SidecarStore
) -> None:
    place.clock.advance(LEASE_MS / 1000 + 7)
    away, full, leaving, killed, _ = place.sidecars
    leaving.state = SidecarState.DRAINING
    place.catalog.sidecars.set_state(leaving.name, leaving.state)
    full.engine.free_min = 1 << 50
    for sidecar in (full, leaving, killed):
        place.catalog.sidecars.beat(sidecar.row())
    killed.down = True
    with pytest.raises(BackendUnavailableError) as caught:
        store.create(PIPE, "q")
    assert not isinstance(caught.value, StorageFullError), "with room there it would still fail"
    said = caught.value.message
    assert "needs 2 sidecars, but 0 took it" in said
    assert "5 are registered" in said
    assert f"{away.name}: no heartbeat for" in said
    assert f"{full.name}: read-only" in said
    assert f"{leaving.name}: draining" in said
    assert f"{killed.name}: sidecar {killed.name} does not listen" in said


def test_without_enough_sidecars_the_error_says_how_many_there_are(
    tmp_path: Path, clock: ManualClock
) -> None:
    store = SidecarPlace(tmp_path, sidecars=0).open(clock)
    with pytest.raises(BackendUnavailableError, match="needs 2 .* 0 are registered"):
        store.create(PIPE, "q")


def test_what_took_too_long_to_make_is_not_used(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    """Its replicas may have been collected: they had no placement."""
    place.network.before_exchange = lambda calls: clock.advance(OPEN_MS_MAX / 1000)
    with pytest.raises(BackendTimeoutError):
        store.create(PIPE, "q")
    assert place.catalog.sidecars.placements_of([PIPE]) == [None]


def test_a_sidecar_with_a_new_directory_is_used_under_its_new_name(
    place: SidecarPlace, store: SidecarStore
) -> None:
    store.create(OTHER, "q")
    for sidecar in place.sidecars:
        sidecar.lose_directory()
    place.beat()
    store.create(PIPE, "q")  # its rows are those of a moment ago
    for replica in placement_of(place).replicas:
        assert replica.generation.endswith("-2")
