"""When placements are looked through, while repairs go on or fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from cassq.extents.protocol.messages import Scrub
from cassq.inspect.placements.walk import FOUND_MAX
from cassq.reaper.actions import DONE, FAILED
from tests.contract.reaper.repair_place import AFTER_SECONDS, GONE, Reaper, RepairPlace

ONE, TWO = "0" * 23 + "1", "0" * 23 + "a"
LONG = AFTER_SECONDS + 11


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    return RepairPlace(tmp_path)


def beyond_repair(place: RepairPlace) -> None:
    """A replica is damaged, and its sidecar takes no copy, though it does not say so before."""
    place.pushed(ONE, "s1", "s2", "s3")
    place["s2"].engine.flip(ONE, 6)
    place["s2"].serve([Scrub(ONE, 6)])
    place["s2"].refuses_copies = True
    place.pass_time(1)


def passes(place: RepairPlace, seconds: int, *reapers: Reaper) -> list[tuple[str, str, str]]:
    """A pass of each every second."""
    steps: list[tuple[str, str, str]] = []
    for _ in range(seconds):
        for reaper in reapers:
            steps += reaper.run()
        place.pass_time(1.0)
    return steps


def test_what_fails_each_time_does_not_keep_a_lost_sidecar_from_being_noticed(
    place: RepairPlace,
) -> None:
    beyond_repair(place)
    place.pushed(TWO, "s1", "s3", "s4")
    reaper = place.reaper()
    steps = passes(place, 60, reaper)
    assert {each[:2] for each in steps} == {(ONE, FAILED)}
    assert len(steps) == 2, "it is left for half a minute at a time"
    assert place.catalog.sidecars.set_state("s4", GONE)
    steps = passes(place, 60, reaper)
    assert (TWO, DONE) in [each[:2] for each in steps]
    assert len(place.whole(TWO)) == 3


def test_what_fails_each_time_does_not_keep_what_is_short_from_being_found(
    place: RepairPlace,
) -> None:
    beyond_repair(place)
    reaper = place.reaper()
    passes(place, 60, reaper)
    place.pushed(TWO, "s1", "s4", sealed=False)
    place.reaper().store.seal(TWO)
    passes(place, 60, reaper)
    assert len(place.whole(TWO)) == 3


@pytest.mark.parametrize("reapers", [1, 3])
def test_while_something_fails_each_time_all_is_looked_at_once_a_minute_at_most(
    place: RepairPlace, reapers: int
) -> None:
    beyond_repair(place)
    those = [place.reaper() for _ in range(reapers)]
    passes(place, 600, *those)
    looked = sum(reaper.watched.looked for reaper in those)
    assert 5 <= looked <= 10 + reapers


def test_while_what_a_reaper_found_is_being_copied_it_does_not_look_again(
    place: RepairPlace,
) -> None:
    for pipe_id in (ONE, TWO):
        place.pushed(pipe_id, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    reaper = place.reaper(1)
    passes(place, 120, reaper)
    assert "s3" in place.where(TWO)
    assert reaper.watched.looked == 1


def test_many_that_fail_do_not_keep_others_from_being_found(place: RepairPlace) -> None:
    """Targets of most take nothing; that of the last does."""
    pipes = [f"{number:024x}" for number in range(FOUND_MAX + 10)]
    for pipe_id in pipes[:-1]:
        place.pushed(pipe_id, "s1", "s2", "s3", frames=0)
    place.pushed(pipes[-1], "s3", "s4", "s5", frames=0)
    place["s4"].refuses_copies = place["s5"].refuses_copies = True
    place.catalog.sidecars.set_state("s3", GONE)
    place.pass_time(1)
    reaper = place.reaper()
    reaper.patience = 3600.0
    steps = [each for _ in range(4) for each in reaper.run()]
    assert (pipes[-1], DONE) in [each[:2] for each in steps]
    assert len(reaper.repair._walk.failed) == FOUND_MAX
