"""Repairing what is on a sidecar whose engine failed: it gives out what it has, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.errors import BackendError
from cassq.reaper.actions import DONE
from tests.contract.reaper.repair_place import DRAINING, RepairPlace

ONE, TWO = "0" * 23 + "1", "0" * 23 + "a"


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    place = RepairPlace(tmp_path)
    for pipe_id in (ONE, TWO):
        place.pushed(pipe_id, "s1", "s2", "s3")
    place["s2"].engine.failing = True
    with pytest.raises(BackendError):
        place["s2"].engine.note(ONE, epoch=2)
    assert place["s2"].engine.failure
    return place


def moved(place: RepairPlace, pipe_id: str) -> bool:
    return len(place.whole(pipe_id)) == 3 and "s2" not in place.where(pipe_id)


def test_a_failed_sidecars_extents_are_copied_elsewhere_and_left_on_its_disk(
    place: RepairPlace,
) -> None:
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    steps = place.reaper().until_done()
    assert [each[:2] for each in steps] == [(ONE, DONE), (TWO, DONE), ("s2", DONE)]
    assert moved(place, ONE)
    assert moved(place, TWO)
    assert sorted(place["s2"].engine.replicas()) == [ONE, TWO]


def test_a_failed_sidecar_with_the_only_good_replicas_serves_and_copies_them(
    place: RepairPlace,
) -> None:
    for name in ("s1", "s3"):
        place[name].lose_directory()
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    place.pass_time(1)
    assert place.read(ONE) == place.read(TWO) == 15
    place.reaper().until_done()
    assert moved(place, ONE)
    assert moved(place, TWO)


def test_damage_that_is_always_reported_hides_nothing_else(place: RepairPlace) -> None:
    place["s2"].engine.flip(ONE, 3)
    place["s2"].replica_state.found(ONE, "a frame is bad")
    place.pass_time(1)
    reaper = place.reaper()
    assert (ONE, DONE) in [each[:2] for each in reaper.until_done()]
    assert moved(place, ONE)
    assert not moved(place, TWO), "nobody knows yet that it failed"
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    place.pass_time(1)
    assert place.catalog.sidecars.listed()[1].damaged == 1
    reaper.until_done()
    assert moved(place, TWO)
