"""Claims in Cassandra: what they cost, without an answer, and side by side."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from cassq.base.clock import ManualClock
from cassq.cassandra.session import (
    IN_FLIGHT,
    WHOLE_AFTER,
    WHOLE_KEPT_MAX,
    WHOLE_MAX,
    Cql,
    Row,
    Statement,
)
from cassq.errors import (
    BackendError,
    BackendTimeoutError,
    BackendUnavailableError,
    CorruptionError,
)
from cassq.inspect.stats import view_of, views_of
from cassq.message.frames import Place
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.claims import ReturnedSeqs
from cassq.model.rows import Claim, ClaimState
from cassq.reaper import mend

pytest.importorskip("cassandra")

from cassandra.query import BatchStatement

from cassq.catalog.cassandra.partition.claim_rows import CLAIMS, MARK, PUT_MARK
from tests.contract.cassandra_place import CassandraPlace, processes
from tests.contract.rows import DUE_MS, Consumer, make_queue, move_row, pipe_row, place, version
from tests.contract.trouble import TroubledCql, in_turn, never, now_and_then

HELD, FREE, DONE = ClaimState.HELD, ClaimState.FREE, ClaimState.DONE
Open = Callable[[], tuple[Consumer, TroubledCql]]


@pytest.fixture
def open_consumer(cassandra_place: CassandraPlace) -> Iterator[Open]:
    """Desks at one (group, pipe), each in a process of its own, with its session."""
    opened: list[Consumer] = []
    with processes(cassandra_place, ManualClock(), TroubledCql) as connect:

        def open_one() -> tuple[Consumer, TroubledCql]:
            catalog, cql = connect()
            if not opened:
                make_queue(catalog)
                for pipe_id in ("p", "p2"):
                    assert catalog.pipes.add(pipe_row(pipe_id))
            opened.append(Consumer(catalog))
            return opened[-1], cql

        yield open_one


# --- what it costs ----------------------------------------------------------------------------


def test_one_popper_pays_one_conditional_batch_a_claim_and_one_an_ack(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    cursor = consumer.cursor
    cql.rounds.clear()
    for number in range(20):
        chain = place(cursor.chain.seq + 5)
        row = claims.first(cursor, chain, "me", DUE_MS, version)
        assert consumer.catalog.claims.claim(cursor, chain, [row])
        cursor = replace(cursor, chain=chain)
        assert cql.rounds == {"conditional": 2 * number + 1}
        assert consumer.finish(row)
        assert cql.rounds == {"conditional": 2 * number + 2}
    assert consumer.cursor.ack == consumer.cursor.chain == place(100)
    assert consumer.rows == []


def test_whatever_is_done_with_a_claim_costs_one_conditional_batch(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    rows = [consumer.claim(5) for _ in range(4)]
    cql.rounds.clear()
    assert consumer.catalog.claims.replace(rows[1], consumer.acked(rows[1], 5, 10))
    assert consumer.catalog.claims.replace(rows[2], consumer.freed(rows[2]))
    (later,) = claims.extended(rows[3], 99_999, version)
    assert consumer.catalog.claims.replace(rows[3], [later])
    assert consumer.finish(rows[0])
    assert cql.rounds == {"conditional": 4}
    cursor = consumer.cursor
    cql.rounds.clear()
    assert consumer.catalog.claims.fence(cursor, "me") is not None
    assert cql.rounds == {"conditional": 1}
    assert consumer.states == [(10, 15, FREE), (15, 20, HELD)]


def test_many_replacements_cost_one_conditional_batch_a_pipe(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), elsewhere.claim(5), consumer.claim(5), elsewhere.claim(5)]
    cql.rounds.clear()
    changes = [(row, consumer.acked(row, row.start, row.end)) for row in rows]
    assert consumer.catalog.claims.replace_many(changes) == [True] * 4
    assert cql.rounds == {"conditional": 2}
    assert cql.together == [2], "side by side"


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_a_batch_without_an_answer_among_several_is_looked_up(
    open_consumer: Open, trouble: str
) -> None:
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), elsewhere.claim(5)]
    cql.rounds.clear()
    cql.trouble = in_turn(trouble)
    changes = [(row, consumer.acked(row, row.start, row.end)) for row in rows]
    assert consumer.catalog.claims.replace_many(changes) == [True] * 2
    assert cql.rounds["conditional"] == (2 if trouble == "applied" else 3)
    for pipe_id in ("p", "p2"):
        assert Consumer(theirs.catalog, pipe_id=pipe_id).cursor.ack == place(5)


def test_of_several_batches_one_that_stays_without_an_answer_leaves_all_in_doubt(
    open_consumer: Open,
) -> None:
    consumer, cql = open_consumer()
    elsewhere = Consumer(consumer.catalog, pipe_id="p2")
    rows = [consumer.claim(5), elsewhere.claim(5)]
    cql.trouble = in_turn("lost", "", "lost", "lost", "lost")
    changes = [(row, consumer.acked(row, row.start, row.end)) for row in rows]
    with pytest.raises(BackendError) as caught:
        consumer.catalog.claims.replace_many(changes)
    assert caught.value.outcome_unknown
    assert consumer.states == [(0, 5, HELD)]
    assert elsewhere.cursor.ack == place(5), "the others go on"
    assert consumer.catalog.claims.replace_many(changes) == [True, False]


def test_several_pipes_are_fenced_in_one_round_and_read_in_one(open_consumer: Open) -> None:
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    pipe_ids = ["p", "p2"]
    known = [each for each in consumer.catalog.claims.cursors_in("q/default", pipe_ids) if each]
    claimed = [Consumer(theirs.catalog, pipe_id=pipe_id).claim(5) for pipe_id in pipe_ids]
    cql.rounds.clear()
    fenced = consumer.catalog.claims.fence_all(known, "me")
    assert [cursor and cursor.chain for cursor in fenced] == [place(5)] * 2
    assert cql.together == [2]
    cql.rounds.clear()
    assert consumer.catalog.claims.rows_in("q/default", pipe_ids) == [[row] for row in claimed]
    assert cql.rounds == {"read": 1}


def test_the_views_of_several_pipes_are_read_in_three_rounds(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    catalog, pipe_ids = consumer.catalog, ["p2", "p"]
    for pipe_id in pipe_ids:
        Consumer(catalog, pipe_id=pipe_id).claim(5)
    pipes = [pipe for pipe in map(catalog.pipes.by_id, pipe_ids) if pipe is not None]
    cursors = {cursor.pipe_id: cursor for cursor in catalog.claims.cursors("q/default")}
    cql.rounds.clear()
    found = list(views_of(catalog, "q/default", pipes, cursors))
    assert cql.rounds == {"read": 3}
    assert found == [view_of(catalog, "q/default", each, cursors[each]) for each in pipe_ids]
    assert [len(view.rows) for view in found] == [1, 1]


def test_a_lost_race_for_the_chain_costs_nothing_more(open_consumer: Open) -> None:
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    cursor = consumer.cursor
    theirs.claim(3)
    row = claims.first(cursor, place(5), "me", DUE_MS, version)
    cql.rounds.clear()
    assert not consumer.catalog.claims.claim(cursor, place(5), [row])
    assert cql.rounds == {"conditional": 1}


def test_two_poppers_on_one_pipe_ack_without_reading(open_consumer: Open) -> None:
    """As long as each acks what does not stand before or behind what the other has acked."""
    (consumer, cql), (theirs, their_cql) = open_consumer(), open_consumer()
    mine, yours = consumer.claim(5), theirs.claim(5)
    cql.rounds.clear()
    assert consumer.finish(mine)
    assert cql.rounds == {"conditional": 1}
    assert consumer.cursor.ack == place(5)
    mine = consumer.claim(5)
    cql.rounds.clear()
    assert consumer.finish(mine)
    assert theirs.states == [(5, 10, HELD), (10, 15, DONE)]
    their_cql.rounds.clear()
    assert theirs.finish(yours)
    assert their_cql.rounds["conditional"] <= 2
    assert theirs.cursor.ack == place(15)
    assert theirs.rows == []


def test_what_is_due_costs_one_round_of_reads_or_none(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    rows = [
        consumer.claim(1, due_ms=100),
        Consumer(consumer.catalog, pipe_id="p2").claim(1, due_ms=200),
    ]
    assert consumer.catalog.claims.due("q/default", 200, 9) == rows
    cql.rounds.clear()
    for now_ms, found in ((200, rows), (100, rows[:1]), (99, [])):
        assert consumer.catalog.claims.due("q/default", now_ms, 9) == found
        assert consumer.catalog.claims.next_due_ms("q/default") == 100
        assert cql.rounds.total() <= 1
        cql.rounds.clear()


def test_what_others_free_is_seen_after_a_while(open_consumer: Open) -> None:
    (consumer, _), (theirs, _) = open_consumer(), open_consumer()
    row = theirs.claim(1, due_ms=9_000)
    assert consumer.catalog.claims.due("q/default", 500, 9) == []
    (free,) = theirs.freed(row, 500)
    assert theirs.catalog.claims.replace(row, [free])
    clock = consumer.catalog._keyspace.clock  # type: ignore[attr-defined]
    clock.advance(0.1)
    assert consumer.catalog.claims.due("q/default", 500, 9) == [free]


def test_thousands_of_rows_are_claimed_at_once(open_consumer: Open) -> None:
    """As of a timer pipe of delayed messages."""
    consumer, cql = open_consumer()
    cursor = consumer.cursor
    runs = [(n, n + 1, place(n).pos, 1000 + n) for n in range(4096)]
    rows = claims.scheduled(cursor, runs, version)
    cql.rounds.clear()
    assert consumer.catalog.claims.claim(cursor, place(4096), rows)
    assert cql.rounds == {"conditional": 1}
    assert consumer.rows == rows
    cql.rounds.clear()
    changes = [(row, claims.as_dead(row, version)) for row in rows[:1000]]
    assert consumer.catalog.claims.replace_many(changes) == [True] * 1000
    assert cql.rounds == {"conditional": 2}
    assert consumer.cursor.ack == place(1000)


def test_done_rows_of_several_poppers_do_not_pile_up(open_consumer: Open) -> None:
    """None of them knows the others' when it writes; behind a claim that takes long."""
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    stuck = consumer.claim(1)
    rows = [(each, each.claim(1)) for _ in range(30) for each in (consumer, theirs)]
    for each, row in rows:
        assert each.finish(row)
    assert len(cql.read(CLAIMS, ("q/default", "p", 0))) > 30
    assert theirs.states == [(0, 1, HELD), (1, 61, DONE)]
    assert theirs.finish(theirs.claim(1))
    assert theirs.states == [(0, 1, HELD), (1, 62, DONE)]
    assert len(cql.read(CLAIMS, ("q/default", "p", 0))) <= 4
    assert consumer.finish(stuck)
    assert theirs.cursor.ack == place(62)
    assert theirs.rows == []


