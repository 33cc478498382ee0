"""Fates: what became of each message of a pipe for a group, joined by seq. Pure.

Each fate is a set of seqs. Together they are to be exactly what the group was given of the pipe,
each seq once: what is in two of them, in none, or outside is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from cassq.inspect.stats import GroupStats, GroupView
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model.rows import Claim, ClaimState, PipeRow, Reason
from cassq.plurals import counted

# Of seqs that are amiss so many runs are named.
NAMED_MAX = 5
# Done, but not by a commit.
GONE = ("dead", *dict.fromkeys(reason.total for reason in Reason))
# Committed or gone.
DONE = "done"
_ADDED = ("pushed", "waiting", "delayed", "pending", "committed", "skipped", *GONE)
# What is one of these and gone is told of as both.
_ELSE = ("waiting", "pending", "skipped")
_OPEN = {ClaimState.HELD: "pending", ClaimState.FREE: "waiting"}


@dataclass(slots=True)
class Joined:
    """What became of the messages below `claimed`; from there on all are waiting, and were never
    delivered. findings: a part of a sentence for all that is amiss."""

    claimed: int = 0
    stats: GroupStats = field(default_factory=GroupStats)
    findings: list[str] = field(default_factory=list)


def joined(view: GroupView, now_ms: int) -> Joined:
    """Join what a group has of a pipe by seq. now_ms: catalog time."""
    found = Joined()
    if view.cursor is None:
        return found
    start, ack, chain = view.cursor.start, view.cursor.ack.seq, view.cursor.chain.seq
    found.claimed = found.stats.pushed = chain
    told: dict[str, list[RangeSet]] = {
        "skipped": [RangeSet.run(0, start)],
        DONE: [RangeSet.run(start, ack)],
        "dead": [RangeSet.of(sorted(move.seq for move in view.moves if move.settled))],
    }
    _add_rows(found, told, view.rows, now_ms)
    for removal in view.removed:
        told.setdefault(removal.reason.total, []).append(RangeSet.run(removal.start, removal.end))
    fates = _once(found, told)
    finished = fates.pop(DONE)
    fates["committed"] = finished - RangeSet.joined([fates.get(name, EMPTY) for name in GONE])
    for name, seqs in fates.items():
        setattr(found.stats, name, len(seqs))
    _cover(found, fates, finished, RangeSet.run(0, chain))
    return found


def _add_rows(
    found: Joined, told: dict[str, list[RangeSet]], rows: Sequence[Claim], now_ms: int
) -> None:
    stats = found.stats
    for row in rows:
        span = RangeSet.run(row.start, row.end)
        if row.state is ClaimState.DONE:
            told[DONE].append(span)
            continue
        if beyond := row.acked - span:
            found.findings.append(f"{named(beyond)} are acked outside the claim at {row.start}")
        told[DONE].append(row.acked & span)
        left = span - row.acked
        told.setdefault(_OPEN[row.state], []).append(left)
        if count := len(left):
            stats.deliveries[row.deliveries] = stats.deliveries.get(row.deliveries, 0) + count
        if row.state is ClaimState.FREE and row.due_ms > now_ms:
            stats.delayed += len(left)


def _once(found: Joined, told: dict[str, list[RangeSet]]) -> dict[str, RangeSet]:
    """The fates; what the rows of one have twice is a finding."""
    fates = {}
    for name, parts in told.items():
        fates[name] = RangeSet.joined(parts or [EMPTY])
        if twice := sum(map(len, parts)) - len(fates[name]):
            are = "is" if twice == 1 else "are"
            found.findings.append(f"{counted(twice, 'message')} {are} {name} twice")
    return fates


def _cover(found: Joined, fates: dict[str, RangeSet], finished: RangeSet, given: RangeSet) -> None:
    """Each seq of `given` has one fate, and nothing else has any."""
    together = RangeSet.joined(fates.values())
    if sum(map(len, fates.values())) != len(together):
        for (one, first), (other, second) in combinations(fates.items(), 2):
            if both := first & second:
                found.findings.append(f"{named(both)} are both {one} and {other}")
    if none := given - together:
        found.findings.append(f"{named(none)} have no fate: no claim row covers them")
    if outside := together - given:
        found.findings.append(f"{named(outside)} are settled, and were never claimed")
    done = RangeSet.joined([finished, *(fates.get(name, EMPTY) for name in _ELSE)])
    for name in GONE:
        if undone := (fates.get(name, EMPTY) & given) - done:
            found.findings.append(f"{named(undone)} are {name}, and are not done")


def named(seqs: RangeSet) -> str:
    """Seqs as a sentence has them: `seqs 3, 7-9`."""
    runs = [f"{a}" if a + 1 == b else f"{a}-{b - 1}" for a, b in seqs.ranges[:NAMED_MAX]]
    more = len(seqs.ranges) - len(runs)
    return f"seqs {', '.join(runs)}" + (f" and {more} runs more" if more else "")


def add(stats: GroupStats, found: Joined, pipe: PipeRow, count: int) -> None:
    """Add a pipe with `count` messages to what is known of its group."""
    mine, unclaimed = found.stats, max(0, count - found.claimed)
    for name in _ADDED:
        setattr(stats, name, getattr(stats, name) + getattr(mine, name))
    stats.pushed += count - found.claimed
    stats.waiting += unclaimed
    stats.delayed += unclaimed if pipe.timer_ms is not None else 0
    for times, messages in (*mine.deliveries.items(), (0, unclaimed)):
        if messages:
            stats.deliveries[times] = stats.deliveries.get(times, 0) + messages


def bounded(findings: Iterable[str], most: int) -> list[str]:
    """The first of many findings, and how many more there are."""
    told = list(findings)
    return told if len(told) <= most else [*told[:most], f"and {len(told) - most} more like these"]
