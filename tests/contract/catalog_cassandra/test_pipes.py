"""Pipes in Cassandra: whoever ends in the middle of a step leaves nothing that others cannot go on
from, and no two of them get in each other's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cassq.base.clock import ManualClock
from cassq.errors import BackendError
from cassq.model import claims
from cassq.model.rows import PipeState, Retired, WriteRow, WriteState

pytest.importorskip("cassandra")

from cassq.catalog.cassandra import CassandraCatalog
from cassq.catalog.cassandra.partition.consumed import NOTE_CONSUMED
from cassq.catalog.cassandra.partition.pipe_records import MARK_MS
from cassq.catalog.port import pipe_lock
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.keyspaces import tables_of
from tests.contract.rows import (
    DUE_MS,
    Consumer,
    group_row,
    groups_version,
    make_group,
    make_queue,
    move_row,
    pipe_row,
    place,
    version,
)
from tests.contract.trouble import Killed, TroubledCql, in_turn

Q, LETTERS = "id of q", "q~default~dead"
Open = Callable[[], tuple[CassandraCatalog, TroubledCql]]
STEPS_MAX = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_one(cassandra_place: CassandraPlace, clock: ManualClock) -> Iterator[Open]:
    """Catalogs as processes of their own have them."""
    with processes(cassandra_place, clock, TroubledCql) as connect:
        yield connect


def killed_at(cql: TroubledCql, step: int, act: Callable[[], object]) -> bool:
    """Whether the process ended before this step of an act; else it is done."""
    cql.rounds.clear()
    cql.kill_at = step
    try:
        act()
    except Killed:
        return True
    return False


def finish(catalog: CassandraCatalog, pipe_id: str, count: int, group: str = "q/default") -> None:
    consumer = Consumer(catalog, group, pipe_id)
    assert consumer.finish(consumer.claim(count))


def totals(queue: str, pipe_id: str, pushed: int, **counts: int) -> Retired:
    return Retired(pipe_id, f"{queue}/default", f"id of {queue}", 0, pushed, 0, **counts)


# --- retiring ---------------------------------------------------------------------------------


def test_a_pipe_that_is_gone_leaves_its_totals_and_nothing_else(
    open_one: Open, cassandra_place: CassandraPlace
) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    finish(catalog, "p", 3)
    assert catalog.pipes.record_end("p", place(3)) == place(3)
    assert catalog.pipes.retire(["p"], groups_version(catalog))
    catalog.pipes.forget(["p"])
    mine = sorted(name for name, table in tables_of(cql).items() if "pipe_id" in table.columns)
    left = [name for name in mine if cql.read(f"SELECT * FROM {name}")]
    assert left == ["retired", "retired_places"]


def test_a_client_that_dies_while_retiring_leaves_a_pipe_or_its_totals(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    outcomes = set()
    for step in range(STEPS_MAX):
        pipe_id = f"p{step}"
        assert catalog.pipes.add(pipe_row(pipe_id))
        finish(catalog, pipe_id, 3)
        assert catalog.pipes.record_end(pipe_id, place(3)) == place(3)
        theirs, cql = open_one()
        seen = groups_version(theirs)
        killed = killed_at(cql, step, partial(theirs.pipes.retire, [pipe_id], seen))
        live = pipe_id in {row.id for row in catalog.pipes.live(Q)}
        assert catalog.pipes.retired(Q, pipe_id) == ([] if live else [totals("q", pipe_id, 3)])
        outcomes.add((live, killed))
        if live:
            assert catalog.pipes.retire([pipe_id], groups_version(catalog))
        assert pipe_id in {row.id for row in catalog.pipes.consumed()}
        catalog.pipes.forget([pipe_id])
        assert catalog.pipes.retired(Q, pipe_id) == [totals("q", pipe_id, 3)]
        assert catalog.claims.cursors("q/default") == []
        assert catalog.pipes.by_id(pipe_id) is None
        assert catalog.pipes.consumed() == []
        if not killed:
            break
    assert outcomes == {(True, True), (False, True), (False, False)}


@pytest.mark.parametrize("strict", [False, True])
def test_a_client_that_dies_while_retiring_pipes_leaves_each_live_or_gone(
    open_one: Open, strict: bool
) -> None:
    catalog, _ = open_one()
    make_queue(catalog, consistency="cp" if strict else "ap")
    retired_before, last = 0, ""
    for step in range(STEPS_MAX):
        pipe_ids = [f"p{step}a", f"p{step}b"]
        for pipe_id in pipe_ids:
            assert catalog.pipes.add(pipe_row(pipe_id, predecessor=last))
            assert catalog.pipes.record_end(pipe_id, place(3)) == place(3)
            finish(catalog, pipe_id, 3)
            last = pipe_id if strict else ""
        theirs, cql = open_one()
        seen = groups_version(theirs)
        killed = killed_at(cql, step, partial(theirs.pipes.retire, pipe_ids, seen))
        live = [row.id for row in catalog.pipes.live(Q)]
        assert live in ([], pipe_ids, pipe_ids[1:])
        assert catalog.pipes.retire(pipe_ids, groups_version(catalog)) == live
        retired_before += 2
        assert [(sums.pipes, sums.pushed) for sums in catalog.pipes.retired_sums(Q)] == [
            (retired_before, 3 * retired_before)
        ] * 2
        catalog.pipes.forget(pipe_ids)
        for pipe_id in pipe_ids:
            assert catalog.pipes.retired(Q, pipe_id) == [totals("q", pipe_id, 3)]
        assert catalog.claims.cursors("q/default") == []
        assert catalog.pipes.consumed() == []
        if not killed:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("at", [0, 3])
def test_a_pipe_whose_predecessor_could_not_be_retired_with_it_stays(
    open_one: Open, at: int
) -> None:
    """The predecessor was not marked, or its last step had no answer and was not done."""
    catalog, cql = open_one()
    make_queue(catalog, consistency="cp")
    pipe_ids = ["p1", "p2"]
    for before, pipe_id in zip(["", "p1"], pipe_ids, strict=True):
        assert catalog.pipes.add(pipe_row(pipe_id, predecessor=before))
        assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
    cql.trouble = in_turn(*[""] * at, "lost")
    assert catalog.pipes.retire(pipe_ids, groups_version(catalog)) == []
    assert [row.id for row in catalog.pipes.live(Q)] == pipe_ids
    assert catalog.pipes.retire(pipe_ids, groups_version(catalog)) == pipe_ids


def test_what_a_retired_pipe_left_is_cleared_away_once(open_one: Open) -> None:
    """As it is retired; when its row is removed, only another client does so again, or
    for a group that came in between."""
    catalog, cql = open_one()
    other, others_cql = open_one()
    make_queue(catalog)
    for pipe_id in ("p1", "p2"):
        assert catalog.pipes.add(pipe_row(pipe_id))
        assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
    assert catalog.pipes.retire(["p1", "p2"], groups_version(catalog)) == ["p1", "p2"]
    make_group(other, "late")
    cql.rounds.clear()
    others_cql.rounds.clear()
    catalog.pipes.forget(["p1"])
    other.pipes.forget(["p2"])
    assert cql.rounds["conditional"] == 2, "the row, and what a group had that came later"
    assert others_cql.rounds["conditional"] == 4, "the row, its totals, what either group had"


@pytest.mark.parametrize(("consistency", "exclusive"), [("ap", True), ("cp", False)])
def test_the_locks_of_a_retired_pipe_go_with_it(
    open_one: Open, consistency: str, exclusive: bool
) -> None:
    catalog, _ = open_one()
    make_queue(catalog, consistency=consistency)
    group = group_row("ordered", exclusive=exclusive)
    assert catalog.queues.create_group(group, {}, groups_version(catalog))
    assert catalog.pipes.add(pipe_row("p"))
    lock = pipe_lock(group.id, "p")
    assert catalog.leases.take(lock, "a popper", 1000)
    catalog.leases.drop(lock, "a popper")
    assert catalog.pipes.record_end("p", place(0)) == place(0)
    assert catalog.pipes.retire(["p"], groups_version(catalog)) == ["p"]
    other, _ = open_one()
    assert other.leases.take(lock, "another", 1000) == 1, "nothing is known of it"


def test_a_client_that_dies_while_forgetting_a_pipe_leaves_its_totals(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    for step in range(STEPS_MAX):
        pipe_id = f"p{step}"
        assert catalog.pipes.add(pipe_row(pipe_id))
        assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
        assert catalog.pipes.retire([pipe_id], groups_version(catalog))
        theirs, cql = open_one()
        killed = killed_at(cql, step, partial(theirs.pipes.forget, [pipe_id]))
        assert catalog.pipes.retired(Q, pipe_id) == [totals("q", pipe_id, 0)]
        catalog.pipes.forget([pipe_id])
        assert catalog.pipes.by_id(pipe_id) is None
        assert catalog.pipes.live(Q) == catalog.pipes.consumed() == []
        assert not catalog.pipes.has_any(Q)
        if not killed:
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("step", range(4, 14))
def test_a_group_that_comes_while_a_pipe_is_retired_has_all_of_it_or_none(
    open_one: Open, step: int
) -> None:
    """It comes between two steps of who retires; what it sees of the pipe then it gets."""
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    finish(catalog, "p", 3)
    assert catalog.pipes.record_end("p", place(3)) == place(3)
    theirs, _ = open_one()
    seen = groups_version(catalog)
    saw: list[bool] = []

    def come() -> None:
        if cql.rounds.total() == step and not saw:
            saw.append(False)
            late = make_group(theirs, "late")
            cursor = theirs.claims.cursor(late.id, "p")
            if cursor is not None:
                saw[0] = True
                row = claims.first(cursor, place(3), "late", DUE_MS, version)
                assert theirs.claims.claim(cursor, place(3), [row])

    cql.before_round = come
    cql.rounds.clear()
    retired = bool(catalog.pipes.retire(["p"], seen))
    cql.before_round = lambda: None
    if not saw:
        assert retired
        return
    assert retired is not saw[0], "it has it, or it is gone"
    live = "p" in {row.id for row in theirs.pipes.live(Q)}
    assert live is saw[0]
    if live:
        (row,) = theirs.claims.rows("q/late", "p")
        assert Consumer(theirs, "q/late", "p").finish(row)
        assert theirs.pipes.retire(["p"], groups_version(theirs))
    pushed = {row.group_id: row.pushed for row in theirs.pipes.retired(Q)}
    assert pushed == {"q/default": 3} | ({"q/late": 3} if live else {})


@pytest.mark.parametrize("trouble", ["applied", "lost"])
@pytest.mark.parametrize("at", range(3))
def test_a_step_of_retiring_without_an_answer_is_not_guessed(
    open_one: Open, trouble: str, at: int
) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    assert catalog.pipes.record_end("p", place(0)) == place(0)
    cql.trouble = in_turn(*[""] * at, trouble)
    retired = catalog.pipes.retire(["p"], groups_version(catalog))
    assert (catalog.pipes.live(Q) == []) is (retired == ["p"])
    if not retired:
        assert catalog.pipes.retire(["p"], groups_version(catalog))
    assert catalog.pipes.retired(Q) == [totals("q", "p", 0)]


# --- going to another queue ---------------------------------------------------------------------


@pytest.mark.long(reason="each step of a client on a server")
def test_a_client_that_dies_while_giving_a_pipe_away_leaves_it_in_one_queue(
    open_one: Open, clock: ManualClock
) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    make_queue(catalog, LETTERS)
    letters_id, group = f"id of {LETTERS}", f"{LETTERS}/default"
    outcomes = set()
    for step in range(STEPS_MAX):
        pipe_id = f"dead{step}"
        row = pipe_row(pipe_id, LETTERS, state=PipeState.SEALED, end=place(10))
        assert catalog.pipes.add(row)
        assert catalog.claims.cursor(group, pipe_id) is not None
        theirs, cql = open_one()
        killed = killed_at(cql, step, partial(theirs.pipes.repoint, pipe_id, Q, "q/default"))
        queues = [queue for queue in (Q, letters_id) if catalog.pipes.live(queue)]
        assert len(queues) == 1
        left = queues == [letters_id]
        outcomes.add((left, killed))
        merged = totals(LETTERS, pipe_id, 10, merged=10)
        assert catalog.pipes.retired(letters_id, pipe_id) == ([] if left else [merged])
        clock.advance(MARK_MS / 1000)
        mine = group if left else "q/default"
        yours = "q/default" if left else group
        assert catalog.claims.cursor(yours, pipe_id) is None
        finish(catalog, pipe_id, 10, mine)
        name = LETTERS if left else "q"
        assert catalog.pipes.retire([pipe_id], groups_version(catalog, name))
        catalog.pipes.forget([pipe_id])
        assert catalog.pipes.live(Q) == catalog.pipes.live(letters_id) == []
        gone = [totals(LETTERS, pipe_id, 10)] if left else [merged]
        assert catalog.pipes.retired(letters_id, pipe_id) == gone
        assert catalog.pipes.retired(Q, pipe_id) == ([] if left else [totals("q", pipe_id, 10)])
        if not killed:
            break
    assert outcomes == {(True, True), (False, True), (False, False)}


def test_a_pipe_that_stays_after_all_can_be_claimed_from(open_one: Open) -> None:
    """One of two groups has claimed: the other's cursor was closed, and is opened again."""
    catalog, _ = open_one()
    make_queue(catalog)
    make_queue(catalog, LETTERS)
    second = make_group(catalog, "second", LETTERS)
    row = pipe_row("dead", LETTERS, state=PipeState.SEALED, end=place(10))
    assert catalog.pipes.add(row)
    first = Consumer(catalog, f"{LETTERS}/default", "dead")
    before = first.cursor
    Consumer(catalog, second.id, "dead").claim(1)
    assert not catalog.pipes.repoint("dead", Q, "q/default")
    assert first.cursor == before
    assert first.finish(first.claim(10))