# --- without an answer ------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_a_claim_without_an_answer_is_made_once(open_consumer: Open, trouble: str) -> None:
    consumer, cql = open_consumer()
    cursor = consumer.cursor
    row = claims.first(cursor, place(5), "me", DUE_MS, version)
    cql.trouble = in_turn(trouble)
    assert consumer.catalog.claims.claim(cursor, place(5), [row])
    assert consumer.rows == [row]
    assert consumer.cursor.chain == place(5)


@pytest.mark.parametrize(
    "trouble", [("applied",), ("lost",), ("lost", "applied"), ("lost", "lost")]
)
def test_an_ack_without_an_answer_counts(open_consumer: Open, trouble: tuple[str, ...]) -> None:
    consumer, cql = open_consumer()
    row, other_row = consumer.claim(5), consumer.claim(5)
    cql.trouble = in_turn(*trouble)
    assert consumer.finish(row)
    assert consumer.cursor.ack == place(5)
    cql.trouble = in_turn(*trouble)
    assert consumer.catalog.claims.replace_many([(other_row, consumer.acked(other_row, 6, 7))]) == [
        True
    ]
    assert consumer.rows[0].acked == RangeSet([(6, 7)])


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_a_fence_without_an_answer_is_raised_once(open_consumer: Open, trouble: str) -> None:
    consumer, cql = open_consumer()
    before = consumer.cursor
    cql.trouble = in_turn(trouble)
    assert (
        consumer.catalog.claims.fence(before, "me")
        == replace(before, epoch=1, owner="me")
        == consumer.cursor
    )


