"""A replica that lacks its last messages is told apart from a damaged one."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from cassq.cli.ops.sidecars import _show_inspection, alive, described
from cassq.extents.protocol.messages import Code, List, ListedExtent, RefusedError
from cassq.extents.replicas.fleet import Fleet
from cassq.inspect.inspection import BEHIND, DAMAGED, Inspection, inspect
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState
from cassq.sidecar.care.orphans import OrphanStep, plan
from cassq.sidecar.engine.port import Replica
from cassq.sidecar.engine.replica_state import ReplicaState
from cassq.sidecar.engine.rocksdb.rows import StoredReplica, kept_of, name_of
from cassq.sidecar.status import count_extents
from tests.simulation.worlds.memory_engine import MemoryEngine

ME = ReplicaAt("a", "a-1")


def step_of(replica: Replica, end: int) -> OrphanStep:
    step = plan(replica, Placement("p", "q", False, (ME,), 1, "v", 0, end), ME)
    assert step is not None
    return step


def test_one_that_was_away_is_behind_and_does_not_count_as_damaged() -> None:
    for replica, end, counted in (
        (Replica("p", "q", False, 0, 1, end=3), 5, 0),
        (Replica("p", "q", False, 0, 1, copying=True), 5, 0),
        (Replica("p", "q", False, 0, 1, end=9, acked=9), 5, 1),
        (Replica("p", "q", False, 0, 1, end=3, final=3), 5, 1),
    ):
        step = step_of(replica, end)
        engine = MemoryEngine("a-1")
        engine.create(replica)
        state = ReplicaState(engine, lambda: 0, lambda: 0)
        state.found("p", step.damage, behind=step.behind)
        state.note_found()
        extents = count_extents(engine)
        assert extents.damaged == counted, step
        assert extents.deficient == 1, "repairs ask for it all the same"


def test_what_is_behind_is_listed_apart_and_is_damaged_once_its_bytes_are() -> None:
    engine = MemoryEngine("a-1")
    for name in ("lag", "bad", "well"):
        engine.create(Replica(name, "q", False, 0, 1))
    state = ReplicaState(engine, lambda: 0, lambda: 0)
    state.found("lag", "it ends at 0, the catalog says 5", behind=True)
    state.found("bad", "a frame is damaged")

    def listed(only: str) -> list[str]:
        return [each.pipe_id for each in state.handle(List("", 10, only)).reply.extents]  # type: ignore[union-attr]

    state.note_found()
    assert (listed("damaged"), listed("behind")) == (["bad", "lag"], ["lag"])
    state.found("bad", "it ends at 0, the catalog says 5", behind=True)
    state.found("lag", "a frame is damaged")
    state.note_found()
    assert (listed("damaged"), listed("behind")) == (["bad", "lag"], [])
    assert engine.replicas()["lag"].damage == "a frame is damaged"
    with pytest.raises(RefusedError):
        listed("other")


class Listing:
    """An upkeep over one sidecar. older: it does not know of replicas that are behind."""

    def __init__(self, *extents: tuple[ListedExtent, bool], older: bool = False) -> None:
        self._extents = extents
        self._older = older

    def fleet(self) -> Fleet:
        row = SidecarRow(
            *("a", "h:1", "z", "a-1", SidecarState.UP, 10_000, 1, 1, 1, 0, False, 1), seen_ms=0
        )
        return Fleet({"a": row}, 0, 60_000)

    def extents(self, _row: SidecarRow, only: str = "") -> Iterator[ListedExtent]:
        if only == "behind" and self._older:
            raise RefusedError(Code.MALFORMED, "cannot be listed")
        return (each for each, behind in self._extents if only != "behind" or behind)


@pytest.mark.parametrize("older", [False, True])
def test_a_check_distinguishes_them_as_the_sidecar_does(older: bool) -> None:
    def extent(name: str, damage: str, *, copying: bool = False) -> ListedExtent:
        return ListedExtent(name, "q", 3, -1, True, 1, 1, damage, copying)

    listing = Listing(
        (extent("bad", "it ends at 3, the catalog says words"), False),
        (extent("copy", "it is a copy", copying=True), False),
        (extent("lag", "whatever it says"), True),
        (extent("well", ""), False),
        older=older,
    )
    catalog = Mock()
    catalog.sidecars.placements.return_value = [
        Placement(name, "q", False, (ME,), 1, "v", 0, 5) for name in ("bad", "copy", "lag", "well")
    ]
    found = inspect(catalog, listing)  # type: ignore[arg-type]
    lagging = ["copy"] if older else ["copy", "lag"]
    assert [each.pipe_id for each in found.of(BEHIND)] == lagging
    assert [each.pipe_id for each in found.of(DAMAGED)] == ["bad", "lag"][: 1 + older]


def test_a_row_says_whether_it_is_behind_and_one_of_an_earlier_version_does_not() -> None:
    replica = Replica("p", "q", True, 7, 1, end=3, fenced=True, damage="it ends at 3")
    former = StoredReplica(replica, 1, 2).row()
    assert kept_of(name_of("p"), former).replica == replica
    replica.behind = True
    row = StoredReplica(replica, 1, 2).row()
    assert kept_of(name_of("p"), row).replica == replica
    assert len(row) == len(former)
    assert [at for at in range(len(row)) if row[at] != former[at]] == [1], "a bit of its flags"


def test_a_sidecar_that_does_not_answer_is_not_shown_as_alive() -> None:
    fleet = Listing().fleet()
    row = fleet.sidecars["a"]
    assert alive(fleet, row, "") == "yes"
    assert alive(fleet, row, "it refused the connection") == "no answer"
    found = described(fleet, row, {}, "it refused the connection")
    assert (found["alive"], found["error"]) == (False, "it refused the connection")


def test_nothing_is_reported_as_healthy_without_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show_inspection(Inspection(extents=3, silent={"a": "it timed out"}))
    assert "well" not in capsys.readouterr().out
    _show_inspection(Inspection(extents=3))
    assert capsys.readouterr().out == "3 extents: all is well\n"
