"""Repairs by reapers that end at any step, stand still at any step, or work side by side."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from cassq.extents.protocol.messages import Read, Scrub
from cassq.reaper.actions import DONE
from tests.contract.reaper.repair_place import AFTER_SECONDS, DRAINING, Killed, Reaper, RepairPlace

ONE = "0" * 23 + "1"
LONG = AFTER_SECONDS + 11
STEPS_MAX = 60

Trouble = Callable[[RepairPlace], None]


def lose(place: RepairPlace) -> None:
    place.away_for("s3", LONG)


def drain(place: RepairPlace) -> None:
    place.catalog.sidecars.set_state("s3", DRAINING)


def damage(place: RepairPlace) -> None:
    place["s3"].engine.flip(ONE, 3)
    place["s3"].serve([Scrub(ONE, 3)])
    place.pass_time(1)


def remove(place: RepairPlace) -> None:
    """Its sidecar lives, and has no room but for itself."""
    place["s3"].remove(ONE)
    place["s4"].down = place["s5"].down = True
    place.pass_time(LONG)


def lose_one_and_damage_one(place: RepairPlace) -> None:
    damage(place)
    place.away_for("s2", LONG)


TROUBLES = [lose, drain, damage, remove, lose_one_and_damage_one]


def a_place(directory: Path, trouble: Trouble) -> RepairPlace:
    directory.mkdir()
    place = RepairPlace(directory)
    place.pushed(ONE, "s1", "s2", "s3")
    trouble(place)
    return place


def kept_whole(place: RepairPlace, at_least: int) -> Callable[[], None]:
    """Fails when there are fewer whole replicas than there were."""

    def look() -> None:
        assert len(place.whole(ONE)) >= at_least

    return look


def at_step(reaper: Reaper, number: int, do: Callable[[], None]) -> Callable[[], bool]:
    """Have something done once at a step of a reaper; whether it came to that."""
    steps = count()
    met = []

    def step() -> None:
        if next(steps) == number:
            met.append(number)
            do()

    reaper.each_step(step)
    return lambda: bool(met)


def each_step(directory: Path, trouble: Trouble, run: Callable[[RepairPlace, int], bool]) -> None:
    """Run something for each step, in a place of its own, until there are no more. run: whether it
    came to the step."""
    for number in range(STEPS_MAX):
        if not run(a_place(directory / f"{number}", trouble), number):
            assert number > 8
            return
    pytest.fail("it has more steps than are looked at")


def die() -> None:
    raise Killed


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_reaper_killed_at_any_step_does_no_harm_and_the_next_one_continues(
    tmp_path: Path, trouble: Trouble
) -> None:
    def run(place: RepairPlace, number: int) -> bool:
        look = kept_whole(place, len(place.whole(ONE)))
        dying = place.reaper()
        came = at_step(dying, number, die)
        try:
            dying.until_done()
        except Killed:
            look()
        place.pass_time(6)  # the lease of the dead
        other = place.reaper()
        other.each_step(look)
        other.until_done()
        assert len(place.whole(ONE)) == 3, number
        assert place.read(ONE) == 15
        return came()

    each_step(tmp_path, trouble, run)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_reaper_paused_at_any_step_while_another_repairs_does_no_harm(
    tmp_path: Path, trouble: Trouble
) -> None:
    def run(place: RepairPlace, number: int) -> bool:
        look = kept_whole(place, len(place.whole(ONE)))
        slow, quick = place.reaper(), place.reaper()

        steps: list[tuple[str, str, str]] = []
        copies = 3 - len(place.whole(ONE)) + (trouble is drain)

        def meanwhile() -> None:
            place.pass_time(6)  # the lease of who stands still
            quick.each_step(look)
            steps.extend(quick.until_done())
            assert len(place.whole(ONE)) == 3

        came = at_step(slow, number, meanwhile)
        steps += slow.until_done()
        counted = [
            each for each in steps if each[:2] == (ONE, DONE) and "copied again" not in each[2]
        ]
        assert len(counted) == copies - (trouble in (damage, remove, lose_one_and_damage_one))
        assert len(place.whole(ONE)) == 3, number
        assert place.read(ONE) == 15
        return came()

    each_step(tmp_path, trouble, run)


@pytest.mark.parametrize("trouble", [lose, drain])
def test_the_next_reaper_continues_a_copy_where_it_is(tmp_path: Path, trouble: Trouble) -> None:
    place = a_place(tmp_path / "place", trouble)
    dying = place.reaper()
    copied: list[str] = []

    def die_half_way() -> None:
        copied.extend(
            each.name
            for each in place.sidecars
            if (replica := each.replica(ONE)) is not None and replica.copying and replica.end == 9
        )
        if copied:
            raise Killed

    dying.each_step(die_half_way)
    with pytest.raises(Killed):
        dying.until_done()
    (target,) = copied
    place.pass_time(6)
    for each in place.sidecars:
        each.asked.clear()
    place.reaper().until_done()
    assert target in place.whole(ONE)
    asked = [request for each in place.sidecars for request in each.asked]
    assert [request.seq for request in asked if isinstance(request, Read)] == [9, 12]


@pytest.mark.parametrize("name", ["s1", "s4", "s5"])
@pytest.mark.parametrize("synced", [True, False])
def test_a_sidecar_that_crashes_at_any_step_does_no_harm(
    tmp_path: Path, name: str, synced: bool
) -> None:
    def run(place: RepairPlace, number: int) -> bool:
        reaper = place.reaper()

        def crash() -> None:
            if synced:
                place[name].engine.sync()
            place[name].crash()

        came = at_step(reaper, number, crash)
        reaper.until_done(passes=80)
        assert len(place.whole(ONE)) == 3, number
        return came()

    each_step(tmp_path, lose, run)


def test_a_sidecar_that_goes_while_a_copy_is_made_is_replaced_itself(tmp_path: Path) -> None:
    def run(place: RepairPlace, number: int) -> bool:
        reaper = place.reaper()

        def go() -> None:
            for each in place.sidecars[3:]:
                each.down = each.replica(ONE) is not None

        came = at_step(reaper, number, go)
        for _ in range(20):
            reaper.run()
            place.pass_time(61)
        assert len(place.whole(ONE)) == 3, number
        return came()

    each_step(tmp_path, lose, run)


def test_an_extent_that_is_dropped_while_it_is_copied_stays_dropped(tmp_path: Path) -> None:
    def run(place: RepairPlace, number: int) -> bool:
        reaper = place.reaper()
        came = at_step(reaper, number, lambda: place.reaper().store.drop([ONE]))
        reaper.until_done()
        assert place.catalog.sidecars.placements_of([ONE]) == [None] or not came()
        return came()

    each_step(tmp_path, lose, run)
