"""The Catalog port: dedup ids, and removals that come with a claim or a replaced row."""

from __future__ import annotations

from dataclasses import replace

from cassq.catalog.port import Catalog
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.rows import ClaimState, Dedup, Reason, Removed
from tests.contract.rows import Consumer, place, version

ROW = Dedup("id of q", "a", "p", 5, at_ms=100)


# --- dedup ids ----------------------------------------------------------------------------------


def test_the_first_intent_of_an_id_stays(catalog: Catalog, other: Catalog) -> None:
    assert catalog.records.dedup(ROW) == ROW
    assert other.records.dedup(replace(ROW, seq=9)) == ROW
    assert catalog.records.dedup(ROW, replace(ROW, seq=9)) == ROW


def test_an_intent_is_replaced_only_by_a_writer_that_names_it(
    catalog: Catalog, other: Catalog
) -> None:
    catalog.records.dedup(ROW)
    mine, theirs = replace(ROW, pipe_id="mine"), replace(ROW, pipe_id="theirs")
    assert catalog.records.dedup(mine, ROW) == mine
    assert other.records.dedup(theirs, ROW) == mine
    assert other.records.dedup(theirs, mine) == theirs


def test_an_intent_is_found_by_its_id(catalog: Catalog, other: Catalog) -> None:
    assert catalog.records.find_dedup(ROW.queue_id, "a") is None
    catalog.records.dedup(ROW)
    moved = replace(ROW, pipe_id="q", seq=7)
    assert other.records.find_dedup(ROW.queue_id, "a") == ROW
    catalog.records.dedup(moved, ROW)
    assert other.records.find_dedup(ROW.queue_id, "a") == moved
    assert other.records.find_dedup(ROW.queue_id, "b") is None
    assert other.records.find_dedup("id of r", "a") is None


def test_many_intents_are_written_all_or_none(catalog: Catalog, other: Catalog) -> None:
    rows = [replace(ROW, dedup_id=name, seq=seq) for seq, name in enumerate("abc")]
    assert catalog.records.dedup_many(rows[:2], {}) == []
    assert catalog.records.dedup_many(rows[:2], {}) == [], "it is there already, and ours"
    anew = [replace(row, pipe_id="new") for row in rows]
    assert other.records.dedup_many(anew, {"a": rows[0]}) == [rows[1]]
    assert other.records.dedup_many(anew, {"a": rows[1], "b": rows[0]}) == rows[:2]
    assert catalog.records.dedup(rows[2]) == rows[2], "none of them was written"
    assert [catalog.records.dedup(row) for row in anew] == rows
    assert other.records.dedup_many(anew, {row.dedup_id: row for row in rows}) == []
    assert [catalog.records.dedup(row) for row in rows] == anew


def test_ids_are_of_their_queue(catalog: Catalog) -> None:
    catalog.records.dedup(ROW)
    elsewhere = replace(ROW, queue_id="id of r", seq=7)
    assert catalog.records.dedup(elsewhere) == elsewhere


def test_what_is_older_is_forgotten_and_nothing_else(catalog: Catalog) -> None:
    for name, at_ms in (("old", 99), ("new", 100)):
        catalog.records.dedup(replace(ROW, dedup_id=name, at_ms=at_ms))
    catalog.records.dedup(replace(ROW, queue_id="id of r", at_ms=1))
    assert catalog.records.forget_dedups("id of q", 100) == 1
    assert catalog.records.forget_dedups("id of q", 100) == 0
    anew = replace(ROW, seq=9)
    assert catalog.records.dedup(replace(anew, dedup_id="old")).seq == 9
    assert catalog.records.dedup(replace(anew, dedup_id="new")).seq == 5
    assert catalog.records.dedup(replace(anew, queue_id="id of r")).seq == 5


# --- removals -----------------------------------------------------------------------------------


def a_removal(start: int, end: int, reason: Reason = Reason.EXPIRED) -> Removed:
    return Removed("q/default", "p", start, end, reason, at_ms=7)


def test_what_is_removed_at_the_chain_s_end_is_done_at_once(
    consumer: Consumer, other: Catalog
) -> None:
    cursor = consumer.cursor
    row = claims.first(cursor, place(10), "", 0, version)
    done = replace(row, state=ClaimState.DONE)
    assert consumer.catalog.claims.claim(cursor, place(10), [done], removed=[a_removal(0, 10)])
    assert (consumer.cursor.ack, consumer.cursor.chain) == (place(10), place(10))
    assert consumer.rows == []
    assert other.claims.removed("q/default", "p") == [a_removal(0, 10)]


def test_a_removal_behind_what_is_held_waits_for_it(consumer: Consumer) -> None:
    held = consumer.claim(5)
    cursor = consumer.cursor
    row = replace(claims.first(cursor, place(9), "", 0, version), state=ClaimState.DONE)
    assert consumer.catalog.claims.claim(cursor, place(9), [row], removed=[a_removal(5, 9)])
    assert consumer.cursor.ack.seq == 0
    consumer.assert_covered()
    assert consumer.finish(held)
    assert consumer.cursor.ack.seq == 9


def test_a_claim_that_was_too_late_removes_nothing(consumer: Consumer) -> None:
    cursor = consumer.cursor
    consumer.claim(5)
    row = replace(claims.first(cursor, place(5), "", 0, version), state=ClaimState.DONE)
    assert not consumer.catalog.claims.claim(cursor, place(5), [row], removed=[a_removal(0, 5)])
    assert consumer.catalog.claims.removed("q/default", "p") == []


def test_messages_are_removed_out_of_the_middle_of_a_row(consumer: Consumer) -> None:
    held = consumer.claim(10)
    (free,) = consumer.freed(held)
    assert consumer.catalog.claims.replace(held, [free])
    gone = RangeSet([(2, 4), (6, 7)])
    rows = claims.resolved(free, gone, (), version)
    facts = [a_removal(2, 4, Reason.PURGED), a_removal(6, 7, Reason.PURGED)]
    assert consumer.catalog.claims.replace(free, rows, removed=facts)
    (left,) = consumer.rows
    assert (left.state, left.acked) == (ClaimState.FREE, gone)
    assert consumer.catalog.claims.removed("q/default", "p") == facts
    assert not consumer.catalog.claims.replace(free, rows, removed=[a_removal(8, 9)])
    assert consumer.catalog.claims.removed("q/default", "p") == facts
