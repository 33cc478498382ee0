"""Reading an extent on sidecars: from whichever replica is good, as far as is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import (
    BackendUnavailableError,
    CorruptionError,
)
from cassq.extents.port import ExtentMissingError
from cassq.extents.protocol.messages import Drop, Read
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.reader import SLICE_BYTES
from cassq.message.frames import Place
from cassq.model.sidecar_rows import ReplicaAt
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import (
    append,
    others,
    placement_of,
    seconds_of,
    sidecars_of,
    store,
)
from tests.contract.extents.spoilt import SPOILT
from tests.contract.extents.test_extents import MUCH, OTHER, PIPE, START, expected, read_all, said
from tests.contract.memory_sidecars import MemorySidecar

__all__ = ["store"]


@pytest.fixture(params=[SLICE_BYTES, 1], ids=["slices", "frame by frame"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> SidecarPlace:
    """Five sidecars; an extent is on three of them. Frame by frame the next is read ahead."""
    place = SidecarPlace(tmp_path, sidecars=5)
    place.slice_bytes = request.param
    return place


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("step", [1, 100])
def test_a_reader_switches_replicas_in_the_middle_of_a_pipe(
    place: SidecarPlace,
    store: SidecarStore,
    clock: ManualClock,
    spoil: Callable[[MemorySidecar, int], None],
    step: int,
) -> None:
    """While one replica is good, wherever it stands among them."""
    writer = store.create(PIPE, "q")
    append(writer, 4, 4)
    append(writer, 4)
    sidecars = sidecars_of(place)
    for good in sidecars:
        other = place.open(clock)
        reader = other.reader(PIPE)
        place_read = START
        assert said(reader.read(START, 12, 2, MUCH)) == expected(0, 2)
        spoilt = [sidecar for sidecar in sidecars if sidecar is not good]
        kept = [sidecar.engine for sidecar in spoilt]
        copies = [sidecar.engine._live[PIPE].copy() for sidecar in spoilt]
        for sidecar in spoilt:
            spoil(sidecar, 4)
        found: list[bytes] = []
        while place_read.seq < 12:
            slices = reader.read(place_read, 12, step, MUCH)
            found += said(slices)
            place_read = reader.place_after(place_read, slices)
        assert found == expected(0, 12)
        assert said(other.reader(PIPE).read(Place(5, 4), 12, 100, MUCH)) == expected(5, 12)
        for sidecar, engine, copy in zip(spoilt, kept, copies, strict=True):
            sidecar.engine = engine
            engine._live[PIPE] = copy
            engine._replicas[PIPE] = copy.replica
            sidecar.start()
            sidecar.down = sidecar.stopped = False
        clock.advance(300)


def test_the_next_frame_that_some_replica_has_whole_is_found_behind_damage(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    for _ in range(5):
        append(writer, 4)
    sidecars = sidecars_of(place)
    for sidecar in sidecars:
        sidecar.engine.flip(PIPE, 4)
    for sidecar in sidecars[1:]:
        sidecar.engine.flip(PIPE, 8)  # one replica has it whole
    reader = place.open(clock).reader(PIPE)
    with pytest.raises(CorruptionError):
        reader.read(Place(4, 4), 20, 9, MUCH)
    after = reader.after_damage(Place(4, 4), 20)
    assert after == Place(8, 8)
    assert said(reader.read(after, 20, 100, MUCH)) == expected(8, 20)
    assert reader.after_damage(Place(4, 4), 8) is None


def test_a_change_over_is_counted(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4, 4)
    for sidecar in sidecars_of(place)[:2]:
        sidecar.engine.flip(PIPE, 4)
    other = place.open(clock)
    assert read_all(other.reader(PIPE), 8) == expected(0, 8)
    assert other._context.requests.changed_over > 0


def test_damage_is_reported_when_no_replica_is_good(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4, 4, 4)
    for sidecar in sidecars_of(place):
        sidecar.engine.flip(PIPE, 4)
    reader = place.open(clock).reader(PIPE)
    assert said(reader.read(START, 12, 100, MUCH)) == expected(0, 4)
    with pytest.raises(CorruptionError, match=PIPE):
        reader.read(Place(4, 4), 12, 100, MUCH)
    assert said(reader.read(Place(8, 8), 12, 100, MUCH)) == expected(8, 12)


def test_damage_is_not_reported_while_a_good_replica_may_be_unreachable(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    first, second, third = sidecars_of(place)
    first.engine.flip(PIPE, 0)
    second.serve([Drop([PIPE])])
    third.down = True
    reader = place.open(clock).reader(PIPE)
    with pytest.raises(BackendUnavailableError) as caught:
        reader.read(START, 4, 100, MUCH)
    assert caught.value.retryable
    third.down = False
    assert said(reader.read(START, 4, 100, MUCH)) == expected(0, 4)
    third.lose_directory()
    place.beat()
    with pytest.raises(CorruptionError):
        place.open(clock).reader(PIPE).read(START, 4, 100, MUCH)


def test_an_extent_is_missing_only_when_all_its_replicas_are(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    first, second, third = sidecars_of(place)
    for sidecar in (first, second):
        sidecar.serve([Drop([PIPE])])
    third.lose_directory()
    reader = place.open(clock).reader(PIPE)
    with pytest.raises(BackendUnavailableError):
        reader.read(START, 4, 100, MUCH)
    place.beat()  # now it is known that the third has lost it
    with pytest.raises(ExtentMissingError):
        reader.read(START, 4, 100, MUCH)


def test_a_reader_finds_an_extent_that_was_repaired_meanwhile(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    store.seal(PIPE)
    reader = place.open(clock).reader(PIPE)
    before = placement_of(place)
    copy = sidecars_of(place)[0].engine._live[PIPE].copy()
    target = others(place)[0]
    target.engine._live[PIPE] = copy
    target.engine._replicas[PIPE] = copy.replica
    moved = (ReplicaAt(target.name, target.engine.generation),)
    place.catalog.sidecars.change_placement(
        before, replace(before, replicas=moved, version="repaired")
    )
    for sidecar in place.sidecars:
        sidecar.down = sidecar is not target
    assert said(reader.read(START, 4, 100, MUCH)) == expected(0, 4)


def test_a_reader_prefers_its_own_zone(place: SidecarPlace, clock: ManualClock) -> None:
    place.open(clock).create(PIPE, "q")
    near = sidecars_of(place)[2]
    place.settings = place.settings._replace(zone=near.zone)
    writer = place.open(clock).create(OTHER, "q")
    append(writer, 4)
    assert near in sidecars_of(place, OTHER)
    assert read_all(place.open(clock).reader(OTHER), 4) == expected(0, 4)
    for sidecar in place.sidecars:
        reads = [request for request in sidecar.asked if isinstance(request, Read)]
        assert bool(reads) is (sidecar is near)


def test_a_slow_replica_is_read_when_no_other_is_there(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    first, second, third = sidecars_of(place)
    first.down = second.down = True
    third.slow = 3.0
    assert read_all(place.open(clock).reader(PIPE), 4) == expected(0, 4)


# --- how far it goes --------------------------------------------------------------------------


def test_readers_elsewhere_stop_at_what_is_acknowledged(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    append(writer, 4)
    reader = place.open(clock).reader(PIPE)
    assert reader.published().seq == 4
    sidecars_of(place)[0].down = True
    with pytest.raises(BackendUnavailableError):
        append(writer, 3)
    clock.advance(1)
    assert reader.published().seq == 4, "two replicas have more"


def test_the_end_is_reported_by_any_replica_that_answers(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    reader = place.open(clock).reader(PIPE)
    for number, good in enumerate(sidecars_of(place), 1):
        for sidecar in place.sidecars:
            sidecar.down = False
        append(writer, 1)
        for sidecar in place.sidecars:
            sidecar.down = sidecar is not good
        clock.advance(300)
        assert reader.published().seq == number


def test_without_an_answer_the_end_is_the_last_known_one(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    """One pipe that is away does not keep a popper from the others."""
    append(store.create(PIPE, "q"), 4)
    reader = place.open(clock).reader(PIPE)
    assert reader.published().seq == 4
    for sidecar in place.sidecars:
        sidecar.stopped = True
    clock.advance(1)
    assert reader.published().seq == 4
    clock.advance(0.1)
    assert seconds_of(clock, reader.published) == 0, "and nobody is waited for again and again"


def test_ends_are_asked_for_many_at_once(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    pipes = [f"{number:024x}" for number in range(50)]
    for pipe_id in pipes:
        append(store.create(pipe_id, "q"), 2)
    readers = place.open(clock).readers(pipes)
    for reader in readers:
        assert reader is not None
        reader.ask_published()
    assert [reader.published().seq for reader in readers if reader] == [2] * 50
    assert len(place.network.calls) <= len(place.sidecars)


def test_a_new_end_is_asked_for_when_the_last_one_is_old(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    reader = place.open(clock).reader(PIPE)
    for number in range(1, 5):
        append(writer, 1)
        clock.advance(0.004)
        assert reader.published().seq == number


def test_the_end_of_a_dropped_extent_is_what_was_known(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    append(store.create(PIPE, "q"), 4)
    reader = place.open(clock).reader(PIPE)
    assert reader.published().seq == 4
    store.drop([PIPE])
    clock.advance(1)
    assert reader.published().seq == 4
    with pytest.raises(ExtentMissingError):
        reader.read(START, 4, 10, MUCH)


def test_a_reader_that_will_ask_for_the_end_learns_of_frames_that_just_came(
    place: SidecarPlace, store: SidecarStore, clock: ManualClock
) -> None:
    writer = store.create(PIPE, "q")
    append(writer, 1)
    reader = place.open(clock).reader(PIPE)
    assert reader.published() == Place(1, 1)
    append(writer, 1)
    # Nothing tells that it grew, and no time has passed: a popper that is about to sleep says so.
    reader.ask_published()
    assert reader.published() == Place(2, 2)
