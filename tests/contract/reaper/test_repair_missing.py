"""Repairing replicas that are missing: their sidecars live, and do not have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cassq.extents.protocol.messages import Drop, Ends, List, Replicate
from cassq.extents.sidecar.net.network import SidecarCall
from cassq.inspect.placements.walk import PAGE
from cassq.reaper.actions import DONE, FAILED, PLANNED
from tests.contract.reaper.repair_place import DRAINING, Reaper, RepairPlace

Trouble = Callable[[RepairPlace], None]
ONE, TWO = "0" * 23 + "1", "0" * 23 + "a"


@pytest.fixture
def place(tmp_path: Path) -> RepairPlace:
    """With three sidecars, and so no other place for a copy."""
    place = RepairPlace(tmp_path, sidecars=3)
    place.pushed(ONE, "s1", "s2", "s3")
    return place


def more(tmp_path: Path) -> RepairPlace:
    """With five."""
    (tmp_path / "more").mkdir()
    place = RepairPlace(tmp_path / "more")
    place.pushed(ONE, "s1", "s2", "s3")
    return place


def asked(place: RepairPlace, kind: type[Any]) -> list[str]:
    """Who was asked for that."""
    return [
        sidecar.name
        for sidecar in place.sidecars
        for request in sidecar.asked
        if isinstance(request, kind)
    ]


def once(reaper: Reaper, kind: type[Any], do: Callable[[], object]) -> None:
    """Have something done once, right before such a request is made."""
    left = [do]

    def before(calls: Sequence[SidecarCall]) -> None:
        requests = [request for call in calls for request in call.requests]
        if left and any(isinstance(request, kind) for request in requests):
            left.pop()()

    reaper.network.before_exchange = before


def test_a_missing_replica_is_copied_to_its_place_and_its_placement_is_changed(
    place: RepairPlace,
) -> None:
    place["s2"].remove(ONE)
    before = place.catalog.sidecars.placements_of([ONE])[0]
    steps = place.reaper().until_done()
    assert steps == [(ONE, DONE, "copied again to s2: 15 messages, 368 bytes")]
    assert place.whole(ONE) == ["s1", "s2", "s3"]
    after = place.catalog.sidecars.placements_of([ONE])[0]
    assert before is not None
    assert after is not None
    assert after == replace(before, version=after.version)
    assert after.version != before.version
    assert place.reaper().until_done() == [], "it is done with"


def test_a_dry_run_reports_it(place: RepairPlace) -> None:
    place["s2"].remove(ONE)
    assert place.reaper().run(dry_run=True) == [(ONE, PLANNED, "missing on s2")]
    assert place.whole(ONE) == ["s1", "s3"]


def test_two_are_copied_one_after_the_other(place: RepairPlace) -> None:
    for name in ("s1", "s3"):
        place[name].remove(ONE)
    steps = place.reaper().until_done()
    assert [each[:2] for each in steps] == [(ONE, DONE), (ONE, DONE)]
    assert place.whole(ONE) == ["s1", "s2", "s3"]


def test_where_all_are_missing_nothing_is_tried(place: RepairPlace) -> None:
    for name in ("s1", "s2", "s3"):
        place[name].remove(ONE)
    reaper = place.reaper()
    for _ in range(10):
        assert reaper.until_done() == []
        place.pass_time(11)
    assert reaper.watched.looked == 1
    assert place.where(ONE) == ["s1", "s2", "s3"]


def full(place: RepairPlace) -> None:
    place["s2"].engine.free_min = place["s2"].engine.free + 1


def draining(place: RepairPlace) -> None:
    assert place.catalog.sidecars.set_state("s2", DRAINING)


@pytest.mark.parametrize("trouble", [full, draining])
def test_where_its_sidecar_takes_nothing_it_goes_elsewhere(
    tmp_path: Path, trouble: Trouble
) -> None:
    place = more(tmp_path)
    place["s2"].remove(ONE)
    trouble(place)
    place.pass_time(1)
    assert (ONE, DONE) in [each[:2] for each in place.reaper().until_done()]
    assert len(place.whole(ONE)) == 3
    assert "s2" not in place.where(ONE)


def test_an_extent_that_is_not_sealed_is_left_alone(place: RepairPlace) -> None:
    place.pushed(TWO, "s1", "s2", "s3", sealed=False)
    place["s2"].remove(TWO)
    assert place.reaper().until_done() == []
    assert asked(place, Replicate) == []


def test_what_was_moved_since_its_placement_was_read_is_not_missing(tmp_path: Path) -> None:
    place = more(tmp_path)
    reaper = place.reaper()

    def move() -> None:
        there = place.stored(ONE, "s4")
        old = place.catalog.sidecars.placements_of([ONE])[0]
        assert old is not None
        new = replace(old, replicas=(old.replicas[0], there, old.replicas[2]), version="moved")
        assert place.catalog.sidecars.change_placement(old, new)
        place["s2"].remove(ONE)

    once(reaper, Ends, move)
    assert reaper.until_done() == []
    assert asked(place, Replicate) == []
    assert place.whole(ONE) == ["s1", "s3", "s4"]


def test_what_was_dropped_since_its_placement_was_read_is_not_missing(place: RepairPlace) -> None:
    reaper = place.reaper()

    def drop() -> None:
        for sidecar in place.sidecars[:2]:
            sidecar.remove(ONE)
        place.catalog.sidecars.forget_placements([ONE])

    once(reaper, Ends, drop)
    assert reaper.until_done() == []
    assert asked(place, Replicate) == []


def test_one_that_is_there_again_is_not_copied_over_before_its_source_was_verified(
    place: RepairPlace,
) -> None:
    """It may have frames that nobody else has whole."""
    place["s2"].remove(ONE)
    reaper = place.reaper()

    def come_back() -> None:
        place.stored(ONE, "s2")
        place["s2"].engine.note(ONE, damage="a frame is bad")
        for name, base_seq in (("s1", 0), ("s3", 3)):
            place[name].engine.flip(ONE, base_seq)

    once(reaper, List, come_back)
    assert [each[:2] for each in reaper.run()] == [(ONE, FAILED)]
    assert asked(place, Replicate) == []
    assert place.read(ONE) == 15


def test_one_that_was_never_missing_is_kept(tmp_path: Path) -> None:
    """Its sidecar said so, and was wrong."""
    place = more(tmp_path)
    held = place["s2"].engine
    place["s2"].remove(ONE)
    reaper = place.reaper()
    once(reaper, List, lambda: place.stored(ONE, "s2"))
    assert [each[:2] for each in reaper.until_done()] == [(ONE, DONE)]
    assert place.whole(ONE) == ["s1", "s2", "s3"]
    assert asked(place, Drop) == []
    assert place["s2"].engine is held


def test_a_copy_whose_reaper_and_sidecar_ended_is_continued(place: RepairPlace) -> None:
    """From then on its sidecar tells that it is damaged."""
    place["s2"].remove(ONE)
    dying = place.reaper()
    dying.patience = 0.0
    while not (begun := place["s2"].replica(ONE)) or not begun.end:
        dying.run()
    assert begun.copying
    place["s2"].crash()
    place.pass_time(6)
    assert place.reaper().until_done()
    assert place.whole(ONE) == ["s1", "s2", "s3"]
    copied = [request for request in place["s2"].asked if isinstance(request, Replicate)]
    assert len(copied) == 5, "each frame once"


def test_a_silent_sidecar_is_not_waited_for_at_each_page(place: RepairPlace) -> None:
    pipes = [f"{number:023x}f" for number in range(3 * PAGE)]
    for pipe_id in pipes:
        place.pushed(pipe_id, "s1", "s2", "s3", frames=0)
    place["s3"].remove(pipes[-1])
    place["s2"].hold = lambda request: isinstance(request, Ends)
    reaper = place.reaper()
    reaper.patience = 60.0
    assert [each[:2] for each in reaper.until_done()] == [(pipes[-1], DONE)]
    looks = [call for call in reaper.network.calls if isinstance(call.requests[0], Ends)]
    assert len([call for call in looks if call.sidecar == "s2"]) == 1
    assert len([call for call in looks if call.sidecar == "s1"]) > 3
