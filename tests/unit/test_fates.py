"""What became of each message: joined by seq, each message has one fate, or it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cassq.inspect.stats import GroupStats, GroupView, add_pipe
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor, Move, PipeRow, PipeState, Reason, Removed
from cassq.spark.jobs.fates import Joined, add, bounded, joined, named

HELD, FREE, DONE = ClaimState
PIPE = PipeRow("p", "q", PipeState.SEALED, "me", 0, 1000, end=Place(40, 100))
CURSOR = Cursor("g", "p", ack=Place(10, 0), chain=Place(30, 0), start=2)


def claim(start: int, end: int, state: ClaimState, *acked: int, due_ms: int = 0) -> Claim:
    return Claim("g", "p", start, end, 0, state, due_ms, 1, acked=RangeSet.of(acked))


def removed(start: int, end: int, reason: Reason = Reason.PURGED) -> Removed:
    return Removed("g", "p", start, end, reason, 0)


def dead(seq: int, *, settled: bool = True) -> Move:
    return Move("g", "p", seq, "rejected", "d", seq, 0, settled)


ROWS = (
    claim(10, 15, HELD, 11, 12),
    claim(15, 20, DONE),
    claim(20, 24, FREE, 23, due_ms=99),
    claim(24, 30, FREE),
)
MOVES = (dead(3), dead(11), dead(21, settled=False))
REMOVED = (removed(4, 6), removed(16, 18, Reason.EXPIRED))
VIEW = GroupView(CURSOR, ROWS, MOVES, REMOVED)


def test_messages_are_counted_by_what_became_of_them_as_statistics_do() -> None:
    found = joined(VIEW, 50)
    assert (found.findings, found.claimed) == ([], 30)
    mine, theirs = GroupStats(), GroupStats()
    add(mine, found, PIPE, 40)
    add_pipe(theirs, PIPE, 40, VIEW, 50)
    assert mine == theirs
    assert (mine.dead, mine.purged, mine.expired, mine.skipped, mine.delayed) == (2, 2, 2, 2, 3)


def test_of_a_pipe_that_a_group_has_not_begun_all_is_waiting() -> None:
    stats = GroupStats()
    add(stats, joined(GroupView(None), 0), replace(PIPE, timer_ms=5), 40)
    assert (stats.waiting, stats.delayed, stats.pushed) == (40, 40, 40)
    assert joined(GroupView(None), 0) == Joined()


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"rows": ROWS[:-1]}, "seqs 24-29 have no fate: no claim row covers them"),
        ({"rows": (*ROWS[:1], *ROWS[2:]), "removed": ()}, "seqs 15-19 have no fate"),
        ({"rows": (*ROWS, claim(28, 30, HELD))}, "seqs 28-29 are both waiting and pending"),
        ({"rows": (*ROWS, claim(24, 26, FREE))}, "2 messages are waiting twice"),
        ({"rows": (*ROWS, claim(9, 10, DONE))}, "1 message is done twice"),
        ({"rows": (claim(10, 15, HELD, 11, 36), *ROWS[1:])}, "seqs 36 are acked outside the claim"),
        ({"rows": (*ROWS, claim(30, 31, DONE))}, "seqs 30 are settled, and were never claimed"),
        ({"moves": (*MOVES, dead(5))}, "seqs 5 are both dead and purged"),
        ({"moves": (*MOVES, dead(24))}, "seqs 24 are both dead and waiting"),
        ({"moves": (*MOVES, dead(33))}, "seqs 33 are settled, and were never claimed"),
        ({"moves": (*MOVES, dead(1))}, "seqs 1 are both skipped and dead"),
        ({"removed": (*REMOVED, removed(5, 7))}, "1 message is purged twice"),
        ({"removed": (*REMOVED, removed(13, 14))}, "seqs 13 are both pending and purged"),
        ({"rows": (*ROWS[:1], *ROWS[2:])}, "seqs 16-17 are expired, and are not done"),
    ],
)
def test_what_does_not_fit_is_told_by_its_seqs(change: dict[str, object], finding: str) -> None:
    found = joined(VIEW._replace(**change), 50)
    told = [set(each.split(" are both ")[-1].split(" and ")) for each in found.findings]
    both = finding.split(" are both ")
    if len(both) == 2:  # in either order
        assert any(each.startswith(both[0]) for each in found.findings)
        assert set(both[1].split(" and ")) in told
    else:
        assert any(each.startswith(finding) for each in found.findings), found.findings


def test_of_much_that_is_amiss_the_first_is_named() -> None:
    assert named(RangeSet.of([1, 2, 3, 7])) == "seqs 1-3, 7"
    assert named(RangeSet.of(range(0, 20, 2))) == "seqs 0, 2, 4, 6, 8 and 5 runs more"
    assert bounded(["a", "b"], 2) == ["a", "b"]
    assert bounded(["a", "b", "c"], 1) == ["a", "and 2 more like these"]
