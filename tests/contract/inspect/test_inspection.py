"""What `check` finds of pipes that were only begun: they are not to be mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.inspect.inspection import Inspection, inspect
from tests.contract.reaper.repair_place import RepairPlace

ONE = "0" * 23 + "1"


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    return RepairPlace(tmp_path)


def inspected(place: RepairPlace) -> Inspection:
    return inspect(place.catalog, place.reaper().store.upkeep)


def kinds(found: Inspection) -> list[tuple[str, str]]:
    return [(each.kind, each.pipe_id) for each in found.found]


def test_a_pipe_that_was_only_begun_is_reported_and_is_not_an_error(
    place: RepairPlace,
) -> None:
    place.pushed(ONE, "s1", "s2", frames=0, sealed=False, begun=True)
    found = inspected(place)
    assert kinds(found) == [("begun", ONE)]
    assert found.is_well
    place["s1"].lose_directory()
    place.pass_time(1.0)
    found = inspected(place)
    assert kinds(found) == [("begun", ONE)]
    assert found.is_well


def test_an_extent_with_all_its_replicas_is_not_reported(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", frames=0, sealed=False, begun=True)
    assert inspected(place).found == []


def test_one_that_holds_messages_is_not_only_begun(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", frames=1, sealed=False, begun=True)
    found = inspected(place)
    assert kinds(found) == [("under-replicated", ONE)]
    assert not found.is_well


def test_one_that_has_a_row_is_not_only_begun(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", frames=0, sealed=False)
    place["s1"].lose_directory()
    place.pass_time(1.0)
    found = inspected(place)
    assert kinds(found) == [("under-replicated", ONE)]
    assert not found.is_well
    assert found.lost == {"s1": 1}
