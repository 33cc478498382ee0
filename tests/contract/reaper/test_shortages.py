"""What is sealed with too few good replicas is repaired soon, though all was looked at before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cassq.extents.replicas.shortages import SKEW_MS
from tests.contract.reaper.repair_place import AFTER_SECONDS, DRAINING, RepairPlace

ONE = "0" * 23 + "1"
LOOK_SECONDS = 11.0


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    return RepairPlace(tmp_path)


def lost(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    place["s3"].lose_directory()


def made_with_two(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", sealed=False)


def drained(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    assert place.catalog.sidecars.set_state("s3", DRAINING)


def removed(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    place["s3"].remove(ONE)


def silent(place: RepairPlace) -> None:
    """It counts as lost before the extent is sealed, and nothing changes then."""
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    place.away_for("s3", AFTER_SECONDS + 11)


@pytest.mark.parametrize("short", [lost, made_with_two, drained, removed, silent])
def test_what_is_short_when_it_is_sealed_is_repaired_soon(
    place: RepairPlace, short: Callable[[RepairPlace], None]
) -> None:
    short(place)
    place.pass_time(1.0)
    reaper = place.reaper()
    assert reaper.until_done() == []
    place.pass_time(SKEW_MS / 1000 + 1)
    assert place.reaper().store.seal(ONE).seq == 15
    place.pass_time(LOOK_SECONDS)
    assert reaper.until_done()
    assert len(place.whole(ONE)) == 3
    assert place.read(ONE) == 15
    looked = reaper.watched.looked
    place.pass_time(LOOK_SECONDS)
    assert reaper.until_done() == []
    assert reaper.watched.looked == looked, "it is done with"


def test_a_pipe_with_all_its_replicas_causes_no_scan(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    reaper = place.reaper()
    reaper.until_done()
    looked = reaper.watched.looked
    assert looked == 1
    place.reaper().store.seal(ONE)
    place.pass_time(LOOK_SECONDS)
    assert reaper.until_done() == []
    assert reaper.watched.looked == looked


def test_what_is_sealed_while_all_are_looked_at_is_not_passed_by(place: RepairPlace) -> None:
    made_with_two(place)
    reaper = place.reaper()
    placements = reaper.catalog.sidecars.placements

    def seal_behind() -> object:
        found = list(placements())
        place.reaper().store.seal(ONE)
        place.pass_time(SKEW_MS / 1000 + 1)
        return iter(found)

    reaper.catalog.sidecars.placements = seal_behind
    assert reaper.run() == []
    del reaper.catalog.sidecars.placements
    place.pass_time(LOOK_SECONDS)
    reaper.until_done()
    assert len(place.whole(ONE)) == 3