@pytest.mark.parametrize("step", range(2, 22, 2))
def test_claiming_while_a_pipe_is_given_away_keeps_it_or_gets_nothing(
    open_one: Open, step: int
) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    make_queue(catalog, LETTERS)
    row = pipe_row("dead", LETTERS, state=PipeState.SEALED, end=place(10))
    assert catalog.pipes.add(row)
    theirs, _ = open_one()
    group = f"{LETTERS}/default"
    early = theirs.claims.cursor(group, "dead") if step % 4 else None
    claimed: list[bool] = []

    def come() -> None:
        if cql.rounds.total() == step and not claimed:
            claimed.append(False)
            cursor = early or theirs.claims.cursor(group, "dead")
            if cursor is not None:
                claim = claims.first(cursor, place(10), "late", DUE_MS, version)
                claimed[0] = theirs.claims.claim(cursor, place(10), [claim])

    cql.before_round = come
    cql.rounds.clear()
    given = catalog.pipes.repoint("dead", Q, "q/default")
    cql.before_round = lambda: None
    assert given is not (claimed == [True])
    assert [row.id for row in theirs.pipes.live(Q)] == ["dead"] * given
    if not given:
        (held,) = theirs.claims.rows(group, "dead")
        assert Consumer(theirs, group, "dead").finish(held)


