"""What the suites about extents on sidecars have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cassq.base.clock import ManualClock
from cassq.extents.sidecar import SidecarStore
from cassq.extents.sidecar.writer import SidecarWriter
from cassq.message.frames import Place
from cassq.model.sidecar_rows import Placement
from tests.contract.backends import SidecarPlace
from tests.contract.extents.test_extents import PIPE, frame
from tests.contract.memory_sidecars import MemorySidecar


@pytest.fixture
def place(tmp_path: Path) -> SidecarPlace:
    """Five sidecars; an extent is on three of them."""
    return SidecarPlace(tmp_path, sidecars=5)


@pytest.fixture
def store(place: SidecarPlace, clock: ManualClock) -> SidecarStore:
    return place.open(clock)


def append(writer: SidecarWriter, *counts: int) -> Place:
    """Append frames of so many messages each, all at once."""
    base = writer.end.seq
    frames = []
    for count in counts:
        frames.append(frame(base, count, writer.pipe_id))
        base += count
    return writer.append(frames, base)


def placement_of(place: SidecarPlace, pipe_id: str = PIPE) -> Placement:
    found = place.catalog.sidecars.placements_of([pipe_id])[0]
    assert found is not None
    return found


def sidecars_of(place: SidecarPlace, pipe_id: str = PIPE) -> list[MemorySidecar]:
    names = [replica.sidecar for replica in placement_of(place, pipe_id).replicas]
    return [sidecar for name in names for sidecar in place.sidecars if sidecar.name == name]


def others(place: SidecarPlace) -> list[MemorySidecar]:
    mine = sidecars_of(place)
    return [sidecar for sidecar in place.sidecars if sidecar not in mine]


def seconds_of(clock: ManualClock, do: Callable[[], object]) -> float:
    before_ms = clock.boot_ms()
    do()
    return (clock.boot_ms() - before_ms) / 1000


def names_of(placement: Placement) -> set[str]:
    return {replica.sidecar for replica in placement.replicas}
