"""The ledger: the state of a pipe's messages for a group, which is decided only here. Pure.

Each message of a pipe has one *fate* for each group, which the catalog's rows for the two decide.
Messages below the cursor's `start` were never for the group; those below `ack` are done; those from
`chain` on were never claimed; claim rows cover the rest, each seq once, and say whether it is done,
held or free. Settled moves and removals say which of the done messages were not committed. So the
fates of `[0, end)` are a partition of it.

`tally` counts; its cost depends on the number of rows, not on how many messages they cover.
`unfinished`, `done_of` and `fates` say which messages have which fate. If rows contradict each
other, because they are damaged or were not read at one moment, `faults` names the seqs.

Two things need more than the rows. A claim past its deadline stays pending until it is taken over:
`is_held` says whether its holder may still be working. And only the frame of a delayed message says
when it is due: until a popper has read the frame, the message counts as delayed.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations
from typing import NamedTuple

from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor, Move, Removed, Retired, RetiredSum
from cassq.plurals import counted

# How many runs of seqs at fault are named.
NAMED_MAX = 5


class Fate(enum.StrEnum):
    """The fate of a message for a group."""

    SKIPPED = "skipped"  # pushed before the group's start: it never gets it
    COMMITTED = "committed"  # acked
    DEAD = "dead"  # moved to the group's dead letters
    EXPIRED = "expired"  # older than the age limit
    PURGED = "purged"  # deleted, or cancelled before it was delivered
    MERGED = "merged"  # a dead letter that is back in its queue
    LOST = "lost"  # damaged, and given up by a command
    PENDING = "pending"  # claimed and not acked
    WAITING = "waiting"  # not claimed, or given back: the next popper may get it
    DELAYED = "delayed"  # the same, but not due yet


# Done, but not by a commit.
GONE = (Fate.DEAD, Fate.EXPIRED, Fate.PURGED, Fate.MERGED, Fate.LOST)
UNFINISHED = (Fate.WAITING, Fate.PENDING, Fate.DELAYED)
# For the loop over rows: looking a member up in its enum costs as much as the rest of the loop.
_WAITING, _PENDING, _DELAYED = UNFINISHED
_HELD, _FREE, _DONE = ClaimState


class GroupView(NamedTuple):
    """The catalog's rows for a group and a pipe. cursor: None if the group has not begun."""

    cursor: Cursor | None
    rows: Sequence[Claim] = ()
    moves: Sequence[Move] = ()
    removed: Sequence[Removed] = ()


class Unfinished(NamedTuple):
    """Messages that are not done for a group, all with the same fate.

    messages: how many. row: their claim; None: they were never claimed, and start at `chain`.
    """

    fate: Fate
    messages: int
    row: Claim | None = None
    chain: Place = Place(0, 0)

    @property
    def start(self) -> Place:
        """Where to start reading them: at or before the first."""
        return self.chain if self.row is None else Place(self.row.start, self.row.pos)

    @property
    def seqs(self) -> RangeSet:
        """Their seqs."""
        if self.row is not None:
            return self.row.left
        return RangeSet.run(self.chain.seq, self.chain.seq + self.messages)

    @property
    def runs(self) -> list[tuple[Place, int]]:
        """Their contiguous runs: where each begins, and the seq after its last."""
        pos = self.start.pos
        return [(Place(start, pos), end) for start, end in self.seqs.ranges]


@dataclass(slots=True)
class Account:
    """How many messages of a pipe have each fate for a group.

    claimed: each message below this seq is counted; `up_to` adds the others. deliveries: number of
    deliveries → how many unfinished messages had it.
    """

    claimed: int = 0
    pushed: int = 0
    counts: dict[Fate, int] = field(default_factory=partial(defaultdict, int))
    deliveries: dict[int, int] = field(default_factory=partial(defaultdict, int))

    def up_to(self, end_seq: int, *, timed: bool) -> Account:
        """Add the messages below `end_seq` that were never claimed. timed: the pipe is a timer
        pipe."""
        self.pushed = end_seq
        if self.claimed < end_seq:
            self._count(_unclaimed_fate(timed), end_seq - self.claimed, 0)
        return self

    def _count(self, fate: Fate, messages: int, deliveries: int) -> None:
        self.counts[fate] += messages
        self.deliveries[deliveries] += messages