# --- sealing ----------------------------------------------------------------------------------


def test_the_time_of_a_seal_stays_that_of_the_recorded_end(open_one: Open) -> None:
    """What is written to the row afterwards does not change it, and it is true for staged pipes."""
    catalog, cql = open_one()
    make_queue(catalog)
    make_queue(catalog, LETTERS)
    write = catalog.writes.begin(WriteRow(Q, "w", 0, 0, WriteState.OPEN, "driver", 0))
    assert write is not None
    assert catalog.pipes.add(pipe_row("dead", LETTERS))
    assert catalog.pipes.add(pipe_row("staged", state=PipeState.STAGED, stage=write.stage))
    ids = ["dead", "staged"]
    assert catalog.pipes.sealed_ms(ids) == {}
    for pipe_id in ids:
        assert catalog.pipes.record_end(pipe_id, place(3))
    sealed_ms = catalog.pipes.sealed_ms(ids)
    assert sealed_ms.keys() == set(ids)
    assert catalog.pipes.repoint("dead", Q, "q/default")
    assert catalog.pipes.record_end("dead", place(9)) == place(3)
    cql.rounds.clear()
    assert catalog.pipes.sealed_ms(ids) == sealed_ms
    assert cql.rounds.total() == 1


# --- coming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", ["ap", "cp"])
def test_a_client_that_dies_while_adding_a_pipe_leaves_none_or_one(
    open_one: Open, consistency: str
) -> None:
    catalog, _ = open_one()
    make_queue(catalog, consistency=consistency)
    tail = ""
    for step in range(STEPS_MAX):
        pipe_id = f"p{step}"
        row = pipe_row(pipe_id, predecessor=tail)
        theirs, cql = open_one()
        killed = killed_at(cql, step, partial(theirs.pipes.add, row))
        there = [each.id for each in catalog.pipes.live(Q) if each.id == pipe_id]
        assert (catalog.pipes.by_id(pipe_id) is not None) is bool(there)
        queue = catalog.queues.by_id(Q)
        assert queue is not None
        if there:
            assert catalog.pipes.record_end(pipe_id, place(0)) == place(0)
        if consistency == "cp":
            assert queue.tail in (tail, pipe_id)
            tail = queue.tail
        if not killed:
            assert there
            return
    raise AssertionError("it never came to an end")


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_a_pipe_added_without_an_answer_is_there(open_one: Open, trouble: str) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    cql.trouble = in_turn(trouble)
    assert catalog.pipes.add(pipe_row("p"))
    assert [row.id for row in catalog.pipes.live(Q)] == ["p"]


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_an_end_recorded_without_an_answer_is_the_end(open_one: Open, trouble: str) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    cql.trouble = in_turn(trouble, trouble)
    assert catalog.pipes.record_end("p", place(4)) == place(4)
    assert catalog.pipes.record_end("p", place(5)) == place(4)


