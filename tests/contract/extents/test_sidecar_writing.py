"""Writing an extent on sidecars, of which one fails in some way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cassq.base.clock import ManualClock
from cassq.errors import (
    BackendError,
    BackendUnavailableError,
    PipeSealedError,
    StorageFullError,
)
from cassq.extents.protocol.messages import Appended, Request
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.health import LEAVE_LATER_MS, LEAVE_SOON_TRIES
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import (
    append,
    names_of,
    place,
    placement_of,
    seconds_of,
    sidecars_of,
    store,
)
from tests.contract.extents.test_extents import OTHER, PIPE, expected, read_all
from tests.contract.memory_sidecars import MemorySidecar

__all__ = ["place", "store"]

LAG = 0.7


def lost_on_the_way(sidecar: MemorySidecar) -> None:
    sidecar.lost_before = 1


def lost_on_the_way_back(sidecar: MemorySidecar) -> None:
    sidecar.lost_after = 1


def killed(sidecar: MemorySidecar) -> None:
    sidecar.down = True


def stopped(sidecar: MemorySidecar) -> None:
    sidecar.stopped = True


def slow(sidecar: MemorySidecar) -> None:
    sidecar.slow = 2 * LAG


def full(sidecar: MemorySidecar) -> None:
    sidecar.engine.free_min = 1 << 50


def broken(sidecar: MemorySidecar) -> None:
    sidecar.engine.failing = True


def replaced(sidecar: MemorySidecar) -> None:
    sidecar.lose_directory()


FAILURES = [lost_on_the_way, lost_on_the_way_back, killed, stopped, slow, full, broken, replaced]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_nothing_is_acknowledged_that_not_all_replicas_have(
    place: SidecarPlace,
    store: SidecarStore,
    clock: ManualClock,
    failure: Callable[[MemorySidecar], None],
    which: int,
) -> None:
    """The writer goes no further, and soon; what it sent counts if the others have it."""
    writer = store.create(PIPE, "q")
    append(writer, 3)
    failure(sidecars_of(place)[which])

    def fail() -> None:
        with pytest.raises(BackendError) as caught:
            append(writer, 2)
        assert caught.value.outcome_unknown
        assert not isinstance(caught.value, StorageFullError)

    assert seconds_of(clock, fail) <= LAG
    assert writer.end.seq == 3
    assert writer.sealed()
    with pytest.raises(PipeSealedError):
        append(writer, 2)
    writer.close()
    assert seconds_of(clock, lambda: store.seal(PIPE)) < 0.2
    end = placement_of(place).end
    assert end in (3, 5)
    assert read_all(store.reader(PIPE), end) == expected(0, end)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_a_pusher_continues_in_another_pipe_within_a_second_of_a_failure(
    place: SidecarPlace,
    store: SidecarStore,
    clock: ManualClock,
    failure: Callable[[MemorySidecar], None],
) -> None:
    writer = store.create(PIPE, "q")
    ready = store.create("f" * 24, "q")
    append(writer, 1)
    bad = sidecars_of(place)[1]
    failure(bad)

    def go_on() -> None:
        with pytest.raises(BackendError):
            append(writer, 1)
        writer.close()
        store.seal(PIPE)
        append(store.create(OTHER, "q"), 1)

    assert seconds_of(clock, go_on) < 1.0
    unused = bad.name in names_of(placement_of(place, "f" * 24))
    if failure in (killed, stopped, slow, replaced):
        assert bad.name not in names_of(placement_of(place, OTHER))
        assert ready.sealed() is unused, "it would fail at once"


def test_a_writer_without_answers_waits_for_its_patience(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    for sidecar in place.sidecars:
        sidecar.stopped = True

    def fail() -> None:
        with pytest.raises(BackendUnavailableError):
            append(writer, 1)

    assert seconds_of(clock, fail) == pytest.approx(place.settings.patience)


def test_a_slow_single_replica_is_waited_for(tmp_path: Path, clock: ManualClock) -> None:
    """It may take its time."""
    place = SidecarPlace(tmp_path, sidecars=1, replicas=1)
    writer = place.open(clock).create(PIPE, "q")
    place.sidecars[0].slow = 5.0
    assert append(writer, 1).seq == 1


def test_a_writer_leaves_a_sidecar_that_drains(place: SidecarPlace, store: SidecarStore) -> None:
    writer = store.create(PIPE, "q")
    append(writer, 1)
    assert not writer.sealed()
    sidecars_of(place)[2].replica_state.draining = True
    assert append(writer, 1).seq == 2, "what is pushed is taken"
    assert writer.sealed(), "and then it is time to go"


def test_a_writer_hears_from_any_replica_that_its_turn_is_over(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q", strict=True)
    append(writer, 1)
    clock.advance(5)
    for sidecar in sidecars_of(place)[:2]:
        sidecar.down = True
    other = place.open(clock)
    assert other.reader(PIPE).ask_turn() == clock.boot_ms() - 5000
    for sidecar in place.sidecars:
        sidecar.down = False
    assert not writer.turn_wanted()
    append(writer, 1)
    assert writer.turn_wanted()


def test_a_writer_that_cannot_be_asked_counts_as_idle(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    store.create(PIPE, "q", strict=True)
    for sidecar in place.sidecars:
        sidecar.down = True
    assert place.open(clock).reader(PIPE).ask_turn() == 0


def test_an_idle_writer_looks_now_and_then_whether_it_was_sealed(
    place: SidecarPlace, clock: ManualClock
) -> None:
    place.look_ms = 250
    store = place.open(clock)
    network = place.network
    writer = store.create(PIPE, "q")
    append(writer, 1)
    place.open(clock).seal(PIPE)
    asked = len(network.calls)
    assert not writer.sealed()
    assert len(network.calls) == asked, "not every time"
    clock.advance(0.25)
    assert writer.sealed()


@pytest.mark.parametrize("which", range(3))
def test_a_replica_that_answers_with_less_than_it_was_sent_does_not_count(
    place: SidecarPlace, store: SidecarStore, which: int
) -> None:
    """Whatever it says of having done it."""
    writer = store.create(PIPE, "q")
    append(writer, 3)
    sidecar = sidecars_of(place, PIPE)[which]
    serve = sidecar.serve

    def forgetful(requests: Sequence[Request]) -> list[Any]:
        return [
            replace(reply, end=reply.end - 1) if isinstance(reply, Appended) else reply
            for reply in serve(requests)
        ]

    sidecar.serve = forgetful  # type: ignore[method-assign]
    with pytest.raises(BackendUnavailableError) as caught:
        append(writer, 4)
    assert caught.value.outcome_unknown
    assert writer.end.seq == 3


# --- too few replicas -------------------------------------------------------------------------


def short_of_one(tmp_path: Path) -> tuple[SidecarPlace, SidecarStore]:
    """Three sidecars, one of which was killed some time ago."""
    place = SidecarPlace(tmp_path, sidecars=3)
    store = place.open(place.clock)
    place.sidecars[2].down = True
    place.clock.advance(place.sidecars[2].row().lease_ms / 1000)
    place.beat()
    return place, store


def test_an_extent_with_two_replicas_may_improve_when_there_may_be_three(
    tmp_path: Path,
) -> None:
    place, store = short_of_one(tmp_path)
    clock = place.clock
    writer = store.create(PIPE, "q")
    append(writer, 2)
    for _ in range(100):
        clock.advance(0.5)
        place.beat()
        assert not writer.may_improve(), "there is nowhere better"
        append(writer, 1)
    place.sidecars[2].down = False
    place.beat()
    clock.advance(1)
    assert (writer.missing, writer.may_improve(), writer.sealed()) == (1, True, False)
    assert len(placement_of(place).replicas) == 2
    writer.close()
    assert store.seal(PIPE).seq == 102
    full = store.create(OTHER, "q")
    assert len(placement_of(place, OTHER).replicas) == 3
    append(full, 1)
    assert (full.missing, full.may_improve(), full.sealed()) == (0, False, False)


def test_no_extent_is_opened_again_and_again_for_a_sidecar_that_cannot_be_reached(
    tmp_path: Path,
) -> None:
    """It is alive, as others see."""
    place, store = short_of_one(tmp_path)
    clock = place.clock
    opened = left = 0
    writer = store.create(PIPE, "q")
    for _ in range(1200):
        place.catalog.sidecars.beat(place.sidecars[2].row())
        place.beat()
        append(writer, 1)
        clock.advance(0.5)
        if writer.may_improve():
            left += 1
            writer.close()
            opened += 1
            writer = store.create(f"{opened:024x}", "q")
    assert LEAVE_SOON_TRIES <= left <= LEAVE_SOON_TRIES + 600_000 // LEAVE_LATER_MS
