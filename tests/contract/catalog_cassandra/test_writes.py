"""Writes in Cassandra: whoever ends in the middle of one leaves nothing that others cannot go on
from, and what was decided is what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cassq.base.clock import ManualClock
from cassq.model.rows import PipeState, WriteState

pytest.importorskip("cassandra")

from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.pipes.write_tables import HELP_MOST, HELP_MS, NOTE_MS
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.catalog.test_writes import QUEUE_ID, begin, listed, stage, state_of, wanted
from tests.contract.catalog_cassandra.test_pipes import killed_at
from tests.contract.rows import group_row, make_queue, pipe_row
from tests.contract.trouble import TroubledCql, in_turn

Open = Callable[[], tuple[CassandraCatalog, TroubledCql]]
STEPS_MAX = 60
OPEN, PUBLISHED, ABORTED = WriteState.OPEN, WriteState.PUBLISHED, WriteState.ABORTED


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_one(cassandra_place: CassandraPlace, clock: ManualClock) -> Iterator[Open]:
    """Catalogs as processes of their own have them."""
    with processes(cassandra_place, clock, TroubledCql) as connect:
        yield connect


def noted(cql: TroubledCql) -> list[object]:
    """What is left of writes beside their rows."""
    return [
        *cql.read("SELECT * FROM staged_pipes"),
        *(row for row in cql.read("SELECT writes FROM pipe_slices") if row[0]),
    ]


def later(cql: TroubledCql, clock: ManualClock) -> None:
    """Notes of before are old, by the catalog's time and by that of plain writes."""
    clock.advance(NOTE_MS / 1000 + 1)
    stamp = cql.stamp
    cql.stamp = lambda: stamp() + 1000 * NOTE_MS  # type: ignore[method-assign]
    cql.not_ahead = lambda stamp_us: stamp_us  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "by",
    [
        "the reaper",
        pytest.param("who lists", marks=pytest.mark.long(reason="as by the reaper, many steps")),
    ],
)
def test_a_client_that_dies_while_publishing_has_published_all_or_nothing(
    open_one: Open, clock: ManualClock, by: str
) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    outcomes = set()
    before: list[str] = []
    for step in range(STEPS_MAX):
        row = begin(catalog, id=f"w{step}")
        names = [f"p{step}.{n}" for n in range(3)]
        for name in [*names, f"loser{step}"]:
            stage(catalog, row, name)
        theirs, cql = open_one()
        killed = killed_at(cql, step, partial(theirs.writes.publish, row, names))
        found = catalog.writes.by_id(QUEUE_ID, row.id)
        assert found is not None
        outcomes.add((found.state, killed))
        clock.advance(HELP_MS / 1000 + 1)
        if found.state is OPEN:
            assert listed(catalog) == before
            assert catalog.writes.abort(row)
            catalog.writes.finish(row)
        elif by == "the reaper":
            catalog.writes.finish(row)
        if found.state is PUBLISHED:
            before += names
        assert listed(catalog) == before
        catalog.writes.finish(row)
        assert state_of(catalog, f"loser{step}") is PipeState.CONSUMED
        assert catalog.writes.unfinished() == []
        if not killed:
            break
    assert outcomes == {(OPEN, True), (PUBLISHED, True), (PUBLISHED, False)}


def test_a_client_that_dies_while_beginning_or_staging_leaves_what_can_be_aborted(
    open_one: Open, clock: ManualClock
) -> None:
    catalog, own = open_one()
    make_queue(catalog)
    ends = set()
    for step in range(STEPS_MAX):
        theirs, cql = open_one()

        def act(theirs: CassandraCatalog = theirs, name: str = f"p{step}") -> None:
            stage(theirs, begin(theirs), name)

        killed = killed_at(cql, step, act)
        row = begin(catalog, driver=f"younger{step:02}")
        assert catalog.writes.abort(row)
        catalog.writes.finish(row)
        ends.add(state_of(catalog, f"p{step}"))
        catalog.pipes.forget([f"p{step}"])
        assert listed(catalog) == []
        assert own.read("SELECT * FROM staged_pipes") == []
        assert own.read("SELECT * FROM pipes") == []
        if not killed:
            break
    assert ends == {None, PipeState.CONSUMED}
    clock.advance(NOTE_MS / 1000 + 1)
    assert catalog.writes.unfinished() == []