def test_a_pipe_added_to_a_queue_that_is_just_deleted_is_gone(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    theirs, _ = open_one()
    deleted: list[bool] = []

    def delete() -> None:
        if cql.rounds["conditional"] == 0 and cql.rounds["write"] == 2 and not deleted:
            deleted.append(True)
            theirs.queues.delete(Q)

    cql.before_round = delete
    cql.rounds.clear()
    assert not catalog.pipes.add(pipe_row("p"))
    assert deleted
    assert catalog.pipes.by_id("p") is None
    theirs.queues.forget(Q)
    assert theirs.queues.by_id(Q) is None


def test_a_client_that_dies_while_making_a_cursor_leaves_one_that_others_can_use(
    open_one: Open,
) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    for step in range(STEPS_MAX):
        pipe_id = f"p{step}"
        assert catalog.pipes.add(pipe_row(pipe_id))
        theirs, cql = open_one()
        killed = killed_at(cql, step, partial(theirs.claims.cursor, "q/default", pipe_id))
        finish(catalog, pipe_id, 2)
        if not killed:
            return
    raise AssertionError("it never came to an end")


def test_a_cursor_made_in_a_pipe_that_just_went_is_taken_back(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    assert catalog.pipes.record_end("p", place(0)) == place(0)
    theirs, _ = open_one()
    gone: list[bool] = []

    def retire() -> None:
        if cql.rounds["write"] == 1 and not gone:
            gone.append(True)
            assert theirs.pipes.retire(["p"], groups_version(theirs))

    cql.before_round = retire
    cql.rounds.clear()
    assert catalog.claims.cursor("q/default", "p") is None
    assert gone
    assert catalog.claims.cursors("q/default") == []


# --- what arrives -----------------------------------------------------------------------------


def test_a_pipe_waits_for_what_was_announced_until_that_is_old(
    open_one: Open, clock: ManualClock
) -> None:
    """A mover may have ended between the announcement and its move; or he is about to write it."""
    catalog, cql = open_one()
    make_queue(catalog)
    for pipe_id in ("p", "dead"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    assert catalog.pipes.record_end("dead", place(0)) == place(0)
    held = Consumer(catalog).claim(1)
    assert killed_at(cql, 1, lambda: catalog.claims.intend_many([move_row(0, 9)], held))
    cql.kill_at = None
    assert not catalog.pipes.retire(["dead"], groups_version(catalog))
    clock.advance(61)
    assert catalog.pipes.retire(["dead"], groups_version(catalog))


def test_a_withdrawn_move_keeps_no_pipe(open_one: Open) -> None:
    catalog, _ = open_one()
    make_queue(catalog)
    for pipe_id in ("p", "dead"):
        assert catalog.pipes.add(pipe_row(pipe_id))
    assert catalog.pipes.record_end("dead", place(0)) == place(0)
    consumer = Consumer(catalog)
    held = consumer.claim(1)
    assert catalog.claims.intend_many([move_row(0, 9)], held)
    assert not catalog.pipes.retire(["dead"], groups_version(catalog))
    assert catalog.claims.replace(held, consumer.acked(held, 0, 1), withdraw=[move_row(0, 9)])
    assert catalog.pipes.retire(["dead"], groups_version(catalog))


def test_the_hint_of_a_pipe_that_is_not_consumed_is_harmless(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    for n in range(16):
        cql.write(NOTE_CONSUMED, (n, "p"))
        cql.write(NOTE_CONSUMED, (n, "unknown"))
    assert catalog.pipes.consumed() == []
    assert catalog.pipes.retired(Q) == []
    catalog.pipes.forget(["p", "unknown"])
    assert [row.id for row in catalog.pipes.live(Q)] == ["p"]


def test_a_retirer_without_an_answer_raises(open_one: Open) -> None:
    catalog, cql = open_one()
    make_queue(catalog)
    assert catalog.pipes.add(pipe_row("p"))
    assert catalog.pipes.record_end("p", place(0)) == place(0)

    def fail() -> None:
        raise BackendError("no answer came")

    cql.trouble, cql.before_reading = in_turn("", "", "applied"), fail
    with pytest.raises(BackendError):
        catalog.pipes.retire(["p"], groups_version(catalog))
    cql.before_reading = lambda: None
    assert catalog.pipes.live(Q) == []
    assert catalog.pipes.retired(Q) == [totals("q", "p", 0)]
