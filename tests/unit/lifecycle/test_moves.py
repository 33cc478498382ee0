"""Claims of movers: marked as such whatever becomes of them, until their move is finished."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.lifecycle.moves import HOLD_MS, held_by, removals
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, Reason, Removed
from tests.contract.rows import version

NOW_MS = 1_000
FREE = Claim("g", "p", 0, 10, 0, ClaimState.FREE, 700, 3, 1, version="v0", acked=RangeSet([(2, 4)]))
FAILED = replace(FREE, failure=claims.failure_record("rejected", 'no "moving" part', "c", 5))


@pytest.mark.parametrize("free", [FREE, FAILED], ids=["never failed", "failed"])
def test_what_a_mover_holds_is_not_a_delivery_and_is_given_back_as_it_was(free: Claim) -> None:
    held = held_by(free, "mover", NOW_MS, version)
    assert (held.state, held.holder, held.due_ms) == (ClaimState.HELD, "mover", NOW_MS + HOLD_MS)
    assert (held.deliveries, held.losses, held.acked) == (free.deliveries, free.losses, free.acked)
    assert claims.is_moving(held)
    back = claims.unmarked(replace(held, state=ClaimState.FREE, holder="", version=free.version))
    assert replace(back, failure="") == replace(free, failure="")
    assert not claims.is_moving(back)
    assert bool(back.failure) == bool(free.failure)


def test_an_error_that_speaks_of_moving_marks_nothing() -> None:
    assert not claims.is_moving(FAILED)
    assert claims.unmarked(FAILED) == FAILED


def test_an_expired_move_stays_marked_and_whole_and_is_doomed() -> None:
    held = held_by(replace(FREE, losses=9, deliveries=99), "mover", NOW_MS, version)
    (row,) = claims.freed(held, NOW_MS, NOW_MS + 5, 3, version)
    assert (row.start, row.end, row.state, row.holder) == (0, 10, ClaimState.FREE, "")
    assert claims.is_moving(row)
    assert claims.is_doomed(row)
    assert claims.unmarked(row).due_ms == FREE.due_ms


def test_taking_up_an_expired_move_keeps_its_due_time() -> None:
    held = held_by(FREE, "mover", NOW_MS, version)
    (row,) = claims.freed(held, NOW_MS, NOW_MS, 3, version)
    again = held_by(row, "another", NOW_MS, version)
    assert claims.unmarked(replace(again, state=ClaimState.FREE)).due_ms == FREE.due_ms


def test_what_is_doomed_stays_so_when_its_burier_dies() -> None:
    failure = claims.failure_record("rejected", "bad", "c", 5, doomed=True)
    held = replace(FREE, end=1, acked=RangeSet(), failure=failure, state=ClaimState.HELD)
    (row,) = claims.freed(held, NOW_MS, NOW_MS, 10, version)
    assert claims.is_doomed(row)
    assert row.state is ClaimState.FREE


def test_what_was_removed_is_reported_by_its_runs() -> None:
    seqs = RangeSet([(0, 2), (5, 6)])
    assert removals(FREE, seqs, Reason.PURGED, 9) == [
        Removed("g", "p", 0, 2, Reason.PURGED, 9),
        Removed("g", "p", 5, 6, Reason.PURGED, 9),
    ]
