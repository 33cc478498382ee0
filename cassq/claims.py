"""Claims: what can become of one, as pure functions from rows to rows.

A claim row is never edited: each move here gives the rows that take its place, which cover the
same seqs, and `Catalog.replace` puts them there if nobody was faster. `Catalog.claim` makes the
first row.

Invariants:
1. Whatever a move does, an acked seq stays acked or lies in a done row: acks only accumulate.
2. `deliveries` of a held row counts its own delivery; it is written before the hand-over.
3. Only a row of one message is given up for its number of deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from cassq.catalog.port import Claim, ClaimState, Cursor
from cassq.frames import Place
from cassq.ranges import EMPTY, RangeSet

LOSSES_BEFORE_CUT = 2
CUT_INTO = 16

Version = Callable[[], str]


class Give(NamedTuple):
    """Seqs to be given back, and how: free from `due_ms`, with so many deliveries counted."""

    seqs: RangeSet
    due_ms: int
    deliveries: int
    failure: str = ""
    cut: bool = False  # in small pieces


def cut_up(give: Give, max_deliveries: int) -> Give:
    """How to give back messages that failed together. When it was not the first time, or their
    deliveries are spent, they come in pieces, and are delivered once more in those: a message is
    given up only after it failed alone, so `deliveries` may stand still meanwhile.
    """
    if len(give.seqs) == 1:
        return give
    if give.deliveries < min(LOSSES_BEFORE_CUT, max_deliveries):
        return give
    return give._replace(cut=True, deliveries=min(give.deliveries, max_deliveries - 1))


def first(cursor: Cursor, chain: Place, holder: str, due_ms: int, version: Version) -> Claim:
    """The claim of everything between the cursor's chain end and a new one."""
    return Claim(
        cursor.group_id,
        cursor.pipe_id,
        cursor.chain.seq,
        chain.seq,
        cursor.chain.pos,
        ClaimState.HELD,
        due_ms,
        deliveries=1,
        holder=holder,
        version=version(),
    )


def resolved(claim: Claim, acks: RangeSet, gives: Sequence[Give], version: Version) -> list[Claim]:
    """A held claim after its holder acked `acks` and gave back `gives`.

    What is neither stays held. Fully acked parts become done rows; without gives the claim stays
    one row.
    """
    whole = RangeSet([(claim.start, claim.end)])
    acked = (claim.acked | acks) & whole
    if acked.covers(claim.start, claim.end):
        return [_done(claim, claim.start, claim.end, version)]
    if not gives:
        return [replace(claim, acked=acked, version=version())]
    pieces: list[Claim] = []
    held = whole
    for give in gives:
        given = (give.seqs & held) - acked
        held = held - given
        pieces += [
            replace(
                claim,
                start=start,
                end=end,
                state=ClaimState.FREE,
                due_ms=give.due_ms,
                deliveries=give.deliveries,
                holder="",
                acked=EMPTY,
                failure=give.failure or claim.failure,
                version=version(),
            )
            for start, end in (_cut_all(given) if give.cut else given.ranges)
        ]
    for start, end in held.ranges:
        if acked.covers(start, end):
            pieces.append(_done(claim, start, end, version))
        else:
            kept = acked & RangeSet([(start, end)])
            pieces.append(replace(claim, start=start, end=end, acked=kept, version=version()))
    return sorted(pieces, key=lambda piece: piece.start)


def extended(claim: Claim, due_ms: int, version: Version) -> list[Claim]:
    """The claim with a later deadline."""
    return [replace(claim, due_ms=due_ms, version=version())]


def is_due(claim: Claim, now_ms: int) -> bool:
    """Whether the claim expired or came free."""
    return claim.state is not ClaimState.DONE and claim.due_ms <= now_ms


def is_spent(claim: Claim, max_deliveries: int) -> bool:
    """Whether the claim is down to one message that was delivered as often as allowed."""
    left = claim.count - len(claim.acked)
    return left == 1 and claim.deliveries >= max_deliveries


def freed(claim: Claim, now_ms: int, max_deliveries: int, version: Version) -> list[Claim]:
    """A claim taken away from its holder: what is left of it free, cut up when it was lost twice
    or its deliveries are spent, so that a poisonous message ends up alone."""
    losses = claim.losses + 1
    left = RangeSet([(claim.start, claim.end)]) - claim.acked
    deliveries = claim.deliveries
    ranges: Iterable[tuple[int, int]] = left.ranges
    if losses >= LOSSES_BEFORE_CUT or deliveries >= max_deliveries:
        ranges = _cut_all(left)
        if len(left) > 1:
            # Each is to be delivered alone before it is given up.
            deliveries = min(deliveries, max_deliveries - 1)
    pieces = [
        replace(
            claim,
            start=start,
            end=end,
            state=ClaimState.FREE,
            due_ms=now_ms,
            deliveries=deliveries,
            losses=losses,
            holder="",
            acked=EMPTY,
            version=version(),
        )
        for start, end in ranges
    ]
    pieces += [_done(claim, start, end, version) for start, end in claim.acked.ranges]
    return sorted(pieces, key=lambda piece: piece.start)


def taken(
    pieces: Sequence[Claim], limit: int, holder: str, due_ms: int, version: Version
) -> tuple[Claim, list[Claim]]:
    """Of `pieces`, the first free one (or `limit` messages of it) held by `holder` and counted
    as delivered once more; and all rows that result."""
    at = next(i for i, piece in enumerate(pieces) if piece.state is ClaimState.FREE)
    free = pieces[at]
    middle = min(free.end, free.start + limit)
    mine = replace(
        free,
        end=middle,
        state=ClaimState.HELD,
        due_ms=due_ms,
        deliveries=free.deliveries + 1,
        holder=holder,
        version=version(),
    )
    rest = [replace(free, start=middle, version=version())] if middle < free.end else []
    return mine, [*pieces[:at], mine, *rest, *pieces[at + 1 :]]


def buried(claim: Claim, version: Version) -> list[Claim]:
    """The claim after its last message was put elsewhere."""
    return [_done(claim, claim.start, claim.end, version)]


def _cut_all(seqs: RangeSet) -> list[tuple[int, int]]:
    return [part for start, end in seqs.ranges for part in _cut(start, end)]


def _cut(start: int, end: int) -> list[tuple[int, int]]:
    size = -(-(end - start) // CUT_INTO)
    return [(at, min(at + size, end)) for at in range(start, end, size)]


def _done(claim: Claim, start: int, end: int, version: Version) -> Claim:
    return replace(
        claim,
        start=start,
        end=end,
        state=ClaimState.DONE,
        holder="",
        acked=EMPTY,
        failure="",
        version=version(),
    )