def test_a_cursor_that_was_closed_since_it_was_read_is_not_fenced(open_consumer: Open) -> None:
    """Its pipe is about to move: its owner is the mark by which it is reopened if that fails."""
    (consumer, _), (theirs, _) = open_consumer(), open_consumer()
    before, key = consumer.cursor, ("q/default", "p")
    cursors = theirs.catalog.claims._cursors  # type: ignore[attr-defined]
    assert cursors.close(key, "a mark")
    assert consumer.catalog.claims.fence(before, "me") is None
    cursors.open_all([key[0]], key[1], "a mark")
    assert consumer.cursor == before
    assert consumer.catalog.claims.fence(before, "me") == replace(before, epoch=1, owner="me")


@pytest.mark.parametrize("trouble", ["applied", "lost"])
def test_an_intent_without_an_answer_stands(open_consumer: Open, trouble: str) -> None:
    consumer, cql = open_consumer()
    held = consumer.claim(3)
    cql.trouble = in_turn(trouble)
    assert consumer.catalog.claims.intend(move_row(0, 10), held=held) == move_row(0, 10)
    cql.trouble = in_turn(trouble)
    again = move_row(0, 11)
    assert consumer.catalog.claims.intend(again, move_row(0, 10), held=held) == again
    cql.trouble = in_turn(trouble)
    assert consumer.catalog.claims.intend_many([move_row(1, 12)], held)
    assert consumer.catalog.claims.moves("q/default", "p") == [again, move_row(1, 12)]


