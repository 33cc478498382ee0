"""A sidecar and its catalog: it registers, learns its state, and goes on while that is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cassq.base.clock import ManualClock
from cassq.catalog.port import Catalog
from cassq.catalog.sqlite import SqliteCatalog
from cassq.errors import BackendUnavailableError, ConfigError
from cassq.extents.replicas.shortages import SKEW_MS, shortage_since
from cassq.model.sidecar_rows import SidecarRow, SidecarState
from cassq.sidecar.catalog_thread import CatalogThread
from cassq.sidecar.catalogs import open_catalog
from cassq.sidecar.engine.replica_state import ReplicaState
from cassq.sidecar.registration import LEASE_MS, Registration
from tests.simulation.worlds.memory_engine import MemoryEngine

T = TypeVar("T")

ROW = SidecarRow(
    *("a", "127.0.0.1:1", "z", "a-1", SidecarState.UP, LEASE_MS, 10, 20, 0, 0, False, 0),
    http="127.0.0.1:2",
)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Place:
    """A catalog's place, where it may be away. opened: how often it was opened."""

    def __init__(self, path: Path, clock: ManualClock) -> None:
        self.path = path
        self.clock = clock
        self.away = False
        self.opened = 0

    def open(self) -> Catalog:
        if self.away:
            raise BackendUnavailableError("no server answers")
        self.opened += 1
        return SqliteCatalog(self.path / "catalog.sqlite", self.clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Place:
    return Place(tmp_path, clock)


@pytest.fixture
def cluster(place: Place) -> str:
    with closing(place.open()) as catalog:
        return catalog.records.identity()


@pytest.fixture
def replica_state() -> ReplicaState:
    return ReplicaState(MemoryEngine(), lambda: 0, lambda: 0)


@pytest.fixture
def catalog(place: Place, cluster: str) -> Iterator[CatalogThread]:
    with closing(CatalogThread(cluster, place.open)) as catalog:
        yield catalog


def test_a_beat_writes_the_row_and_brings_its_state(
    catalog: CatalogThread, place: Place, replica_state: ReplicaState, clock: ManualClock
) -> None:
    learned: list[SidecarState] = []
    load = 0

    def row() -> SidecarRow:
        return replace(ROW, load=load)

    registration = Registration(catalog, replica_state, row, learned.append, lambda: "")
    assert run(registration.beat())
    with closing(place.open()) as other:
        (there,) = other.sidecars.listed()
        assert there == replace(ROW, seen_ms=there.seen_ms)
        assert there.alive(other.now_ms())
        for state in (SidecarState.DRAINING, SidecarState.GONE, SidecarState.UP):
            other.sidecars.set_state("a", state)
            load += 1
            clock.advance(1)
            assert run(registration.beat())
            assert replica_state.draining == (state is not SidecarState.UP)
            assert other.sidecars.listed()[0].load == load
        registration.stopping()
        assert run(registration.beat())
        assert replica_state.draining, "whatever its row says, it stops"
        run(registration.leave())
        assert not other.sidecars.listed()[0].alive(other.now_ms())
    assert learned[:4] == [
        *(SidecarState.UP, SidecarState.DRAINING, SidecarState.GONE, SidecarState.UP)
    ]


def test_one_that_finds_damage_has_all_placements_checked_once(
    catalog: CatalogThread, place: Place, replica_state: ReplicaState, clock: ManualClock
) -> None:
    damaged = [3]
    registration = Registration(
        *(catalog, replica_state, lambda: replace(ROW, damaged=damaged[-1])),
        *(lambda state: None, lambda: ""),
    )
    with closing(place.open()) as other:

        def beat() -> bool:
            """Whether the beat is a reason to check."""
            clock.advance(2 * SKEW_MS / 1000)
            began_ms = other.now_ms() + SKEW_MS
            assert run(registration.beat())
            return shortage_since(other, began_ms)

        place.away = True
        assert not run(registration.beat())
        place.away = False
        assert [beat() for _ in range(3)] == [True, False, False]
        damaged.append(0)
        assert not beat()
        damaged.append(1)
        assert beat(), "this is another damage"


def test_a_sidecar_keeps_its_requested_state_while_the_catalog_is_unavailable(
    catalog: CatalogThread, place: Place, replica_state: ReplicaState
) -> None:
    """One that is opened anew in the same process need not ask for it."""
    learned: list[SidecarState] = []
    place.away = True
    registration = Registration(
        *(catalog, replica_state, lambda: ROW, learned.append, lambda: "", SidecarState.DRAINING)
    )
    assert not run(registration.beat())
    assert replica_state.draining
    place.away = False
    assert run(registration.beat())
    assert not replica_state.draining
    assert learned == [SidecarState.DRAINING, SidecarState.UP]


def test_an_unavailable_catalog_is_reported_once_and_asked_again(
    catalog: CatalogThread,
    place: Place,
    replica_state: ReplicaState,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="cassq")
    registration = Registration(catalog, replica_state, lambda: ROW, lambda state: None, lambda: "")
    place.away = True
    assert [run(registration.beat()) for _ in range(5)] == [False] * 5
    assert catalog.heard is None
    assert caplog.text.count("the catalog cannot be reached") == 1
    opened = place.opened
    place.away = False
    assert run(registration.beat())
    assert run(registration.beat())
    assert place.opened == opened + 1
    assert caplog.text.count("the catalog can be reached again") == 1
    assert catalog.heard is not None


def test_a_sidecar_whose_engine_failed_drains_once_the_catalog_answers(
    catalog: CatalogThread,
    place: Place,
    replica_state: ReplicaState,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="cassq")
    failures = [""]
    learned: list[SidecarState] = []
    registration = Registration(
        catalog, replica_state, lambda: ROW, learned.append, lambda: failures[-1]
    )
    assert run(registration.beat())
    with closing(place.open()) as other:

        def state() -> SidecarState:
            return other.sidecars.listed()[0].state

        assert (state(), replica_state.draining) == (SidecarState.UP, False)
        catalog.close()
        place.away = True
        failures.append("the disk failed")
        with closing(CatalogThread(other.records.identity(), place.open)) as away:
            registration = Registration(
                away, replica_state, lambda: ROW, learned.append, lambda: failures[-1]
            )
            assert not run(registration.beat())
            assert not run(registration.beat())
            assert state() is SidecarState.UP
            place.away = False
            assert run(registration.beat())
            assert (state(), replica_state.draining) == (SidecarState.DRAINING, True)
            assert learned == [SidecarState.UP, SidecarState.DRAINING]
            # Who calls it off does not make it well; who gave it up has said more than that.
            other.sidecars.set_state("a", SidecarState.UP)
            assert run(registration.beat())
            assert state() is SidecarState.DRAINING
            other.sidecars.set_state("a", SidecarState.GONE)
            assert run(registration.beat())
            assert state() is SidecarState.GONE
    assert caplog.text.count("accepts no more messages: the disk failed") == 1


def test_one_that_is_started_with_an_empty_directory_is_up_again(
    catalog: CatalogThread, place: Place, replica_state: ReplicaState
) -> None:
    tell = Registration(
        catalog, replica_state, lambda: ROW, lambda state: None, lambda: "it failed"
    )
    assert run(tell.beat())
    assert replica_state.draining
    empty = replace(ROW, generation="a-2")
    again = Registration(catalog, replica_state, lambda: empty, lambda state: None, lambda: "")
    assert run(again.beat())
    assert not replica_state.draining


def test_another_catalog_in_its_place_is_not_used(place: Place, cluster: str) -> None:
    with closing(CatalogThread("another", place.open)) as catalog:
        for _ in range(2):
            with pytest.raises(BackendUnavailableError, match=f"{cluster}, not another"):
                run(catalog.ask(lambda each: each.sidecars.listed()))


def test_a_place_that_cannot_be_right_is_away(tmp_path: Path, cluster: str) -> None:
    (tmp_path / "file").touch()

    def wrong() -> Catalog:
        return open_catalog(f"file:{tmp_path / 'file'}", ManualClock())

    with closing(CatalogThread(cluster, wrong)) as catalog:
        with pytest.raises(BackendUnavailableError, match="cannot be opened.*is a file"):
            run(catalog.ask(lambda each: each.sidecars.listed()))


def test_a_catalog_is_opened_by_the_url_that_clients_have(tmp_path: Path) -> None:
    clock = ManualClock()
    url = f"file:{tmp_path / 'queues'}?store=sidecar&replicas=2&zone=a&sidecar_token=t"
    with closing(open_catalog(url, clock)) as catalog:
        identity = catalog.records.identity()
    with closing(open_catalog(f"file:{tmp_path / 'queues'}", clock)) as catalog:
        assert catalog.records.identity() == identity
    for url, found in (
        ("http://there", "not a URL of queues"),
        (f"file:{tmp_path / 'queues'}?colour=red", "unknown option 'colour'"),
        ("cassandra://", "names no server"),
        ("", "not a URL of queues"),
    ):
        with pytest.raises(ConfigError, match=found):
            open_catalog(url, clock)
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious").touch()
    with pytest.raises(ConfigError, match="precious"):
        open_catalog(f"file:{other}", clock)
