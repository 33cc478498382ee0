"""The Catalog port: sidecars, placements of extents, and what all clients have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.port import Catalog
from cassq.model.sidecar_rows import Placement, ReplicaAt, SidecarRow, SidecarState
from tests.contract.backends import CATALOGS, CatalogPlace
from tests.contract.cassandra_place import CassandraPlace
from tests.contract.catalog.test_catalog import at_once
from tests.contract.conftest import OpenCatalog
from tests.contract.rows import version

UP, DRAINING, GONE = SidecarState.UP, SidecarState.DRAINING, SidecarState.GONE
RACERS = 6
BACKENDS = ("sqlite", "cassandra")


def sidecar(name: str = "a:1", **changes: Any) -> SidecarRow:
    row = SidecarRow(
        name=name,
        address="10.0.0.1:7400",
        zone="z1",
        generation="g1",
        state=UP,
        lease_ms=10_000,
        free_bytes=5 << 40,
        total_bytes=6 << 40,
        extents=12,
        load=7 << 32,
        read_only=False,
        damaged=0,
    )
    return replace(row, **changes)


def replicas(*names: str) -> tuple[ReplicaAt, ...]:
    return tuple(ReplicaAt(name, f"of-{name}") for name in names)


def placement(pipe_id: str = "p", **changes: Any) -> Placement:
    row = Placement(
        pipe_id, "q", False, replicas("a:1", "b:1", "c:1"), 3, version(), created_ms=1 << 41
    )
    return replace(row, **changes)


def found(catalog: Catalog, pipe_id: str = "p") -> Placement | None:
    (row,) = catalog.sidecars.placements_of([pipe_id])
    return row


def race(open_catalog: OpenCatalog, act: Callable[[Catalog, int], Any]) -> list[Any]:
    """What each of several connections gets that do this at the same time."""
    catalogs = [open_catalog() for _ in range(RACERS)]
    results: list[Any] = [None] * RACERS

    def run(number: int) -> None:
        results[number] = act(catalogs[number], number)

    at_once([partial(run, number) for number in range(RACERS)])
    return results


# --- what all have in common ------------------------------------------------------------------


def test_the_first_note_stands(catalog: Catalog, other: Catalog) -> None:
    assert catalog.records.note("store", "sidecar") == "sidecar"
    assert other.records.note("store", "files") == "sidecar"
    assert catalog.records.note("store", "files") == "sidecar"
    assert other.records.note("colour", "blue") == "blue", "another key is another note"


def test_many_that_note_at_once_all_get_the_same(open_catalog: OpenCatalog) -> None:
    results = race(
        open_catalog, lambda catalog, number: catalog.records.note("store", f"of {number}")
    )
    assert len(set(results)) == 1
    assert open_catalog().records.note("store", "later") == results[0]
    assert results[0] in {f"of {number}" for number in range(RACERS)}


def test_a_catalog_has_one_permanent_identity_for_all_clients(open_catalog: OpenCatalog) -> None:
    results = race(open_catalog, lambda catalog, _: catalog.records.identity())
    assert results[0]
    assert {*results, open_catalog().records.identity()} == {results[0]}


def test_another_catalog_has_another_identity(
    catalog: Catalog, catalog_place: CatalogPlace, clock: ManualClock, tmp_path: Path
) -> None:
    before = catalog.records.identity()
    if isinstance(catalog_place, CassandraPlace):
        another: CatalogPlace = CassandraPlace(catalog_place.keyspace)  # its rows are gone
    else:
        (tmp_path / "another").mkdir()
        another = CATALOGS["sqlite"](tmp_path / "another")
    after = another.open(clock)
    try:
        assert after.records.identity() != before
    finally:
        after.close()


# --- sidecars ---------------------------------------------------------------------------------


def test_a_sidecars_row_is_what_it_last_reported(
    catalog: Catalog, other: Catalog, clock: ManualClock
) -> None:
    assert catalog.sidecars.listed() == []
    first = catalog.sidecars.beat(sidecar(http="10.0.0.1:7401"))
    assert first == sidecar(http="10.0.0.1:7401", seen_ms=catalog.now_ms())
    assert other.sidecars.listed() == [first]
    clock.advance(3)
    news = sidecar(
        address="10.0.0.2:7400",
        zone="z2",
        lease_ms=5,
        free_bytes=0,
        total_bytes=1,
        extents=2,
        load=3,
        read_only=True,
        damaged=4,
    )
    second = other.sidecars.beat(news)
    assert second == replace(news, seen_ms=first.seen_ms + 3000)
    assert catalog.sidecars.listed() == [second]


def test_only_the_catalog_says_when_a_member_was_seen(catalog: Catalog) -> None:
    assert catalog.sidecars.beat(sidecar(seen_ms=5)).seen_ms == catalog.now_ms()
    assert catalog.sidecars.listed()[0].seen_ms == catalog.now_ms()


def test_a_sidecar_is_alive_until_its_lease_is_over(catalog: Catalog, clock: ManualClock) -> None:
    row = catalog.sidecars.beat(sidecar(lease_ms=1000))
    clock.advance(0.999)
    assert row.alive(catalog.now_ms())
    clock.advance(0.001)
    assert not row.alive(catalog.now_ms())


def test_sidecars_are_reported_by_name(catalog: Catalog, other: Catalog) -> None:
    for name in ("b:1", "a:2", "a:10", "c:1"):
        catalog.sidecars.beat(sidecar(name))
    assert [row.name for row in other.sidecars.listed()] == ["a:10", "a:2", "b:1", "c:1"]


@pytest.mark.parametrize("state", [DRAINING, GONE])
def test_a_state_outlives_beats_whatever_they_say(
    catalog: Catalog, other: Catalog, state: SidecarState
) -> None:
    catalog.sidecars.beat(sidecar())
    assert other.sidecars.set_state("a:1", state)
    assert catalog.sidecars.listed()[0].state is state
    assert catalog.sidecars.beat(sidecar(extents=99)).state is state
    assert other.sidecars.listed() == [sidecar(extents=99, state=state, seen_ms=catalog.now_ms())]
    assert other.sidecars.set_state("a:1", UP)
    assert catalog.sidecars.beat(sidecar(state=DRAINING)).state is UP
    assert other.sidecars.listed()[0].state is UP


def test_a_new_sidecar_is_up_whatever_it_says(catalog: Catalog) -> None:
    assert catalog.sidecars.beat(sidecar(state=GONE)).state is UP
    assert catalog.sidecars.listed()[0].state is UP


@pytest.mark.parametrize("state", [DRAINING, GONE])
def test_with_a_new_generation_a_sidecar_begins_again(
    catalog: Catalog, other: Catalog, state: SidecarState
) -> None:
    catalog.sidecars.beat(sidecar())
    catalog.sidecars.set_state("a:1", state)
    assert other.sidecars.beat(sidecar(generation="g2")).state is UP
    assert catalog.sidecars.listed()[0].state is UP
    assert catalog.sidecars.listed()[0].generation == "g2"
    # Also when the former directory is put back.
    assert other.sidecars.beat(sidecar(generation="g1")).state is UP
    assert catalog.sidecars.listed()[0].state is UP


def test_a_new_generation_takes_states_as_the_first_did(catalog: Catalog) -> None:
    catalog.sidecars.beat(sidecar())
    catalog.sidecars.set_state("a:1", GONE)
    catalog.sidecars.beat(sidecar(generation="g2"))
    assert catalog.sidecars.set_state("a:1", DRAINING)
    assert catalog.sidecars.beat(sidecar(generation="g2")).state is DRAINING


def test_a_state_is_of_one_sidecar(catalog: Catalog) -> None:
    catalog.sidecars.beat(sidecar("a:1"))
    catalog.sidecars.beat(sidecar("b:1"))
    assert catalog.sidecars.set_state("b:1", DRAINING)
    assert [row.state for row in catalog.sidecars.listed()] == [UP, DRAINING]


def test_nothing_is_recorded_of_an_unknown_sidecar(catalog: Catalog) -> None:
    assert not catalog.sidecars.set_state("a:1", DRAINING)
    assert not catalog.sidecars.forget("a:1")
    assert catalog.sidecars.listed() == []
    assert catalog.sidecars.beat(sidecar()).state is UP


def test_a_sidecar_that_was_forgotten_comes_back_when_it_beats(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.sidecars.beat(sidecar("a:1"))
    catalog.sidecars.beat(sidecar("b:1"))
    catalog.sidecars.set_state("a:1", GONE)
    assert other.sidecars.forget("a:1")
    assert [row.name for row in catalog.sidecars.listed()] == ["b:1"]
    assert not other.sidecars.forget("a:1")
    assert not other.sidecars.set_state("a:1", DRAINING)
    assert catalog.sidecars.beat(sidecar("a:1")).state is UP
    assert [row.name for row in other.sidecars.listed()] == ["a:1", "b:1"]


def test_a_state_set_among_many_beats_is_there_afterwards(open_catalog: OpenCatalog) -> None:
    open_catalog().sidecars.beat(sidecar())

    def act(catalog: Catalog, number: int) -> bool:
        if number == 0:
            return catalog.sidecars.set_state("a:1", DRAINING)
        for beat in range(5):
            catalog.sidecars.beat(sidecar(extents=beat))
        return True

    assert all(race(open_catalog, act))
    (row,) = open_catalog().sidecars.listed()
    assert (row.state, row.extents) == (DRAINING, 4)


# --- placements -------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"strict": True, "wanted": 5}, {"end": 0}, {"end": 7}])
def test_a_placement_is_found_as_it_was_added(
    catalog: Catalog, other: Catalog, changes: dict[str, Any]
) -> None:
    row = placement(**changes)
    assert catalog.sidecars.add_placement(row)
    assert found(other) == row
    assert list(other.sidecars.placements()) == [row]


def test_a_replica_that_was_recorded_twice_is_one(catalog: Catalog, other: Catalog) -> None:
    """Two votes of one disk would be taken for those of two."""
    row = placement(replicas=replicas("a:1", "b:1", "a:1"))
    assert catalog.sidecars.add_placement(row)
    assert found(other) == replace(row, replicas=replicas("a:1", "b:1"))
    assert list(other.sidecars.placements()) == [replace(row, replicas=replicas("a:1", "b:1"))]


def test_a_placement_stands_where_one_is_added_later(catalog: Catalog, other: Catalog) -> None:
    row = placement()
    assert catalog.sidecars.add_placement(row)
    assert not other.sidecars.add_placement(placement())
    assert catalog.sidecars.add_placement(row), "it is this very one"
    assert found(other) == row


def test_of_many_placements_of_a_pipe_one_stands(open_catalog: OpenCatalog) -> None:
    rows = [placement() for _ in range(RACERS)]
    results = race(
        open_catalog, lambda catalog, number: catalog.sidecars.add_placement(rows[number])
    )
    assert results.count(True) == 1
    assert found(open_catalog()) == rows[results.index(True)]


def test_placements_are_reported_in_the_order_asked_for(catalog: Catalog) -> None:
    rows = {name: placement(name) for name in ("p1", "p2", "p3")}
    for row in rows.values():
        assert catalog.sidecars.add_placement(row)
    asked = ["p3", "absent", "p1", "p3"]
    assert catalog.sidecars.placements_of(asked) == [rows.get(name) for name in asked]
    assert catalog.sidecars.placements_of([]) == []


def test_a_placement_is_changed_only_with_its_current_version(
    catalog: Catalog, other: Catalog
) -> None:
    old = placement()
    catalog.sidecars.add_placement(old)
    new = replace(old, replicas=replicas("a:1", "d:1"), wanted=2, version=version())
    late = replace(old, replicas=replicas("e:1"), version=version())
    assert other.sidecars.change_placement(old, new)
    assert found(catalog) == new
    assert not catalog.sidecars.change_placement(old, late), "it is not that one any more"
    assert found(other) == new
    assert catalog.sidecars.change_placement(old, new), "it is there already"
    newest = replace(new, end=4, version=version())
    assert catalog.sidecars.change_placement(new, newest)
    assert found(other) == newest


def test_a_placement_that_is_not_there_is_not_changed(catalog: Catalog) -> None:
    old = placement()
    assert not catalog.sidecars.change_placement(old, replace(old, end=1, version=version()))
    assert found(catalog) is None
    assert list(catalog.sidecars.placements()) == []


def test_a_change_is_of_one_pipe(catalog: Catalog) -> None:
    old, beside = placement("p"), placement("beside")
    for row in (old, beside):
        catalog.sidecars.add_placement(row)
    assert catalog.sidecars.change_placement(old, replace(old, end=1, version=version()))
    assert found(catalog, "beside") == beside


@pytest.mark.parametrize("end", [None, 0, 6, 8])
def test_an_end_that_is_recorded_never_changes(
    catalog: Catalog, other: Catalog, end: int | None
) -> None:
    old = placement()
    catalog.sidecars.add_placement(old)
    sealed = replace(old, end=7, version=version())
    assert catalog.sidecars.change_placement(old, sealed)
    assert not other.sidecars.change_placement(sealed, replace(sealed, end=end, version=version()))
    # Nor for one who says that there was none.
    lie = replace(sealed, end=None)
    assert not other.sidecars.change_placement(lie, replace(lie, end=end, version=version()))
    assert found(catalog) == sealed
    moved = replace(sealed, replicas=replicas("d:1"), version=version())
    assert other.sidecars.change_placement(sealed, moved)
    assert found(catalog) == moved


def test_of_many_ends_recorded_at_once_one_stands(open_catalog: OpenCatalog) -> None:
    old = placement()
    open_catalog().sidecars.add_placement(old)
    ends = [replace(old, end=number, version=version()) for number in range(RACERS)]
    results = race(
        open_catalog, lambda catalog, number: catalog.sidecars.change_placement(old, ends[number])
    )
    assert results.count(True) == 1
    assert found(open_catalog()) == ends[results.index(True)]


def test_placements_are_forgotten_by_pipe(catalog: Catalog, other: Catalog) -> None:
    rows = {name: placement(name) for name in ("p1", "p2", "p3")}
    for row in rows.values():
        catalog.sidecars.add_placement(row)
    other.sidecars.forget_placements(["p1", "absent", "p3"])
    other.sidecars.forget_placements([])
    assert catalog.sidecars.placements_of(list(rows)) == [None, rows["p2"], None]
    assert list(catalog.sidecars.placements()) == [rows["p2"]]
    old = rows["p1"]
    assert not catalog.sidecars.change_placement(old, replace(old, end=1, version=version()))


def test_all_placements_are_reported_once_however_many(
    catalog: Catalog, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(catalog.sidecars.placements()) == []
    rows = [placement(f"p{number}") for number in range(25)]
    for row in rows:
        catalog.sidecars.add_placement(row)
    for page in (1, 5, 7, 100):
        for backend in BACKENDS:
            monkeypatch.setattr(f"cassq.catalog.{backend}.sidecar_tables.PAGE", page)
        reported = sorted(other.sidecars.placements(), key=lambda row: row.pipe_id)
        assert reported == sorted(rows, key=lambda row: row.pipe_id), page
