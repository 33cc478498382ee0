"""What retired pipes held, in Cassandra: sums that are written once a block, and cost the same
however many pipes there were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest

from cassq.base.clock import ManualClock
from cassq.model.rows import Retired, summed

pytest.importorskip("cassandra")

from cassq.cassandra.session import Row, Statement
from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.partition.pipe_rows import MOVE_TOTALS, Pipe, Total, totals_text
from cassq.catalog.cassandra.pipes.totals import BLOCK_PIPES
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.rows import groups_version, make_queue, pipe_row, place
from tests.contract.trouble import Killed, TroubledCql, in_turn, never

Q, GROUP = "id of q", "q/default"
ENOUGH = 2 * BLOCK_PIPES  # for a block to be closed, most likely with some to spare
STEPS_MAX = 60


class CountingCql(TroubledCql):
    """Counts the rows that are read, too."""

    rows = 0

    def read_many(
        self, statements: Iterable[Statement], *, serial: bool = False
    ) -> list[list[Row]]:
        found = super().read_many(statements, serial=serial)
        self.rows += sum(map(len, found))
        return found


Open = Callable[[], tuple[CassandraCatalog, CountingCql]]


@pytest.fixture
def open_one(cassandra_place: CassandraPlace) -> Iterator[Open]:
    """Catalogs as processes of their own have them."""
    with processes(cassandra_place, ManualClock(), CountingCql) as connect:
        yield connect


def copy_many(catalog: CassandraCatalog, pipes: int, first: int = 0) -> None:
    """Copy what pipes held, as if they had been retired."""
    for number in range(first, first + pipes):
        row = Retired(f"old {number:06}", GROUP, Q, 1, 10 + number, 2, 3, 4, 5)
        total = Total(row, catalog.pipes._totals.likely_block(Q))
        catalog.pipes._totals.copy(Pipe(pipe_row(row.pipe_id), "", (total,)))


def assert_balanced(catalog: CassandraCatalog, pipes: int) -> None:
    sums = catalog.pipes.retired_sums(Q)
    assert set(sums) == set(summed(catalog.pipes.retired(Q)))
    assert {row.pipes for row in sums} == {pipes}


def test_sums_cost_the_same_however_many_pipes_were_retired(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    rounds, rows = [], []
    for number in range(4):
        copy_many(catalog, BLOCK_PIPES, number * BLOCK_PIPES)
        other, cql = open_one()
        cql.rows = 0
        cql.rounds.clear()
        other.pipes.retired_sums(Q)
        rounds.append(cql.rounds.total())
        rows.append(cql.rows)
    assert_balanced(catalog, 4 * BLOCK_PIPES)
    assert max(rounds) <= 5
    assert max(rows) <= 3 * BLOCK_PIPES
    assert catalog.pipes._totals._open_rows(Q)[0] >= 2, "blocks were closed"


def test_the_totals_of_one_pipe_are_found_without_reading_the_others(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    copy_many(catalog, ENOUGH)
    other, cql = open_one()
    cql.rows = 0
    (found,) = other.pipes.retired(Q, "old 000007")
    assert found.pushed == 17
    assert cql.rows <= 2
    cql.rows = 0
    assert other.pipes.retired(Q, "never") == []
    assert cql.rows == 0


@pytest.mark.long(reason="a client dies at each of many steps, as in the test of two clients")
def test_totals_too_late_for_a_block_go_into_the_next_once(open_one: Open) -> None:
    """Whatever step whoever retires was killed at: others have filled the block meanwhile."""
    catalog, _ = open_one()
    make_queue(catalog)
    done = 0
    for step in range(STEPS_MAX):
        pipe_id = f"p{step}"
        assert catalog.pipes.add(pipe_row(pipe_id))
        assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
        theirs, cql = open_one()
        seen = groups_version(theirs)
        cql.rounds.clear()
        cql.kill_at = step
        try:
            theirs.pipes.retire([pipe_id], seen)
            killed = False
        except Killed:
            killed = True
        if pipe_id in {row.id for row in catalog.pipes.live(Q)}:
            assert catalog.pipes.retire([pipe_id], groups_version(catalog))
        elif killed and not done:
            copy_many(catalog, ENOUGH)
            done = ENOUGH
            assert catalog.pipes._totals._open_rows(Q)[0] > 0, (
                "the block it was to come into is closed"
            )
        late, _ = open_one()
        assert_balanced(late, done + step + 1)
        late.pipes.forget([pipe_id])
        assert_balanced(late, done + step + 1)
        if not killed:
            break
    assert done


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_a_copy_without_an_answer_counts_once(open_one: Open, trouble: str) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    for number in range(3):
        pipe_id = f"p{number}"
        assert catalog.pipes.add(pipe_row(pipe_id))
        assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
        # The mark, the groups' version and the end of the pipe come before the copy.
        cql.trouble = in_turn("", "", "", trouble)
        assert catalog.pipes.retire([pipe_id], groups_version(catalog))
        cql.trouble = never
        assert_balanced(catalog, number + 1)
        catalog.pipes.forget([pipe_id])
    assert_balanced(catalog, 3)


def test_a_block_with_the_totals_of_one_pipe_is_not_taken_for_that_of_another(
    open_one: Open,
) -> None:
    """It was closed when it had those of one of two that are copied together."""
    (catalog, _), (slow, _) = open_one(), open_one()
    make_queue(catalog)
    pipes: list[Pipe] = []
    for number in range(2):
        row = Retired(f"p{number}", GROUP, Q, 0, 3, 0)
        pipe = pipe_row(row.pipe_id)
        assert catalog.pipes.add(pipe)
        pipes.append(Pipe(pipe, "", (Total(row, slow.pipes._totals.likely_block(Q)),)))
        values = (totals_text(pipes[-1].totals), row.pipe_id, "")
        assert catalog.pipes._cql.apply_many([(MOVE_TOTALS, values)]) == [True]
    catalog.pipes._totals.copy(pipes[0])
    copy_many(catalog, ENOUGH)
    slow.pipes._totals.copy_all(pipes)
    assert_balanced(slow, ENOUGH + 2)


def test_two_clients_that_copy_the_same_totals_count_them_once(open_one: Open) -> None:
    """One of them with the block it was to come into before that was closed."""
    (catalog, _), (slow, _) = open_one(), open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    assert catalog.pipes.record_end("p", place(0)) == place(0)
    assert catalog.pipes.retire(["p"], groups_version(catalog))
    pipe = slow.pipes._rows.pipes.by_id("p")
    assert pipe is not None
    copy_many(catalog, ENOUGH)
    slow.pipes._totals.copy(pipe)
    assert_balanced(slow, ENOUGH + 1)
    catalog.pipes.forget(["p"])
    slow.pipes._totals.copy(pipe)
    assert_balanced(slow, ENOUGH + 1)
