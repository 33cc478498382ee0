"""What is left of extents on sidecars when some of their replicas, or the catalog, are not there.

With the number of replicas as it may be: three, two of three, two, one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.sqlite.sidecar_tables import SqliteSidecars
from cassq.errors import BackendUnavailableError, CorruptionError, PipeSealedError
from cassq.extents.port import ExtentMissingError
from cassq.extents.protocol.messages import Append, Code, RefusedError
from cassq.model.sidecar_rows import Placement, SidecarState
from tests.catalog_parts import put_part
from tests.contract.backends import SidecarPlace
from tests.contract.extents.on_sidecars import append, placement_of, sidecars_of
from tests.contract.extents.sealed_sidecars import ACKED, TAIL, pushed, read_from, tail
from tests.contract.extents.test_extents import OTHER, PIPE, expected, frame, read_all


class LeavingPlacements(SqliteSidecars):
    """Of a catalog that cannot be reached for a while."""

    away = False

    def placements_of(self, pipe_ids: object) -> list[Placement | None]:
        self._check()
        return super().placements_of(pipe_ids)  # type: ignore[arg-type]

    def add_placement(self, placement: Placement) -> bool:
        self._check()
        return super().add_placement(placement)

    def _check(self) -> None:
        if self.away:
            raise BackendUnavailableError("the catalog does not answer")


# --- power ------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_when_all_sidecars_lose_power_what_was_acknowledged_is_there(
    tmp_path: Path, clock: ManualClock, seed: int, replicas: int
) -> None:
    """Of what was not acknowledged any part may be, the same on all."""
    place, rng = SidecarPlace(tmp_path, replicas, replicas), random.Random(seed)
    writer = pushed(place, clock)
    for sidecar in place.sidecars:
        sidecar.replica_state.handle(tail())  # and no sync after it
        sidecar.crash(rng)
    end = place.open(clock).seal(PIPE).seq
    assert end in (ACKED, TAIL)
    assert read_from(place, clock, end) == expected(0, end)
    with pytest.raises(PipeSealedError):
        append(writer, 1)
    for sidecar in place.sidecars:
        sidecar.crash(rng)
        late = Append(PIPE, 1, end, 1, 0, b"".join(frame(end, 1)))
        (refused,) = sidecar.serve([late])
        assert isinstance(refused, RefusedError)
        assert refused.code is Code.FENCED
    assert place.open(clock).seal(PIPE).seq == end


# --- a majority -------------------------------------------------------------------------------


def test_without_a_majority_a_pipe_is_read_and_sealed_when_it_is_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = SidecarPlace(tmp_path, sidecars=5)
    pushed(place, clock).close()
    first, second, _ = sidecars_of(place)
    first.down = second.down = True
    store = place.open(clock)
    with pytest.raises(BackendUnavailableError) as caught:
        store.seal(PIPE)
    assert caught.value.retryable
    assert read_all(store.reader(PIPE), ACKED) == expected(0, ACKED)
    assert append(store.create(OTHER, "q"), 2).seq == 2, "pushes go on elsewhere"
    second.down = False
    assert store.seal(PIPE).seq == ACKED


def test_one_replica_seals_when_the_unreachable_ones_are_given_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    """It has everything acknowledged, as each of them had."""
    place = SidecarPlace(tmp_path, sidecars=3)
    pushed(place, clock)
    for sidecar in place.sidecars[1:]:
        sidecar.down = True
        place.catalog.sidecars.set_state(sidecar.name, SidecarState.GONE)
    assert place.open(clock).seal(PIPE).seq == ACKED
    assert read_from(place, clock, ACKED) == expected(0, ACKED)


# --- few replicas -----------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [2, 3])
def test_of_two_replicas_both_are_needed_to_seal_and_one_to_read(
    tmp_path: Path, clock: ManualClock, wanted: int
) -> None:
    """Two that were wanted, or two that were there of three."""
    place = SidecarPlace(tmp_path, sidecars=2, replicas=wanted)
    pushed(place, clock)
    assert len(placement_of(place).replicas) == 2
    place.sidecars[0].down = True
    store = place.open(clock)
    with pytest.raises(BackendUnavailableError):
        store.seal(PIPE)
    assert read_all(store.reader(PIPE), ACKED) == expected(0, ACKED)
    place.sidecars[0].down = False
    place.sidecars[0].lose_directory()
    place.beat()
    assert place.open(clock).seal(PIPE).seq == ACKED, "it will not come back"
    assert read_from(place, clock, ACKED) == expected(0, ACKED)


def test_a_single_replica_is_waited_for_and_lost_with_its_directory(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = SidecarPlace(tmp_path, sidecars=1, replicas=1)
    writer = pushed(place, clock)
    (only,) = place.sidecars
    only.down = True
    store = place.open(clock)
    reader = store.reader(PIPE)
    with pytest.raises(BackendUnavailableError):
        read_all(reader, ACKED)
    with pytest.raises(BackendUnavailableError):
        append(writer, 1)
    only.down = False
    clock.advance(60)
    assert store.seal(PIPE).seq == ACKED
    assert read_all(store.reader(PIPE), ACKED) == expected(0, ACKED)
    only.lose_directory()
    place.beat()
    with pytest.raises((ExtentMissingError, CorruptionError)):
        read_from(place, clock, ACKED)


# --- the catalog ------------------------------------------------------------------------------


def test_an_open_pipe_is_written_and_read_while_the_catalog_is_away(
    tmp_path: Path, clock: ManualClock
) -> None:
    place = SidecarPlace(tmp_path, sidecars=3)
    placements = put_part(place.catalog, LeavingPlacements)
    store = place.open(clock)
    writer = store.create(PIPE, "q")
    append(writer, 2)
    reader = place.open(clock).reader(PIPE)
    placements.away = True
    assert append(writer, 4).seq == ACKED
    assert read_all(reader, ACKED) == expected(0, ACKED)
    for refused in (lambda: store.create(OTHER, "q"), lambda: store.seal(PIPE)):
        with pytest.raises(BackendUnavailableError, match="the catalog does not answer"):
            refused()
    placements.away = False
    assert store.seal(PIPE).seq == ACKED
