"""What the Cassandra catalog promises of sidecars besides its port: lost answers, late writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from cassq.base.clock import SystemClock
from cassq.cassandra.session import Cql
from cassq.cassandra.tries import UNSURE_MAX
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.sidecar_tables import BEAT, SET_STATE
from cassq.errors import BackendError
from cassq.model.sidecar_rows import SidecarState
from tests.contract.backends import CatalogPlace
from tests.contract.catalog.test_sidecars import found, placement, sidecar
from tests.contract.rows import version
from tests.contract.shaky_cql import ShakyCql

OLD = placement("old")
NEW = replace(OLD, end=7, version=version())
FRESH = placement("fresh")
MORE_THAN_A_FEW = UNSURE_MAX

Write = Callable[[CassandraCatalog], object]


@pytest.fixture
def shaky(keyspace: Cql, cassandra_place: CatalogPlace) -> Iterator[CassandraCatalog]:
    """A catalog whose session loses what it is told to lose; a placement is there."""
    clock = SystemClock()
    catalog = CassandraCatalog(ShakyCql(keyspace.contact, clock, keyspace.contact.keyspace), clock)
    assert catalog.sidecars.add_placement(OLD)
    yield catalog
    catalog.close()


def session(catalog: CassandraCatalog) -> ShakyCql:
    assert isinstance(catalog._keyspace.cql, ShakyCql)
    return catalog._keyspace.cql


# Each is one conditional write, and what it is to have done.
WRITES: dict[str, tuple[Write, Callable[[CassandraCatalog], bool]]] = {
    "a note": (lambda c: c.records.note("store", "sidecar") == "sidecar", lambda c: True),
    "a new placement": (
        lambda c: c.sidecars.add_placement(FRESH),
        lambda c: found(c, "fresh") == FRESH,
    ),
    "an end": (lambda c: c.sidecars.change_placement(OLD, NEW), lambda c: found(c, "old") == NEW),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize(("lost", "unsent"), [(1, 0), (2, 0), (0, 1), (0, 2), (1, 1)])
def test_an_unanswered_request_is_done_and_the_outcome_reported(
    shaky: CassandraCatalog, what: str, lost: int, unsent: int
) -> None:
    write, is_done = WRITES[what]
    session(shaky).lost, session(shaky).unsent = lost, unsent
    assert write(shaky)
    assert session(shaky).unsent == 0
    session(shaky).lost = 0
    assert is_done(shaky)
    assert write(shaky), "it is there already"


@pytest.mark.parametrize("what", WRITES)
def test_what_never_has_an_answer_is_not_guessed_at(shaky: CassandraCatalog, what: str) -> None:
    session(shaky).unsent = MORE_THAN_A_FEW
    with pytest.raises(BackendError) as caught:
        WRITES[what][0](shaky)
    assert caught.value.outcome_unknown


def test_another_s_write_is_not_mistaken_for_one_without_an_answer(
    shaky: CassandraCatalog, cassandra_place: CatalogPlace
) -> None:
    other = cassandra_place.open(SystemClock())
    theirs = placement("fresh"), replace(OLD, end=3, version=version())

    def come_first() -> None:
        session(shaky).before_apply = lambda: None
        assert other.records.note("store", "cassandra") == "cassandra"
        assert other.sidecars.add_placement(theirs[0])
        assert other.sidecars.change_placement(OLD, theirs[1])

    session(shaky).before_apply = come_first
    session(shaky).unsent = 1
    assert shaky.records.note("store", "sidecar") == "cassandra"
    session(shaky).unsent = 1
    assert not shaky.sidecars.add_placement(FRESH)
    session(shaky).unsent = 1
    assert not shaky.sidecars.change_placement(OLD, NEW)
    assert shaky.sidecars.placements_of(["fresh", "old"]) == list(theirs)
    other.close()


def test_a_state_that_came_too_late_brings_no_sidecar_back(shaky: CassandraCatalog) -> None:
    """As when it is forgotten while somebody is about to say what it is to be."""
    shaky.sidecars.beat(sidecar())
    assert shaky.sidecars.forget("a:1")
    session(shaky).write(SET_STATE, (int(SidecarState.GONE), "g1", "a:1"))
    assert shaky.sidecars.listed() == []
    assert not shaky.sidecars.set_state("a:1", SidecarState.DRAINING)
    assert not shaky.sidecars.forget("a:1")
    assert shaky.sidecars.beat(sidecar()).state is SidecarState.UP
    assert [row.state for row in shaky.sidecars.listed()] == [SidecarState.UP]


def test_a_state_of_a_former_generation_says_nothing_of_the_next(shaky: CassandraCatalog) -> None:
    """As when the sidecar comes back while somebody is about to give it up."""
    shaky.sidecars.beat(sidecar())
    shaky.sidecars.beat(sidecar(generation="g2"))
    session(shaky).write(SET_STATE, (int(SidecarState.GONE), "g1", "a:1"))
    assert [row.state for row in shaky.sidecars.listed()] == [SidecarState.UP]
    assert shaky.sidecars.beat(sidecar(generation="g2")).state is SidecarState.UP


def test_a_state_set_in_the_middle_of_a_beat_stays(
    shaky: CassandraCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaky.sidecars.beat(sidecar())
    cql = session(shaky)
    write = cql.write

    def after_a_state(text: str, values: Sequence[object] = ()) -> None:
        if text == BEAT:
            monkeypatch.undo()
            assert shaky.sidecars.set_state("a:1", SidecarState.DRAINING)
        write(text, values)

    monkeypatch.setattr(cql, "write", after_a_state)
    shaky.sidecars.beat(sidecar(extents=99))
    (row,) = shaky.sidecars.listed()
    assert (row.state, row.extents) == (SidecarState.DRAINING, 99)