def test_an_ack_is_known_although_others_have_left_no_trace_of_it(open_consumer: Open) -> None:
    """It was applied, and before that is looked up all around it was acked, and removed."""
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    front, mine = theirs.claim(5), consumer.claim(5)
    cql.trouble = in_turn("applied")
    cql.before_reading = in_turn_do(lambda: theirs.finish(front))
    assert consumer.finish(mine)
    assert consumer.rows == []
    assert consumer.cursor.ack == place(10)


def test_an_ack_that_was_lost_is_refused_when_the_claim_was_taken_meanwhile(
    open_consumer: Open,
) -> None:
    """Whoever has the claim now may have handed it out: this popper has lost it."""
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    row = consumer.claim(5)
    cql.trouble = in_turn("lost")
    cql.before_reading = in_turn_do(lambda: theirs.finish(row))
    assert not consumer.finish(row)


def test_a_write_that_cannot_be_read_back_has_an_unknown_outcome(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    row = consumer.claim(5)

    def fail() -> None:
        raise BackendTimeoutError("no answer came")

    cql.trouble, cql.before_reading = in_turn("applied"), fail
    with pytest.raises(BackendError) as caught:
        consumer.finish(row)
    assert caught.value.outcome_unknown
    cql.before_reading = lambda: None
    assert consumer.cursor.ack == place(5)
    assert consumer.rows == []


def test_a_server_that_never_answers_leaves_the_outcome_unknown(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    row = consumer.claim(5)
    cql.trouble = lambda: "lost"
    with pytest.raises(BackendError) as caught:
        consumer.finish(row)
    assert caught.value.outcome_unknown
    cql.trouble = never
    assert consumer.finish(row)


@pytest.mark.parametrize("seqs", [None, range(5)])
def test_after_an_unknown_outcome_claims_are_read_with_what_was_begun(
    open_consumer: Open, seqs: range | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of which a minority knows is finished, or never will be, before anybody goes on."""
    consumer, cql = open_consumer()
    row = consumer.claim(5)
    cql.trouble = lambda: "lost"
    with pytest.raises(BackendError):
        consumer.finish(row)
    cql.trouble = never
    read_many, linearized = cql.read_many, list[bool]()

    def noted(statements: Iterable[Statement], *, serial: bool = False) -> list[list[Row]]:
        linearized.append(serial)
        return read_many(statements, serial=serial)

    monkeypatch.setattr(cql, "read_many", noted)
    for _ in range(2):
        assert consumer.catalog.claims.rows(row.group_id, row.pipe_id, seqs) == [row]
    assert linearized == [True, False]


def in_turn_do(act: Callable[[], object]) -> Callable[[], None]:
    """Once."""
    left = [act]

    def do() -> None:
        if left:
            left.pop()()

    return do


@pytest.mark.parametrize("answer", ["", "applied", "lost"])
def test_a_waiter_that_does_not_know_that_it_is_first_finds_out(
    open_consumer: Open, answer: str
) -> None:
    """What is done and in front would never be looked at again."""
    (consumer, cql), (theirs, _) = open_consumer(), open_consumer()
    front, mine = theirs.claim(5), consumer.claim(5)
    last = theirs.claim(5)
    assert theirs.finish(front)
    cql.trouble = in_turn(answer)
    assert consumer.finish(mine)
    assert theirs.states == [(10, 15, HELD)]
    assert theirs.cursor.ack == place(10)
    assert theirs.finish(last)
    assert consumer.cursor.ack == place(15)


def test_claiming_done_messages_moves_the_ack_offset_past_them(open_consumer: Open) -> None:
    """Expired messages are claimed as done rows, by who may know little of what stands there."""
    (consumer, _), (theirs, _) = open_consumer(), open_consumer()
    front = theirs.claim(5)
    cursor = consumer.cursor
    assert theirs.finish(front)
    row = claims.first(cursor, place(8), "me", DUE_MS, version)
    assert consumer.catalog.claims.claim(cursor, place(8), claims.as_dead(row, version))
    assert theirs.cursor.ack == theirs.cursor.chain == place(8)
    assert theirs.rows == []


# --- side by side -----------------------------------------------------------------------------


class Popper(threading.Thread):
    """Claims, acks, gives back and takes at random; what it was told is done is noted."""

    def __init__(self, consumer: Consumer, seed: int, steps: int) -> None:
        super().__init__()
        self._consumer = consumer
        self._chance = random.Random(seed)
        self._steps = steps
        self._name = f"popper {seed}"
        self._held: list[Claim] = []
        self.acked = EMPTY
        self.claimed: list[tuple[int, int]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self._steps):
                self._step()
        except BaseException as exc:
            self.failure = exc

    def _step(self) -> None:
        draw = self._chance.random()
        if draw < 0.3 or not self._held:
            self._claim()
        elif draw < 0.4:
            self._take_free()
        else:
            self._change(self._held.pop(self._chance.randrange(len(self._held))))

    def _claim(self) -> None:
        cursor = self._consumer.cursor
        chain = place(cursor.chain.seq + self._chance.randint(1, 12))
        row = claims.first(cursor, chain, self._name, DUE_MS, version)
        if self._consumer.catalog.claims.claim(cursor, chain, [row]):
            self._held.append(row)
            self.claimed.append((row.start, row.end))

    def _take_free(self) -> None:
        free = [row for row in self._consumer.rows if row.state is FREE]
        if free:
            row = self._chance.choice(free)
            until = Place(row.start + self._chance.randint(1, 5), row.pos)
            mine, rows = claims.taken(row, until, self._name, DUE_MS, version)
            if self._consumer.catalog.claims.replace(row, rows):
                self._held.append(mine)

    def _change(self, row: Claim) -> None:
        start = self._chance.randint(row.start, row.end - 1)
        part = RangeSet([(start, self._chance.randint(start + 1, row.end))])
        draw = self._chance.random()
        acks = EMPTY
        if draw < 0.2:
            new = self._consumer.freed(row)
        elif draw < 0.4:
            acks = RangeSet.run(row.start, start)
            new = claims.resolved(row, acks, [ReturnedSeqs(part, DUE_MS, 1)], version)
        else:
            acks = part if draw < 0.6 else row.left
            new = claims.resolved(row, acks, [], version)
        # Nobody takes a held claim here, so it is ours until we say otherwise.
        (done,) = self._consumer.catalog.claims.replace_many([(row, new)])
        assert done
        self.acked |= acks
        self._held += [each for each in new if each.state is HELD]


@pytest.mark.parametrize("often", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_poppers_do_side_by_side_no_ack_is_lost(
    open_consumer: Open, seed: int, often: float
) -> None:
    poppers = []
    for number in range(3):
        consumer, cql = open_consumer()
        own_seed = 100 * seed + number
        cql.trouble = now_and_then(random.Random(own_seed), often)
        poppers.append(Popper(consumer, own_seed, 60))
    for popper in poppers:
        popper.start()
    for popper in poppers:
        popper.join(120)
        assert not popper.is_alive()
        if popper.failure is not None:
            raise popper.failure
    runs = sorted(run for popper in poppers for run in popper.claimed)
    assert all(end == start for (_, end), (start, _) in pairwise(runs))
    consumer, _ = open_consumer()
    acked = RangeSet.joined(popper.acked for popper in poppers)
    done = RangeSet.run(0, consumer.cursor.ack.seq)
    at = consumer.cursor.ack.seq
    assert not consumer.rows or consumer.rows[0].state is not DONE
    for row in consumer.rows:
        assert row.start == at
        done |= RangeSet.run(row.start, row.end) if row.state is DONE else row.acked
        at = row.end
    assert at == consumer.cursor.chain.seq == runs[-1][1]
    assert done == acked
    for row in consumer.rows:
        if row.state is not DONE:
            assert consumer.catalog.claims.replace(row, claims.as_dead(row, version))
    assert consumer.rows == []
    assert consumer.cursor.ack == consumer.cursor.chain


# --- claims that do not cover what they must ----------------------------------------------------


DROP = "DELETE FROM claims WHERE group_id = 'q/default' AND pipe_id = 'p' AND kind = 0 AND seq = ?"
STRETCH = (
    "UPDATE claims SET end_seq = ? WHERE group_id = 'q/default' AND pipe_id = 'p' AND kind = 0"
    " AND seq = ?"
)


def mended(consumer: Consumer) -> bool:
    """Mend what this process sees, as the reaper does."""
    cursor, rows = consumer.cursor, consumer.rows
    planned = mend.mended(
        cursor, rows, EMPTY, {}, lambda start, end, pos: [(start, end, pos, 0)], version, 100
    )
    return consumer.catalog.claims.mend(cursor, rows, planned.rows, planned.chain)


def test_gaps_and_overlaps_are_seen_and_mended_once(open_consumer: Open) -> None:
    consumer, cql = open_consumer()
    rows = [consumer.claim(5) for _ in range(6)]
    assert consumer.finish(rows[2])
    assert consumer.finish(rows[4])
    cql.write(DROP, (5,))
    cql.write(STRETCH, (23, 15))
    other, _ = open_consumer()
    queue_id = "id of q"
    assert other.catalog.claims.wedged([queue_id]) == [("q/default", "p")]
    assert other.catalog.claims.wedged() == [("q/default", "p")]
    cursor, before = consumer.cursor, consumer.rows
    assert mended(other)
    assert not consumer.catalog.claims.mend(
        cursor, before, before, cursor.chain
    )  # another was faster
    assert other.assert_covered() == RangeSet([(10, 15), (23, 25)])
    assert other.cursor.epoch == 1
    states = [(start, end, state) for start, end, state in consumer.states if state is not DONE]
    assert states == [(0, 5, HELD), (5, 10, FREE), (15, 23, HELD), (25, 30, HELD)]
    assert other.catalog.claims.wedged([queue_id]) == []
    assert consumer.finish(rows[5])  # what was whole stays as it was
    assert consumer.finish(rows[0])
    for row in consumer.rows:
        if row.state is not DONE:
            assert consumer.finish(row)
    assert consumer.cursor.ack == consumer.cursor.chain == place(30)


def test_an_ack_in_front_of_a_gap_ends_in_an_error_that_says_what_to_do(
    open_consumer: Open,
) -> None:
    consumer, cql = open_consumer()
    rows = [consumer.claim(5) for _ in range(3)]
    cql.write(DROP, (5,))
    other, _ = open_consumer()
    (front, back) = other.rows
    with pytest.raises(CorruptionError, match="no claim row covers seq 5") as caught:
        other.catalog.claims.replace(front, other.acked(front, 0, 5))
    assert "cassq reap" in caught.value.hint
    fine = Consumer(other.catalog, pipe_id="p2")
    second = fine.claim(5)
    changes = [(row, claims.resolved(row, row.left, [], version)) for row in (front, second)]
    assert other.catalog.claims.replace_many(changes) == [
        False,
        True,
    ]  # it costs no other pipe its ack
    assert mended(other)
    assert other.finish(front)
    assert other.finish(other.rows[0])
    assert other.finish(back)
    assert other.cursor.ack == place(15)
    assert rows


# --- batches that are prepared as a whole -----------------------------------------------------


def move_chain(
    before: int | None, after: int, marks: int = 1, pipe_id: str = "p"
) -> list[Statement]:
    """A batch that moves a chain, if it is where it is thought to be, and leaves some marks."""
    text = "UPDATE claims SET chain_seq = ? WHERE group_id = ? AND pipe_id = ? IF chain_seq = ?"
    mark = f"{before} to {after}"
    written = [(PUT_MARK, (mark, "g", pipe_id, writer)) for writer in range(marks)]
    return [(text, (after, "g", pipe_id, before)), *written]


@pytest.fixture
def own(cassandra_place: CassandraPlace) -> Iterator[Cql]:
    """A session of its own: what was prepared stays with it."""
    contact = cassandra_place.keyspace.cql.contact
    session = Cql(contact, ManualClock(), keyspace=contact.keyspace)
    yield session
    session.close()


def test_a_batch_that_is_sent_often_is_prepared_and_refused_as_before(own: Cql) -> None:
    assert isinstance(own.batch(move_chain(None, 0)), BatchStatement)
    assert own.apply_batch(move_chain(None, 0))
    for seq in range(WHOLE_AFTER + 2):
        assert not own.apply_batch(move_chain(seq + 1, seq + 2))
        assert own.apply_batches([move_chain(seq, seq + 1)]) == [True]
        assert own.read(MARK, ("g", "p", 0)) == [(f"{seq} to {seq + 1}",)]
    whole = own.batch(move_chain(0, 0))
    assert not isinstance(whole, BatchStatement)
    assert whole.kind == ("conditional write", "claims")
    assert not whole.is_idempotent, "it is not sent to a second server"
    for _ in range(WHOLE_AFTER + 2):
        assert isinstance(own.batch(move_chain(0, 0, marks=WHOLE_MAX)), BatchStatement)


def test_of_several_batches_one_that_is_not_sent_leaves_known_what_became_of_the_others(
    own: Cql, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, batch = list[int](), own.batch

    def failing(statements: Sequence[Statement]) -> Any:
        made.append(len(made))
        if len(made) == IN_FLIGHT + 1:
            raise BackendUnavailableError("no server could prepare it")
        return batch(statements)

    monkeypatch.setattr(own, "batch", failing)
    batches = [move_chain(None, 0, pipe_id=f"p{number}") for number in range(IN_FLIGHT + 2)]
    *before, failed, last = own.answers_of(batches)
    assert before == [True] * IN_FLIGHT
    assert isinstance(failed, BackendUnavailableError)
    assert last is True


def test_many_kinds_of_batches_are_not_all_prepared(own: Cql) -> None:
    for seq in range(WHOLE_KEPT_MAX):
        text = f"UPDATE claims SET chain_seq = {seq} WHERE group_id = ? AND pipe_id = ?"
        own.batch([(text, ("g", "p"))])
    for _ in range(WHOLE_AFTER + 2):
        assert isinstance(own.batch(move_chain(0, 0)), BatchStatement)
