"""Repairing extents on sidecars: whatever is lost, damaged or drained, and whoever repairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cassq.extents.protocol.messages import Drop, Ends, Replicate, Scrub
from cassq.inspect.placements.rounds import last_round
from cassq.inspect.placements.walk import PAGE
from cassq.reaper.actions import DONE, FAILED, PLANNED
from tests.contract.reaper.repair_place import AFTER_SECONDS, DRAINING, GONE, UP, RepairPlace

ONE, TWO = "0" * 23 + "1", "0" * 23 + "a"
LONG = AFTER_SECONDS + 11


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    return RepairPlace(tmp_path)


def outcomes(steps: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    return [(subject, outcome) for subject, outcome, _ in steps if outcome != PLANNED]


# --- lost -----------------------------------------------------------------------------------------


def test_while_all_is_well_sidecars_are_asked_once_for_what_they_have(place: RepairPlace) -> None:
    for pipe_id in (ONE, TWO):
        place.pushed(pipe_id, "s1", "s2", "s3")
    reaper = place.reaper()
    assert reaper.until_done() == []
    asked = [(call.sidecar, *call.requests) for call in reaper.network.calls]
    assert asked == [(name, Ends([(ONE, 0), (TWO, 0)], 0)) for name in ("s1", "s2", "s3")]
    for _ in range(10):
        place.pass_time(11)
        assert reaper.until_done() == []
    assert len(reaper.network.calls) == 3


def test_a_replica_that_was_lost_with_its_sidecar_is_copied_again(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.pushed(TWO, "s1", "s2", "s4")
    place.away_for("s3", LONG)
    steps = place.reaper().until_done()
    assert outcomes(steps) == [(ONE, DONE)]
    assert "replacing the one on s3: 15 messages" in steps[-1][2]
    assert len(place.whole(ONE)) == 3
    assert "s3" not in place.where(ONE)
    assert place.where(TWO) == ["s1", "s2", "s4"]
    assert place.read(ONE) == 15


@pytest.mark.parametrize(("seconds", "repaired"), [(AFTER_SECONDS, False), (LONG, True)])
def test_a_sidecar_that_is_silent_for_a_short_time_is_waited_for(
    place: RepairPlace, seconds: float, repaired: bool
) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", seconds)
    steps = place.reaper().run()
    assert bool(steps) is repaired


def test_a_data_directory_that_was_lost_is_filled_again_where_no_other_sidecar_is(
    tmp_path: Path,
) -> None:
    place = RepairPlace(tmp_path, sidecars=3)
    for pipe_id in (ONE, TWO):
        place.pushed(pipe_id, "s1", "s2", "s3")
    place["s3"].lose_directory()
    place.pass_time(1.0)
    assert outcomes(place.reaper().until_done()) == [(ONE, DONE), (TWO, DONE)]
    assert place.whole(ONE) == place.whole(TWO) == ["s1", "s2", "s3"]


def test_a_sidecar_given_up_is_replaced_at_once_and_read_if_it_has_the_only_replica(
    place: RepairPlace,
) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place["s1"].lose_directory()
    place["s2"].lose_directory()
    assert place.catalog.sidecars.set_state("s3", GONE)
    place.pass_time(1.0)
    place.reaper().until_done()
    assert len(place.whole(ONE)) == 3
    assert "s3" not in place.where(ONE)


def test_two_lost_replicas_are_copied_one_after_the_other(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.pushed(TWO, "s1", "s3", "s4")
    for name in ("s2", "s3"):
        place.away_for(name, LONG)
    steps = place.reaper().until_done()
    assert outcomes(steps) == [(ONE, DONE), (TWO, DONE), (ONE, DONE)]
    assert place.whole(ONE) == place.whole(TWO) == ["s1", "s4", "s5"]


def test_an_extent_with_too_few_replicas_gets_more_once_a_sidecar_can_take_one(
    tmp_path: Path,
) -> None:
    place = RepairPlace(tmp_path, sidecars=3)
    place["s3"].down = True
    place.pushed(ONE, "s1", "s2")
    place.pass_time(60)
    reaper = place.reaper()
    assert reaper.until_done() == []
    place["s3"].down = False
    place.pass_time(1)
    place.pass_time(11)
    assert outcomes(reaper.until_done()) == [(ONE, DONE)]
    assert place.whole(ONE) == ["s1", "s2", "s3"]


def test_copies_come_to_other_zones_than_those_that_have_it(place: RepairPlace) -> None:
    for name, zone in (("s1", "a"), ("s2", "b"), ("s3", "c"), ("s4", "a"), ("s5", "c")):
        place[name].zone = zone
    pipes = [f"{number:024x}" for number in range(12)]
    for pipe_id in pipes:
        place.pushed(pipe_id, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    place.reaper().until_done()
    assert {tuple(place.whole(pipe_id)) for pipe_id in pipes} == {("s1", "s2", "s5")}


def test_an_extent_that_is_not_sealed_is_left_alone(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    place.away_for("s3", LONG)
    reaper = place.reaper()
    assert reaper.until_done() == []
    assert place.where(ONE) == ["s1", "s2", "s3"]
    place.seal(ONE)  # by somebody who ends before it is told
    place.pass_time(61)
    assert outcomes(reaper.until_done()) == [(ONE, DONE)]
    assert len(place.whole(ONE)) == 3


def test_what_was_not_sealed_when_a_reaper_ended_is_looked_at_by_the_next(
    place: RepairPlace,
) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    place.catalog.sidecars.set_state("s3", DRAINING)
    assert place.reaper().until_done() == []
    place.seal(ONE)
    other = place.reaper()
    assert other.until_done() == []
    place.pass_time(61)
    assert outcomes(other.until_done()) == [(ONE, DONE), ("s3", DONE)]


def test_a_pipe_that_was_only_begun_causes_no_scan(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", frames=0, sealed=False, begun=True)
    reaper = place.reaper()
    assert reaper.until_done() == []
    last = last_round(place.catalog)
    assert last is not None
    assert (last.extents, last.short, last.unsealed, last.unreadable) == (1, 0, 0, 0)
    looked = reaper.watched.looked
    place.pass_time(61)
    assert reaper.until_done() == []
    assert reaper.watched.looked == looked


def test_a_pipe_that_is_short_and_written_to_is_looked_at_again(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", frames=0, sealed=False)
    reaper = place.reaper()
    assert reaper.until_done() == []
    last = last_round(place.catalog)
    assert last is not None
    assert (last.extents, last.short, last.unsealed) == (1, 1, 1)
    looked = reaper.watched.looked
    place.pass_time(61)
    assert reaper.until_done() == []
    assert reaper.watched.looked > looked


def test_an_extent_without_a_good_replica_stays_as_it_is(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    for name in ("s1", "s2", "s3"):
        place.away_for(name, LONG)
    assert place.reaper().until_done() == []
    assert place.where(ONE) == ["s1", "s2", "s3"]
    place["s2"].down = False
    place.pass_time(1)
    place.reaper().until_done()
    assert place.whole(ONE) == ["s2", "s4", "s5"]


def test_an_empty_extent_is_copied_too(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", frames=0)
    place.away_for("s3", LONG)
    assert outcomes(place.reaper().until_done()) == [(ONE, DONE)]
    assert len(place.whole(ONE)) == 3


def test_a_dry_run_says_what_is_needed_and_does_nothing(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    reaper = place.reaper()
    assert reaper.run(dry_run=True) == [(ONE, PLANNED, "replace the one on s3")]
    assert all(isinstance(call.requests[0], Ends) for call in reaper.network.calls)
    assert place.where(ONE) == ["s1", "s2", "s3"]


# --- damaged --------------------------------------------------------------------------------------


def damage(place: RepairPlace, name: str, pipe_id: str, base_seq: int = 6) -> None:
    """A byte turns over, and the sidecar finds it."""
    place[name].engine.flip(pipe_id, base_seq)
    place[name].serve([Scrub(pipe_id, base_seq)])
    place.pass_time(1)


def test_a_damaged_replica_is_copied_again_in_its_place(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    damage(place, "s2", ONE)
    assert place.whole(ONE) == ["s1", "s3"]
    steps = place.reaper().until_done()
    assert outcomes(steps) == [(ONE, DONE)]
    assert steps[-1][2] == "copied again to s2: 15 messages, 368 bytes"
    assert place.whole(ONE) == ["s1", "s2", "s3"]


def test_the_source_is_verified_before_a_damaged_replica_is_overwritten(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    damage(place, "s2", ONE, 12)
    place["s1"].engine.flip(ONE, 0)  # nobody knows yet
    place["s3"].engine.flip(ONE, 3)
    steps = place.reaper().run()
    assert [outcome for _, outcome, _ in steps] == [FAILED]
    assert not any(isinstance(request, Replicate) for request in place["s2"].asked)
    # Each frame has a good replica yet, and is read there.
    assert place.read(ONE) == 15


def test_with_a_damaged_source_another_one_is_tried(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    damage(place, "s2", ONE)
    place["s1"].engine.flip(ONE, 0)
    reaper = place.reaper()
    assert [outcome for _, outcome, _ in reaper.run()] == [FAILED]
    for _ in range(12):
        place.pass_time(10)
        reaper.run()
    assert place.whole(ONE) == ["s1", "s2", "s3"]


def test_a_copy_that_lacks_what_its_source_has_is_not_counted(place: RepairPlace) -> None:
    """Whole by its checksums, and not the same."""
    place.pushed(ONE, "s1", "s2", "s3")
    place.stored(ONE, "s4", size=100)
    place.away_for("s3", LONG)
    reaper = place.reaper()
    ((_, outcome, detail),) = reaper.run()
    assert outcome == FAILED
    assert "s1 and s4 differ from seq 0 on" in detail
    assert place.where(ONE) == ["s1", "s2", "s3"]
    place.pass_time(31)
    reaper.until_done()
    assert place.whole(ONE) == ["s1", "s2", "s5"]


def test_damaged_and_full_it_goes_elsewhere(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place["s2"].engine.free_min = place["s2"].engine.free + 1
    damage(place, "s2", ONE)
    place.reaper().until_done()
    assert len(place.whole(ONE)) == 3
    assert "s2" not in place.where(ONE)


# --- draining -------------------------------------------------------------------------------------


def test_a_draining_sidecar_removes_its_extents_once_they_are_copied(
    place: RepairPlace,
) -> None:
    for pipe_id in (ONE, TWO):
        place.pushed(pipe_id, "s1", "s2", "s3")
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    steps = place.reaper().until_done()
    assert outcomes(steps) == [(ONE, DONE), (TWO, DONE), ("s2", DONE)]
    assert len(place.whole(ONE)) == len(place.whole(TWO)) == 3
    assert "s2" not in place.where(ONE) + place.where(TWO)
    assert place["s2"].engine.replicas() == {}


def test_a_sidecar_drains_only_as_far_as_there_is_room_elsewhere(tmp_path: Path) -> None:
    place = RepairPlace(tmp_path, sidecars=3)
    place.pushed(ONE, "s1", "s2", "s3")
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    assert place.reaper().until_done() == []
    assert place.whole(ONE) == ["s1", "s2", "s3"]


def test_what_is_not_sealed_keeps_a_sidecar_from_being_empty(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3", sealed=False)
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    assert place.reaper().until_done() == []


def test_draining_that_is_called_off_keeps_what_is_there(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    reaper = place.reaper()

    def call_off() -> None:
        if place.where(ONE) != ["s1", "s2", "s3"]:  # the copy counts
            place.catalog.sidecars.set_state("s2", UP)

    reaper.each_step(call_off)
    reaper.until_done()
    assert not any(isinstance(request, Drop) for request in place["s2"].asked)


def test_a_sidecar_that_is_back_when_its_copy_counts_is_left_to_itself(place: RepairPlace) -> None:
    """Its own steward looks after what it has; by then somebody may have chosen it again."""
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    reaper = place.reaper()

    def come_back() -> None:
        if "s3" not in place.where(ONE):
            place["s3"].down = False
            place.beat()

    reaper.each_step(come_back)
    reaper.until_done()
    assert not place["s3"].down
    assert not any(isinstance(request, Drop) for request in place["s3"].asked)


def test_a_replica_that_counts_again_is_not_dropped(place: RepairPlace) -> None:
    placement = place.pushed(ONE, "s1", "s2", "s3")
    assert place.catalog.sidecars.set_state("s2", DRAINING)
    reaper = place.reaper()

    def put_back() -> None:
        now = place.catalog.sidecars.placements_of([ONE])[0]
        if now is not None and "s2" not in place.where(ONE):
            place.catalog.sidecars.change_placement(now, replace(placement, version="again"))
            reaper.each_step(lambda: None)

    reaper.each_step(put_back)
    reaper.run()
    assert place.whole(ONE) == ["s1", "s2", "s3"]


# --- looking --------------------------------------------------------------------------------------


def test_looking_begins_again_when_a_sidecar_goes_meanwhile(place: RepairPlace) -> None:
    pipes = [f"{number:024x}" for number in range(PAGE + 1)]
    for pipe_id in pipes[:-1]:
        place.pushed(pipe_id, "s1", "s2", "s3", frames=0)
    place.pushed(pipes[-1], "s1", "s2", "s4", frames=0)
    reaper = place.reaper()
    reaper.patience = 0.0
    assert reaper.run() == []  # the first page
    assert reaper.repair.unfinished
    place.catalog.sidecars.set_state("s3", GONE)
    reaper.until_done(passes=2000)
    assert not any("s3" in place.where(pipe_id) for pipe_id in pipes)


def test_what_one_reaper_has_looked_at_another_need_not(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    place.reaper().until_done()
    other = place.reaper()
    assert other.until_done() == []
    assert other.watched.looked == 0
    place["s3"].down = False
    place.pass_time(1)
    place.pass_time(11)
    other.run()
    assert other.watched.looked == 1


# --- pace -----------------------------------------------------------------------------------------


def test_all_copies_together_stay_below_the_rate(place: RepairPlace) -> None:
    pipes = [f"{number:024x}" for number in range(10)]
    for pipe_id in pipes:
        place.pushed(pipe_id, "s1", "s2", "s3")
    size = sum(len(each) for each in place["s1"].engine.read(ONE, 0, 15, 1 << 20, 100))
    place.away_for("s3", LONG)
    rate = 100
    reapers = [place.reaper(rate), place.reaper(rate)]
    began_ms = place.clock.boot_ms()
    while any("s3" in place.where(pipe_id) for pipe_id in pipes):
        for reaper in reapers:
            reaper.run()
        place.pass_time(0.25)
        assert place.clock.boot_ms() - began_ms < 600_000
    seconds = (place.clock.boot_ms() - began_ms) / 1000
    assert 0.8 < len(pipes) * size / rate / seconds < 1.05


# --- trouble --------------------------------------------------------------------------------------


def test_a_target_that_takes_nothing_is_passed_over(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place["s4"].refuses_copies = True
    place.away_for("s3", LONG)
    reaper = place.reaper()
    for _ in range(20):
        reaper.run()
        place.pass_time(10)
    assert place.whole(ONE) == ["s1", "s2", "s5"]


def test_a_target_that_does_not_answer_is_passed_over(place: RepairPlace) -> None:
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    place["s4"].hold = lambda request: isinstance(request, Replicate)
    reaper = place.reaper()
    for _ in range(20):
        reaper.run()
        place.pass_time(10)
    assert place.whole(ONE) == ["s1", "s2", "s5"]


def test_what_fails_does_not_hold_up_the_others(place: RepairPlace) -> None:
    pipes = [f"{number:024x}" for number in range(8)]
    for pipe_id in pipes:
        place.pushed(pipe_id, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    for name in ("s1", "s2"):
        place[name].engine.flip(pipes[0], 3)
    reaper = place.reaper()
    steps = [each for _ in range(5) for each in reaper.run()]
    assert (pipes[0], FAILED) in outcomes(steps)
    assert all(len(place.whole(pipe_id)) == 3 for pipe_id in pipes[1:])


def test_a_sidecar_that_comes_back_with_its_extents_is_not_a_target(
    place: RepairPlace,
) -> None:
    """A replica that was replaced, and is whole, is taken as it is when it is needed again."""
    place.pushed(ONE, "s1", "s2", "s3")
    place.away_for("s3", LONG)
    place.reaper().until_done()
    place["s3"].down = False
    place["s4"].lose_directory()
    place["s5"].lose_directory()
    place.pass_time(1)
    place["s4"].refuses_copies = place["s5"].refuses_copies = True
    before = len(place["s1"].asked) + len(place["s2"].asked)
    place.reaper().until_done()
    assert place.whole(ONE) == ["s1", "s2", "s3"]
    assert len(place["s1"].asked) + len(place["s2"].asked) > before  # it was compared with one
