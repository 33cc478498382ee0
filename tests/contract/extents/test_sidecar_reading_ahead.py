"""Reading ahead on sidecars: the next slice is under way while the present one is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.extents.port import ExtentMissingError
from cassq.extents.protocol.messages import Read
from cassq.extents.sidecar import read_ahead as bounds
from cassq.extents.sidecar.reader import SLICE_BYTES, SidecarReader
from cassq.message.frames import Place
from cassq.model.sidecar_rows import ReplicaAt
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import append, others, placement_of, seconds_of, sidecars_of
from tests.contract.extents.spoilt import SPOILT
from tests.contract.extents.test_extents import MUCH, OTHER, PIPE, START, expected, read_all, said
from tests.contract.memory_sidecars import MemorySidecar

COUNT = 32  # messages, four to a frame


@pytest.fixture
def place(tmp_path: Path) -> SidecarPlace:
    """Five sidecars; an extent is on three of them. A slice has one frame."""
    place = SidecarPlace(tmp_path, sidecars=5)
    place.slice_bytes = 1
    return place


@pytest.fixture
def reader(place: SidecarPlace, clock: ManualClock) -> SidecarReader:
    """Of an extent of eight frames, of which it has read two; the third is under way."""
    append(place.open(clock).create(PIPE, "q"), *[4] * (COUNT // 4))
    reader = place.open(clock).reader(PIPE)
    reader.published()
    assert said(reader.read(START, COUNT, 8, MUCH)) == expected(0, 8)
    assert states(place) == ["under way"]
    return reader


def states(place: SidecarPlace) -> list[str]:
    """What became of all slices that were asked for ahead, in order."""
    return [begun.state for begun in place.network.begun]


def reads(place: SidecarPlace) -> list[int]:
    """From where on slices were asked for, one way or the other."""
    asked = [request for call in place.network.calls for request in call.requests]
    return [request.seq for request in asked if isinstance(request, Read)]


def near(place: SidecarPlace) -> MemorySidecar:
    """The one that is read from."""
    return sidecars_of(place)[0]


def rest(reader: SidecarReader, start: int = 8) -> list[bytes]:
    return said(reader.read(Place(start, start), COUNT, COUNT, MUCH))


# --- when -------------------------------------------------------------------------------------


def test_each_slice_is_asked_for_once(place: SidecarPlace, reader: SidecarReader) -> None:
    assert rest(reader) == expected(8, COUNT)
    assert reads(place) == list(range(0, COUNT, 4))
    assert states(place) == ["taken"] * 6


def test_nothing_is_asked_for_where_nothing_is_left(
    place: SidecarPlace, clock: ManualClock
) -> None:
    writer = place.open(clock).create(PIPE, "q")
    append(writer, 4, 4)
    reader = place.open(clock).reader(PIPE)
    assert read_all(reader, 8) == expected(0, 8)
    append(writer, 4)
    clock.advance(1)
    assert reader.published().seq == 12
    assert said(reader.read(Place(8, 8), 12, 4, MUCH)) == expected(8, 12)
    assert states(place) == []


def test_the_first_slice_is_not_followed_by_another(
    place: SidecarPlace, clock: ManualClock
) -> None:
    """A pop of a few messages of many costs what it did."""
    append(place.open(clock).create(PIPE, "q"), 4, 4, 4)
    reader = place.open(clock).reader(PIPE)
    reader.published()
    assert said(reader.read(START, 12, 3, MUCH)) == expected(0, 3)
    assert reads(place) == [0]


def test_a_few_messages_fit_into_one_slice(tmp_path: Path, clock: ManualClock) -> None:
    place = SidecarPlace(tmp_path)
    assert place.slice_bytes == SLICE_BYTES
    append(place.open(clock).create(PIPE, "q"), *[4] * 100)
    reader, at = place.open(clock).reader(PIPE), START
    reader.published()
    while at.seq < 400:
        slices = reader.read(at, 400, 10, MUCH)
        at = reader.place_after(at, slices)
    assert reads(place) == [0]


def test_a_slow_reader_does_not_read_ahead(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    """So that a sidecar seldom has to keep an answer for long."""
    clock.advance(bounds.AHEAD_MS / 1000 + 0.001)
    assert said(reader.read(Place(8, 8), COUNT, 4, MUCH)) == expected(8, 12)
    assert states(place) == ["taken"]
    clock.advance(bounds.AHEAD_MS / 1000)
    assert said(reader.read(Place(12, 12), COUNT, 4, MUCH)) == expected(12, 16)
    assert states(place) == ["taken", "under way"]


def test_all_readers_together_have_a_bound(
    place: SidecarPlace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = place.open(clock)
    for pipe_id in (PIPE, OTHER):
        append(store.create(pipe_id, "q"), 4, 4, 4, 4)
    store = place.open(clock)
    one, other, another = store.reader(PIPE), store.reader(OTHER), store.reader(OTHER)
    monkeypatch.setattr(bounds, "AHEAD_BYTES_MAX", 7)
    for reader in (one, other):
        reader.published()
        assert len(said(reader.read(START, 16, 8, MUCH))) == 8
    assert states(place) == ["under way"], "each would be of four bytes"
    one.close()
    assert len(said(another.read(START, 16, 8, MUCH))) == 8
    assert states(place) == ["dropped", "under way"]


# --- what is not taken ------------------------------------------------------------------------


def test_a_jump_drops_it(place: SidecarPlace, reader: SidecarReader) -> None:
    assert said(reader.read(Place(20, 20), COUNT, 4, MUCH)) == expected(20, 24)
    assert states(place) == ["dropped"]
    assert rest(reader) == expected(8, COUNT)


def test_it_stays_while_what_is_at_hand_is_read_again(
    place: SidecarPlace, reader: SidecarReader
) -> None:
    assert said(reader.read(Place(5, 4), COUNT, 2, MUCH)) == expected(5, 7)
    assert said(reader.read(Place(7, 4), COUNT, 1, MUCH)) == expected(7, 8)
    assert rest(reader) == expected(8, COUNT)
    assert reads(place).count(8) == 1


def test_closing_drops_it(place: SidecarPlace, reader: SidecarReader) -> None:
    reader.close()
    assert states(place) == ["dropped"]
    reader.close()
    assert rest(reader) == expected(8, COUNT)


def test_a_reader_that_changes_over_drops_it(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    """Of a sidecar that others found to be away meanwhile nothing is waited for."""
    first, second, _ = sidecars_of(place)
    first.stopped = True
    reader._context.health.failed(first.name)
    assert seconds_of(clock, lambda: rest(reader)) == 0
    assert states(place)[0] == "dropped"
    assert any(isinstance(request, Read) for request in second.asked)


# --- what goes wrong while it is under way ----------------------------------------------------


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("before", [True, False], ids=["before it was asked", "while under way"])
def test_another_replica_is_read_when_one_fails(
    place: SidecarPlace,
    clock: ManualClock,
    spoil: Callable[[MemorySidecar, int], None],
    before: bool,
) -> None:
    append(place.open(clock).create(PIPE, "q"), *[4] * (COUNT // 4))
    reader = place.open(clock).reader(PIPE)
    reader.published()
    found = said(reader.read(START, COUNT, 4, MUCH))
    first = near(place)
    if before:
        spoil(first, 8)
    found += said(reader.read(Place(4, 4), COUNT, 4, MUCH))
    if not before:
        assert states(place) == ["under way"]
        spoil(first, 8)
    assert seconds_of(clock, lambda: found.extend(rest(reader))) <= 2 * place.settings.lag
    assert found == expected(0, COUNT)


def test_it_is_given_out_when_the_sidecar_died_after_it_came(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    """What was verified is good, wherever it comes from: nothing is asked for twice."""
    for sidecar in sidecars_of(place):
        sidecar.engine.flip(PIPE, 12)
    assert said(reader.read(Place(8, 8), COUNT, 4, MUCH)) == expected(8, 12)
    assert reads(place).count(8) == 1


def test_one_that_does_not_answer_is_waited_for_once(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    near(place).stopped = True
    seconds = seconds_of(clock, lambda: reader.read(Place(8, 8), COUNT, 4, MUCH))
    assert seconds == pytest.approx(place.settings.lag, abs=0.002)


def test_a_broken_connection_is_not_a_reason_to_leave_a_sidecar(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    """It was idle on one side for long, or the sidecar was started anew."""
    near(place).broke = True
    assert rest(reader) == expected(8, COUNT)
    assert not any(isinstance(request, Read) for s in sidecars_of(place)[1:] for request in s.asked)


def test_an_extent_that_is_dropped_while_it_is_under_way_is_missing(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    place.open(clock).drop([PIPE])
    found: list[bytes] = []
    with pytest.raises(ExtentMissingError):
        for start in range(8, COUNT, 4):
            found += said(reader.read(Place(start, start), COUNT, 4, MUCH))
    assert found == expected(8, 8 + len(found)), "what came before is good"


def test_a_repair_that_moves_the_extent_meanwhile_is_not_trouble(
    place: SidecarPlace, clock: ManualClock, reader: SidecarReader
) -> None:
    place.open(clock).seal(PIPE)
    before = placement_of(place)
    copy = near(place).engine._live[PIPE].copy()
    target = others(place)[0]
    target.engine._live[PIPE] = copy
    target.engine._replicas[PIPE] = copy.replica
    moved = (ReplicaAt(target.name, target.engine.generation),)
    place.catalog.sidecars.change_placement(
        before, replace(before, replicas=moved, version="repaired")
    )
    for sidecar in place.sidecars:
        sidecar.down = sidecar is not target
    assert rest(reader) == expected(8, COUNT)