# --- what is not done -----------------------------------------------------------------------------


def is_held(row: Claim, now_ms: int) -> bool:
    """Whether a consumer may be working on a claim: its deadline has not passed."""
    return row.state is _HELD and row.due_ms > now_ms


def unfinished(
    cursor: Cursor | None,
    rows: Iterable[Claim],
    end_seq: int,
    now_ms: int,
    *,
    timed: bool = False,
) -> list[Unfinished]:
    """The messages below `end_seq` of a pipe that are not done for a group, in order: the rest of
    each claim row, then the unclaimed messages. now_ms: catalog time. timed: the pipe is a timer
    pipe."""
    found = []
    for row in rows:
        state = row.state
        if state is not _DONE and (left := row.left_count):
            fate = _PENDING
            if state is _FREE:
                fate = _DELAYED if row.due_ms > now_ms else _WAITING
            found.append(Unfinished(fate, left, row))
    start = cursor.chain if cursor else Place(0, 0)
    if start.seq < end_seq:  # else the known end lags behind the claims
        found.append(Unfinished(_unclaimed_fate(timed), end_seq - start.seq, chain=start))
    return found


def _unclaimed_fate(timed: bool) -> Fate:
    return Fate.DELAYED if timed else Fate.WAITING


# --- what is done ---------------------------------------------------------------------------------


def acked(rows: Iterable[Claim]) -> RangeSet:
    """The messages that are done according to claim rows."""
    return RangeSet(chain.from_iterable(map(_done, rows)))


def _done(row: Claim) -> Iterable[tuple[int, int]]:
    if row.state is _DONE:
        return ((row.start, row.end),)
    return row.acked.within(row.start, row.end).ranges if row.acked else ()


def done_of(cursor: Cursor, rows: Iterable[Claim]) -> RangeSet:
    """The messages of a pipe that are done for a group, in any way, or were pushed before its
    start."""
    return RangeSet.run(0, cursor.ack.seq) | acked(rows)


def tally(view: GroupView, now_ms: int) -> Account:
    """The account of the claimed messages, and of those from before the group's start. Cost:
    proportional to the rows."""
    cursor, found = view.cursor, Account()
    if cursor is None:
        return found
    found.claimed = found.pushed = cursor.chain.seq
    done = cursor.ack.seq - cursor.start
    for row in view.rows:
        done += row.end - row.start
    for fate, messages, claim, _ in unfinished(None, view.rows, 0, now_ms):
        found._count(fate, messages, claim.deliveries if claim else 0)
        done -= messages
    counts = found.counts
    counts[Fate.DEAD] = gone = sum(move.settled for move in view.moves)
    for removal in view.removed:
        counts[Fate(removal.reason.total)] += removal.end - removal.start
        gone += removal.end - removal.start
    counts[Fate.SKIPPED] = cursor.start
    counts[Fate.COMMITTED] = done - gone
    return found


def tally_retired(row: Retired | RetiredSum) -> Account:
    """The account of a retired pipe, or of all of a queue's, from the totals written at its end."""
    counts: dict[Fate, int] = {fate: getattr(row, fate) for fate in GONE}
    committed = row.pushed - row.start - sum(counts.values())
    counts |= {Fate.SKIPPED: row.start, Fate.COMMITTED: committed}
    return Account(row.pushed, row.pushed, counts)


# --- which are which ------------------------------------------------------------------------------


def fates(
    view: GroupView, end_seq: int, now_ms: int, *, timed: bool = False
) -> dict[Fate, RangeSet]:
    """The seqs of a pipe by their fate for a group. Arguments: as for `unfinished`."""
    return _apart(_joined(_statements(view, end_seq, now_ms, timed=timed)))


def _joined(stated: Mapping[Fate, Iterable[tuple[int, int]]]) -> dict[Fate, RangeSet]:
    return {fate: RangeSet(spans) for fate, spans in stated.items()}


