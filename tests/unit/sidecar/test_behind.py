"""A replica that lacks its last messages is told apart from a damaged one."""

from __future__ import annotations

import pytest

from cassq.cli.ops.sidecars import _show_inspection
from cassq.inspect.inspection import Inspection
from cassq.model.sidecar_rows import Placement, ReplicaAt, is_behind
from cassq.sidecar.care.orphans import plan
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.status import count_extents
from tests.simulation.worlds.memory_engine import MemoryEngine

ME = ReplicaAt("a", "a-1")


def damage_of(replica: Replica, end: int) -> str:
    step = plan(replica, Placement("p", "q", False, (ME,), 1, "v", 0, end), ME)
    assert step is not None
    return step.damage


def test_one_that_was_away_is_behind_and_does_not_count_as_damaged() -> None:
    lagging = damage_of(Replica("p", "q", False, 0, 1), 5)
    unfinished = damage_of(Replica("p", "q", False, 0, 1, copying=True), 5)
    assert is_behind(lagging)
    assert is_behind(unfinished)
    for damage, counted in (
        (lagging, 0),
        (unfinished, 0),
        ("it ends at 3, but was synced up to 5", 1),
        ("a frame is damaged", 1),
        (damage_of(Replica("p", "q", False, 0, 1, end=9, acked=9), 5), 1),
        ("it was settled at 3, the catalog says 5", 1),
    ):
        engine = MemoryEngine("a-1")
        engine.create(Replica("p", "q", False, 0, 1, damage=damage))
        extents = count_extents(engine)
        assert extents.damaged == counted, damage
        assert extents.deficient == 1, "repairs ask for it all the same"


def test_nothing_is_said_to_be_well_if_nobody_answered(capsys: pytest.CaptureFixture[str]) -> None:
    _show_inspection(Inspection(extents=3, silent={"a": "it timed out"}))
    assert "well" not in capsys.readouterr().out
    _show_inspection(Inspection(extents=3))
    assert capsys.readouterr().out == "3 extents: all is well\n"