def test_a_step_without_an_answer_is_looked_up(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    for number, trouble in enumerate(["applied", "lost"]):
        cql.trouble = in_turn(trouble)
        row = catalog.writes.begin(wanted(number=number))
        if trouble == "lost":
            row = catalog.writes.begin(wanted(number=number))
        assert row is not None
        name = f"p{number}"
        stage(catalog, row, name)
        cql.trouble = in_turn(trouble)
        published = catalog.writes.publish(row, [name])
        assert published == (trouble == "applied")
        assert published or catalog.writes.publish(row, [name])
    assert listed(catalog) == ["p0", "p1"]


def test_winners_whose_listing_had_no_answer_are_listed_once(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    row = begin(catalog)
    names = [f"p{n}" for n in range(6)]
    for name in names:
        stage(catalog, row, name)
    cql.trouble = in_turn("", "applied", "lost", "", "lost")
    assert catalog.writes.publish(row, names)
    assert sorted(listed(catalog)) == names
    assert len(cql.read("SELECT * FROM queue_pipes")) == len(names)


def test_two_concurrent_listings_of_winners_list_each_once(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    row = begin(catalog)
    names = [f"p{n:03}" for n in range(100)]
    for name in names:
        stage(catalog, row, name, 1)
    theirs, cql = open_one()
    assert killed_at(cql, 5, partial(theirs.writes.publish, row, names))
    found = catalog.writes.by_id(QUEUE_ID, row.id)
    assert found is not None
    assert found.state is PUBLISHED
    other, others = open_one()
    helped = []

    def help_out() -> None:
        others.before_round = lambda: None
        helped.append(catalog.writes.finish(row))

    met = iter(range(1000))
    others.before_round = lambda: help_out() if next(met) == 5 else None
    other.writes.finish(row)
    assert helped
    assert listed(catalog) == names
    assert len(others.read("SELECT * FROM queue_pipes")) == len(names)


def test_listing_a_queue_does_a_bounded_part_of_the_work(
    open_one: Open, clock: ManualClock
) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    row = begin(catalog)
    names = [f"p{n:03}" for n in range(HELP_MOST + 10)]
    for name in names:
        stage(catalog, row, name, 1)
    theirs, cql = open_one()
    assert killed_at(cql, 5, partial(theirs.writes.publish, row, names))
    assert listed(catalog) == [], "who published is still at it, for all that is known"
    clock.advance(HELP_MS / 1000 + 1)
    assert listed(catalog) == names[:HELP_MOST]
    assert listed(catalog) == names
    default = group_row()
    assert [pipe.id for pipe in catalog.pipes.unclaimed(default, 999)] == names


def test_a_pipe_that_is_added_while_its_write_ends_is_removed(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    theirs, cql = open_one()
    added = []
    for step in range(STEPS_MAX):
        row = begin(catalog, id=f"w{step}")
        late = pipe_row(f"p{step}", state=PipeState.STAGED, stage=row.stage)
        met = iter(range(1000))

        def end(row=row, met=met, step=step) -> None:  # type: ignore[no-untyped-def]
            if next(met) == step:
                assert catalog.writes.publish(row, [])

        cql.rounds.clear()
        cql.before_round = end
        added.append(theirs.pipes.add(late))
        cql.before_round = lambda: None
        catalog.writes.finish(row)
        gone = state_of(catalog, f"p{step}") in (None, PipeState.CONSUMED)
        if cql.rounds.total() <= step:
            break
        assert gone, f"added when the write was over, in step {step}"
    assert added[0] is False
    assert added[-1] is True
    assert listed(catalog) == []


def test_of_a_write_that_is_over_nothing_is_left_but_its_row(
    open_one: Open, clock: ManualClock
) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    for number in range(3):
        # A name of its own: what is removed here hides what is noted in the next minute.
        row = begin(catalog, id="over", number=number)
        stage(catalog, row, f"p{number}")
        stage(catalog, row, f"loser{number}", None)
        assert catalog.writes.publish(row, [f"p{number}"])
    catalog.pipes.forget([f"loser{number}" for number in range(3)])
    later(cql, clock)
    assert catalog.writes.unfinished() == []
    assert noted(cql) == []
    ((winners, settled),) = cql.read("SELECT winners, settled FROM writes")
    assert (winners, settled) == (None, True)
    assert listed(catalog) == ["p0", "p1", "p2"]


def test_a_note_that_is_renewed_while_it_is_removed_stays(
    open_one: Open, clock: ManualClock
) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    assert catalog.writes.publish(begin(catalog, number=0), [])
    clock.advance(NOTE_MS / 1000 + 1)
    theirs, cql = open_one()
    rows = []

    def begin_the_next() -> None:
        if cql.rounds.total() == 2 and not rows:  # its row was read, and its note is to go
            rows.append(begin(catalog, number=1))

    cql.rounds.clear()
    cql.before_round = begin_the_next
    assert theirs.writes.unfinished([QUEUE_ID]) == []
    cql.before_round = lambda: None
    assert cql.rounds["write"] == 1
    assert theirs.writes.unfinished() == rows
    assert len(rows) == 1
