"""The Catalog port: reservations of the next message of a pipe."""

from __future__ import annotations

from dataclasses import replace

from cassq.model import claims
from cassq.model.claims import as_owner, reservation, reserved
from cassq.model.rows import Claim, ClaimState, Cursor
from tests.contract.rows import DUE_MS, Consumer, place, version

HELD, DONE = ClaimState.HELD, ClaimState.DONE


def next_of(cursor: Cursor, seq: int) -> Claim:
    return reservation(cursor, place(seq), "me/2", DUE_MS, version, 3)


def reserve(consumer: Consumer) -> tuple[Cursor, Claim]:
    """Claim the first message and reserve the second; the cursor as its popper knows it now, and
    the claim reserved."""
    cursor = consumer.cursor
    row = claims.first(cursor, place(1), "me/1", DUE_MS, version)
    mine = next_of(cursor, 1)
    assert consumer.catalog.claims.claim(cursor, place(1), [row], reserve=mine)
    return replace(cursor, chain=place(1), epoch=cursor.epoch + 1), mine


def test_a_claim_reserves_the_next_message_in_the_same_step(
    consumer: Consumer, theirs: Consumer
) -> None:
    known, mine = reserve(consumer)
    assert theirs.cursor == replace(known, owner=as_owner(mine))
    assert reserved(theirs.cursor) == mine
    assert theirs.states == [(0, 1, HELD)], "what is reserved has no row"


def test_a_claim_prepared_before_a_reservation_is_refused(
    consumer: Consumer, theirs: Consumer
) -> None:
    consumer.claim(1)
    stale = theirs.cursor
    mine = next_of(stale, 1)
    fenced = consumer.catalog.claims.fence(consumer.cursor, as_owner(mine))
    assert fenced is not None
    late = claims.first(stale, place(5), "you", DUE_MS, version)
    assert not theirs.catalog.claims.claim(stale, place(5), [late])
    assert reserved(theirs.cursor) == mine


def test_what_was_handed_out_under_a_reservation_is_acked_and_the_next_reserved_in_one_step(
    consumer: Consumer, theirs: Consumer
) -> None:
    first = consumer.claim(1)
    assert consumer.finish(first)
    cursor = consumer.catalog.claims.fence(consumer.cursor, "")
    assert cursor is not None
    for seq in range(1, 4):
        mine = next_of(cursor, seq)
        done = claims.as_dead(mine, version)
        following = next_of(cursor, seq + 1)
        assert consumer.catalog.claims.claim(
            cursor, place(seq + 1), done, synced=True, reserve=following
        )
        cursor = replace(cursor, chain=place(seq + 1), ack=place(seq + 1), epoch=cursor.epoch + 1)
        assert theirs.cursor == replace(cursor, owner=as_owner(following))
        assert theirs.rows == []
        theirs.assert_covered()


def test_an_ack_under_a_reservation_behind_an_open_claim_leaves_a_done_row(
    consumer: Consumer, theirs: Consumer
) -> None:
    known, mine = reserve(consumer)
    assert consumer.catalog.claims.claim(known, place(2), claims.as_dead(mine, version))
    assert theirs.states == [(0, 1, HELD), (1, 2, DONE)]
    theirs.assert_covered()
    assert theirs.finish(theirs.rows[0])
    assert theirs.cursor.ack == place(2)


def test_another_s_claim_turns_a_reservation_into_a_row_of_its_popper(
    consumer: Consumer, theirs: Consumer
) -> None:
    known, mine = reserve(consumer)
    cursor = theirs.cursor
    row = claims.first(cursor, place(3), "you", DUE_MS, version)
    assert not theirs.catalog.claims.claim(cursor, place(3), [row])
    assert consumer.rows[1:] == [mine], "with one delivery counted"
    assert consumer.cursor.chain.seq == 2
    assert reserved(consumer.cursor) is None
    theirs.claim(1, holder="you")
    consumer.assert_covered()
    # Its popper's own write comes too late, but the row that is there now is still its own.
    assert not consumer.catalog.claims.claim(known, place(2), claims.as_dead(mine, version))
    assert consumer.finish(mine)


def test_a_reservation_is_given_back_by_its_popper(consumer: Consumer, theirs: Consumer) -> None:
    known, _ = reserve(consumer)
    stale = theirs.cursor
    assert consumer.catalog.claims.fence(known, "") is not None
    assert reserved(theirs.cursor) is None
    # Whoever still knows of it cannot turn it into a row any more.
    row = claims.first(stale, place(3), "you", DUE_MS, version)
    assert not theirs.catalog.claims.claim(stale, place(3), [row])
    assert theirs.states == [(0, 1, HELD)]
    assert theirs.claim(2, holder="you").start == 1


def test_its_popper_claims_more_than_it_reserved(consumer: Consumer, theirs: Consumer) -> None:
    known, _ = reserve(consumer)
    row = claims.first(known, place(9), "me/3", DUE_MS, version)
    assert consumer.catalog.claims.claim(known, place(9), [row])
    assert theirs.states == [(0, 1, HELD), (1, 9, HELD)]
    assert reserved(theirs.cursor) is None, "it is void once the chain has moved"


def test_a_reservation_does_not_keep_a_pipe_from_being_retired(
    consumer: Consumer, theirs: Consumer
) -> None:
    reserve(consumer)
    assert consumer.finish(consumer.rows[0])
    assert theirs.catalog.pipes.record_end("p", place(1)) == place(1)
    queue = theirs.catalog.queues.by_id("id of q")
    assert queue is not None
    assert theirs.catalog.pipes.retire(["p"], queue.groups_version)