def _apart(joined: Mapping[Fate, RangeSet]) -> dict[Fate, RangeSet]:
    """`joined`, with only those seqs committed that are done and not gone."""
    gone = RangeSet.joined(joined[fate] for fate in GONE if joined[fate])
    return {**joined, Fate.COMMITTED: joined[Fate.COMMITTED] - gone}


def _statements(
    view: GroupView, end_seq: int, now_ms: int, *, timed: bool = False
) -> dict[Fate, list[tuple[int, int]]]:
    """What each row says, as ranges; everything done counts as committed here."""
    stated: dict[Fate, list[tuple[int, int]]] = {fate: [] for fate in Fate}
    done = stated[Fate.COMMITTED]
    if view.cursor is not None:
        start, ack = view.cursor.start, view.cursor.ack.seq
        stated[Fate.SKIPPED].append((0, start))
        done.append((start, max(start, ack)))
    for row in view.rows:
        done += _done(row)
    for part in unfinished(view.cursor, view.rows, end_seq, now_ms, timed=timed):
        stated[part.fate] += part.seqs.ranges
    stated[Fate.DEAD] += RangeSet.of(sorted(m.seq for m in view.moves if m.settled)).ranges
    for removal in view.removed:
        stated[Fate(removal.reason.total)].append((removal.start, removal.end))
    return stated


# --- what does not fit ----------------------------------------------------------------------------


def faults(view: GroupView, now_ms: int) -> list[str]:
    """The contradictions between the rows of a group in a pipe, each as part of a sentence. Each
    claimed message must have exactly one fate, and no other message any."""
    if view.cursor is None:
        return []
    given = RangeSet.run(0, view.cursor.chain.seq)
    stated = _statements(view, len(given), now_ms)
    joined = _joined(stated)
    found = _apart(joined)
    return [
        *_outside_claims(view.rows),
        *_twice(stated, joined),
        *_not_one(found, given),
        *_undone(found, joined[Fate.COMMITTED], given),
    ]


def _outside_claims(rows: Iterable[Claim]) -> Iterator[str]:
    for row in rows:
        if row.acked and (beyond := row.acked - RangeSet.run(row.start, row.end)):
            yield f"{named(beyond)} are acked outside the claim at {row.start}"


def _twice(
    stated: Mapping[Fate, Sequence[tuple[int, int]]], joined: Mapping[Fate, RangeSet]
) -> Iterator[str]:
    for fate, spans in stated.items():
        if twice := sum(end - start for start, end in spans) - len(joined[fate]):
            are = "is" if twice == 1 else "are"
            name = "done" if fate is Fate.COMMITTED else fate
            yield f"{counted(twice, 'message')} {are} {name} twice"


def _not_one(found: Mapping[Fate, RangeSet], given: RangeSet) -> Iterator[str]:
    together = RangeSet.joined(found.values())
    if sum(map(len, found.values())) != len(together):
        for (one, first), (other, second) in combinations(found.items(), 2):
            if both := first & second:
                yield f"{named(both)} are both {one} and {other}"
    if none := given - together:
        yield f"{named(none)} have no fate: no claim row covers them"
    if outside := together - given:
        yield f"{named(outside)} are settled, but were never claimed"


def _undone(found: Mapping[Fate, RangeSet], done: RangeSet, given: RangeSet) -> Iterator[str]:
    """Seqs that are gone and not done; `_not_one` reports those that also have another fate."""
    for fate in GONE:
        undone = (found[fate] & given) - done
        for other in (Fate.SKIPPED, *UNFINISHED):
            undone -= found[other]
        if undone:
            yield f"{named(undone)} are {fate}, but are not done"


def named(seqs: RangeSet) -> str:
    """Seqs as text for a sentence: `seqs 3, 7-9`."""
    runs = [f"{a}" if a + 1 == b else f"{a}-{b - 1}" for a, b in seqs.ranges[:NAMED_MAX]]
    more = len(seqs.ranges) - len(runs)
    return f"seqs {', '.join(runs)}" + (f" and {more} runs more" if more else "")
