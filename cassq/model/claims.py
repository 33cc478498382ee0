"""Claims: their transitions, as pure functions from rows to rows.

A claim row is never edited: each transition here returns the rows that replace it, which cover the
same seqs, and `Catalog.replace` writes them unless another writer was faster. `Catalog.claim`
creates the first row.

Invariants:
1. After any transition an acked seq stays acked or lies in a done row: acks only accumulate.
2. `deliveries` of a held row counts its own delivery; it is written before the messages are handed
   out.
3. Only a row of one message becomes a dead letter for its number of deliveries.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from cassq.message.bitsets import BitSet
from cassq.message.frames import Place
from cassq.message.ranges import BITS, EMPTY, RangeSet
from cassq.model.rows import Claim, ClaimState, Cursor

LOSSES_BEFORE_CUT = 2
CUT_INTO = 16
# The marks in a failure record's JSON: with the colon, so that no text can be mistaken for one.
DOOMED, MOVING, LEAVING = '"doomed":', '"moving":', '"leaving":'

# A claim's holder is the popper's name and the number of the claim, so each claim has a different
# holder. If its messages are received singly, the time of the claim follows; and if the delivery
# has a deadline of its own, which its popper leaves alone, a mark. A free row has a holder without
# a number, but with a time, until which consumers of this popper may still have its messages.
_NUMBER, _SINCE, DATED, _KEPT = "/", "@", "!", "/~"

_NEXT = "next "  # begins the owner of a cursor with a reservation; no popper's name has a space

Version = Callable[[], str]

# The stored marks of a row begin with this letter and the length of the acked part, if it has
# `tried`; otherwise they are the acked part alone, as `RangeSet.to_bytes` gives it.
_MARKS = struct.Struct("<cI")
_TRIED = b"T"
_MARKED = {"acked", "tried", "version"}
_BESIDE_MARKS = attrgetter(*(each.name for each in fields(Claim) if each.name not in _MARKED))


class ReturnedSeqs(NamedTuple):
    """Seqs to give back, and how: free from `due_ms` on, with this number of deliveries."""

    seqs: RangeSet
    due_ms: int
    deliveries: int
    failure: str = ""
    cut: bool = False  # in small pieces


def holder_name(popper: str, number: int) -> str:
    """The holder of a popper's claim. number: of the claim, different for each."""
    return f"{popper}{_NUMBER}{number}"


def single_holder_name(popper: str, number: int, now_ms: int) -> str:
    """The holder of a claim whose messages are received singly: from the start, each has a deadline
    of its own, which any client with its receipt may change."""
    return f"{popper}{_NUMBER}{number}{_SINCE}{now_ms}{DATED}"


def is_single(claim: Claim) -> bool:
    """Whether the messages of a held claim, or of a free one that expired, were received singly."""
    return _SINCE in claim.holder


def first_received_ms(claim: Claim) -> int | None:
    """When the messages of a held claim were first received singly; None if that is not known."""
    if claim.failure:
        known: int | None = json.loads(claim.failure).get("received_ms")
        if known is not None:
            return known
    since = claim.holder.removesuffix(DATED).partition(_SINCE)[2]
    return int(since) if since else None


def consumer_of(holder: str) -> str:
    """The popper's name in the holder of a claim."""
    return holder.partition(_NUMBER)[0]


def failure_record(
    reason: str, error: str, consumer: str, now_ms: int, *, doomed: bool = False
) -> str:
    """A claim row's record of its messages' last failure, with the time of the first.

    reason: "rejected" or "expired". doomed: must become a dead letter, however often delivered.
    """
    record: dict[str, Any] = {"reason": reason, "error": error, "consumer": consumer}
    record |= {"first_ms": now_ms, "at_ms": now_ms}
    return json.dumps({**record, "doomed": True} if doomed else record)


def failed_again(before: str, now: str) -> str:
    """The record `now`, with the times of the first failure and of the first receipt taken from
    `before`; "": there was none."""
    if not before:
        return now
    earlier = json.loads(before)
    kept = {name: earlier[name] for name in ("first_ms", "received_ms") if name in earlier}
    return json.dumps({**json.loads(now), **kept}) if kept else now


def cut_up(give: ReturnedSeqs, max_deliveries: int) -> ReturnedSeqs:
    """How to give back messages that failed together. If this was not the first time, or their
    deliveries are spent, they are split into pieces, which are delivered once more. A message
    becomes a dead letter only after it failed alone, so till then `deliveries` is below the limit.
    """
    if len(give.seqs) == 1:
        return give
    if give.deliveries < min(LOSSES_BEFORE_CUT, max_deliveries):
        return give
    return give._replace(cut=True, deliveries=min(give.deliveries, max_deliveries - 1))


def first(
    cursor: Cursor,
    chain: Place,
    holder: str,
    due_ms: int,
    version: Version,
    *,
    joint: bool = False,
    tried: RangeSet | None = None,
    priority: int = 0,
) -> Claim:
    """The claim of everything between the cursor's chain end and a new one. tried: see `Claim`.
    priority: of the pipe, as in the functions below."""
    return Claim(
        cursor.group_id,
        cursor.pipe_id,
        cursor.chain.seq,
        chain.seq,
        cursor.chain.pos,
        ClaimState.HELD,
        due_ms,
        deliveries=1,
        joint=joint,
        holder=holder,
        version=version(),
        tried=tried,
        priority=priority,
    )


def unclaimed(cursor: Cursor, end: Place, version: Version, priority: int = 0) -> Claim:
    """A free row, not yet written, for everything between the cursor's chain end and `end`, which
    was never delivered."""
    row = first(cursor, end, "", 0, version, priority=priority)
    return replace(row, state=ClaimState.FREE, deliveries=0)


def reservation(
    cursor: Cursor, chain: Place, holder: str, due_ms: int, version: Version, priority: int
) -> Claim:
    """A claim of the message at `chain`, the place to which this cursor's chain is about to move.
    It is made before the message is pushed, and kept in the cursor until others need to see it.

    A reservation neither moves the chain nor acks anything, so no claim lies past a pipe's end.
    Before others claim the message, they turn the reservation into a claim row of its popper, with
    one delivery counted. So a message handed out under a reservation counts as delivered, and comes
    again after the deadline. The popper uses its reservation only until the deadline, and only
    while the cursor is as that popper wrote it.
    """
    end = Place(chain.seq + 1, chain.pos)
    return first(replace(cursor, chain=chain), end, holder, due_ms, version, priority=priority)


def as_owner(claim: Claim) -> str:
    """A reservation as `Cursor.owner`. The epoch rises with it, so that a claim prepared without
    knowing of it is refused."""
    return f"{_NEXT}{claim.start} {claim.due_ms} {claim.priority} {claim.version} {claim.holder}"


def reserved(cursor: Cursor) -> Claim | None:
    """The reservation in a cursor; None if there is none, or the chain has moved since."""
    if not cursor.owner.startswith(_NEXT):
        return None
    seq, due_ms, priority, version, holder = cursor.owner.removeprefix(_NEXT).split(" ")
    if int(seq) != cursor.chain.seq:
        return None
    return reservation(cursor, cursor.chain, holder, int(due_ms), lambda: version, int(priority))


def resolved(
    claim: Claim,
    acks: RangeSet,
    gives: Sequence[ReturnedSeqs],
    version: Version,
    *,
    tried: RangeSet | None = None,
    due_ms: int = 0,
) -> list[Claim]:
    """The rows of a held claim after its holder acked `acks` and gave back `gives`. The rest stays
    held. Without `gives` the claim stays one row.

    tried: in a keyed group, the messages that are now handed out, if they change; then the claim is
    held until `due_ms` at least.
    """
    if not gives:
        acked = (claim.acked | acks).within(claim.start, claim.end) if acks else claim.acked
        if len(acked) == claim.count:
            return [_done(claim, claim.start, claim.end, version)]
        return [claim.remarked(acked, tried, due_ms, version())]
    held = claim.left - acks
    if not held:
        return [_done(claim, claim.start, claim.end, version)]
    if tried is None:
        tried, due_ms = claim.tried, 0
    due_ms = max(claim.due_ms, due_ms)
    claim = replace(claim, tried=tried, due_ms=due_ms)
    parts: list[tuple[RangeSet, Claim]] = []
    for give in gives:
        given = held if give.seqs == held else give.seqs & held
        held = EMPTY if given is held else held - given
        free = replace(
            claim,
            state=ClaimState.FREE,
            due_ms=give.due_ms,
            deliveries=give.deliveries,
            holder="",
            losses=claim.losses + give.cut,
            joint=False,
            failure=give.failure or claim.failure,
            tried=None,
        )
        parts += [(piece, free) for piece in (_cut(given) if give.cut else [given])]
    parts.append((held, claim))
    return _laid_out(claim, [part for part in parts if part[0]], version)


def _laid_out(
    claim: Claim, parts: Sequence[tuple[RangeSet, Claim]], version: Version
) -> list[Claim]:
    """Rows that cover `claim`: for each part, as few rows like its pattern as the other parts
    allow, with acked seqs as their holes; and done rows where nothing is left."""
    rows: list[Claim] = []
    at = claim.start
    for left, pattern in _in_order(parts):
        start, end = left.ranges[0][0], left.ranges[-1][1]
        if at < start:
            rows.append(_done(claim, at, start, version))
        acked = RangeSet.run(start, end) - left
        tried = None if pattern.tried is None else pattern.tried.within(start, end)
        rows.append(
            replace(pattern, start=start, end=end, acked=acked, tried=tried, version=version())
        )
        at = end
    if at < claim.end:
        rows.append(_done(claim, at, claim.end, version))
    return rows


def _in_order(parts: Sequence[tuple[RangeSet, Claim]]) -> Iterable[tuple[RangeSet, Claim]]:
    """The parts in pieces that do not enclose one another."""
    if len(parts) == 1:
        return parts
    runs = sorted(
        (start, end, number) for number, (seqs, _) in enumerate(parts) for start, end in seqs.ranges
    )
    return [
        (RangeSet((start, end) for start, end, _ in group), parts[number][1])
        for number, group in groupby(runs, key=itemgetter(2))
    ]


def has_only_other_marks(old: Claim, new: Claim) -> bool:
    """Whether a row differs from the one it replaces in its marks and version alone."""
    return _BESIDE_MARKS(new) == _BESIDE_MARKS(old)


def marks(claim: Claim) -> bytes:
    """What is known of single messages of a row, as stored: those acked, and those tried."""
    acked = claim.acked.to_bytes() if claim.acked else b""
    if claim.tried is None:
        return acked
    return _MARKS.pack(_TRIED, len(acked)) + acked + claim.tried.to_bytes()


def marked(stored: bytes) -> tuple[RangeSet, RangeSet | None]:
    """The messages acked, and those tried, from what `marks` returned. Raises ValueError for any
    other bytes."""
    if stored[:1] != _TRIED:
        return _seqs(stored), None
    if len(stored) < _MARKS.size:
        raise ValueError("these bytes are not the marks of a claim")
    _, size = _MARKS.unpack_from(stored)
    at = _MARKS.size + size
    return _seqs(stored[_MARKS.size : at]), _seqs(stored[at:])


def _seqs(stored: bytes) -> RangeSet:
    return (BitSet if stored[:1] == BITS else RangeSet).from_bytes(stored)


def extended(claim: Claim, due_ms: int, version: Version) -> list[Claim]:
    """The claim with a later deadline."""
    return [replace(claim, due_ms=due_ms, version=version())]


def dated(claim: Claim, seqs: RangeSet, due_ms: int, version: Version) -> list[Claim]:
    """The rows of a held claim after each of these messages got a deadline, and so a row, of its
    own."""
    own = replace(claim, due_ms=due_ms, holder=claim.holder.removesuffix(DATED) + DATED)
    parts = [(RangeSet.run(seq, seq + 1), own) for seq in seqs]
    rest = claim.left - seqs
    return _laid_out(claim, [*parts, (rest, claim)] if rest else parts, version)


def received(
    claim: Claim, seqs: RangeSet, due_ms: int, holder: str, version: Version
) -> list[Claim]:
    """The rows of a keyed group's held claim after these messages were received singly, until
    `due_ms`: they get as few rows as the others allow. holder: as `single_holder_name` makes it."""
    own = replace(claim, due_ms=due_ms, holder=holder, tried=None)
    rest = claim.left - seqs
    return _laid_out(claim, [(seqs, own), (rest, claim)] if rest else [(seqs, own)], version)


def is_dated(claim: Claim) -> bool:
    """Whether the messages of a row have a deadline of their own: their popper leaves them
    alone."""
    return claim.state is ClaimState.HELD and claim.holder.endswith(DATED)


def kept_away(claim: Claim, popper: str, until_ms: int) -> Claim:
    """A free claim that is not delivered again before `until_ms`, as consumers of a popper may
    still have its messages until then."""
    due_ms = max(claim.due_ms, until_ms)
    return replace(claim, due_ms=due_ms, holder=f"{popper}{_KEPT}{until_ms}")


def away_until_ms(claim: Claim) -> int | None:
    """Until when consumers may have a claim's messages, though nobody who delivers them holds it:
    they have a deadline of their own, or are `kept_away`. None: they do not have them."""
    if is_dated(claim):
        return claim.due_ms
    if claim.state is ClaimState.FREE and _KEPT in claim.holder:
        return int(claim.holder.rpartition(_KEPT)[2])
    return None


def is_away(claim: Claim) -> bool:
    """Whether consumers may have a claim's messages, or might until recently: `away_until_ms`."""
    return away_until_ms(claim) is not None


def is_delivery(claim: Claim, seq: int, holder: str) -> bool:
    """Whether a row is the last delivery of a message, made to this holder, and the message is not
    settled. holder: with or without the mark of a deadline of its own."""
    if claim.state is ClaimState.DONE or not claim.start <= seq < claim.end:
        return False
    if claim.tried is not None and seq not in claim.tried:
        return False
    same = claim.holder.removesuffix(DATED) == holder.removesuffix(DATED)
    return same and seq not in claim.acked


def in_hand(claim: Claim) -> RangeSet:
    """The messages of a held claim that consumers have."""
    if claim.state is not ClaimState.HELD or is_moving(claim):
        return EMPTY
    return claim.left if claim.tried is None else claim.tried - claim.acked


def is_spent(claim: Claim, max_deliveries: int) -> bool:
    """Whether only one message of the claim is left, and it was delivered as often as allowed."""
    return claim.left_count == 1 and claim.deliveries >= max_deliveries


def is_suspect(claim: Claim) -> bool:
    """Whether its messages must be handed out separately from others: they failed together, or
    crashed their consumer, and it is unknown which of them is at fault."""
    return claim.losses > 0


def is_prime_suspect(claim: Claim, max_deliveries: int) -> bool:
    """Whether its consumer must have no other suspect at the same time: its messages were lost
    twice; or once, and this delivery (if the claim is free: the next) is the last one allowed."""
    delivery = claim.deliveries + (claim.state is ClaimState.FREE)
    return claim.losses > 1 or (claim.losses == 1 and delivery >= max_deliveries)


def is_doomed(claim: Claim) -> bool:
    """Whether its one message must become a dead letter, or a move of its messages must be
    finished."""
    if is_leaving(claim):
        return True
    return DOOMED in claim.failure and claim.left_count == 1


def is_spared(claim: Claim) -> bool:
    """Whether its last failure does not count, because nothing in its group succeeded then."""
    return bool(claim.failure) and bool(json.loads(claim.failure).get("spared"))


def is_sick(claim: Claim, success_ms: int) -> bool:
    """Whether nothing in the group has succeeded since a claim's messages first failed; for a free
    claim, also True if their last failure does not count for that reason.

    success_ms: when something last succeeded, 0 for never. The caller must check whether the group
    uses `sick_check`.
    """
    if not claim.failure:
        return False
    if claim.state is ClaimState.FREE and is_spared(claim):
        return True
    return success_ms < first_failure_ms(claim)


def first_failure_ms(claim: Claim) -> int:
    """When the messages of a failed claim first failed."""
    return int(json.loads(claim.failure).get("first_ms", 0))


def hold_ends_ms(claim: Claim, hold_ms: int, success_ms: int) -> int | None:
    """Until when a sick group keeps the messages of a failed claim; None: until it succeeds.

    hold_ms: how long, in a group where nothing has ever succeeded.
    """
    return None if success_ms else first_failure_ms(claim) + hold_ms


def is_moving(claim: Claim) -> bool:
    """Whether its messages were being moved: before delivering them, check whether they have
    arrived elsewhere."""
    return MOVING in claim.failure


def is_leaving(claim: Claim) -> bool:
    """Whether its messages are on their way elsewhere, and may have arrived: check that before
    doing anything else with them."""
    return is_moving(claim) or LEAVING in claim.failure


def marked_leaving(claim: Claim, reason: str) -> str:
    """The failure record of a claim whose only message becomes a dead letter for `reason`. Once
    begun, this move is finished, even if the policy or the group's health changes meanwhile."""
    return json.dumps({**json.loads(claim.failure or "{}"), "leaving": reason})


def marked_moving(claim: Claim) -> str:
    """The failure record of a claim while its messages are moved, with its due time."""
    record: dict[str, Any] = json.loads(claim.failure or "{}")
    due_ms = claim.due_ms if claim.state is ClaimState.FREE else 0
    return json.dumps({"moving": due_ms, **record})


def unmarked(claim: Claim) -> Claim:
    """A claim whose move has ended: without the mark, and with its earlier due time."""
    if not is_moving(claim):
        return claim
    record: dict[str, Any] = json.loads(claim.failure)
    due_ms = record.pop("moving")
    failure = json.dumps(record) if record else ""
    return replace(claim, failure=failure, due_ms=due_ms)


def freed(
    claim: Claim, now_ms: int, due_ms: int, max_deliveries: int, version: Version
) -> list[Claim]:
    """A claim taken away from its holder: the rest is free from `due_ms` on, split if it was lost
    twice or its deliveries are spent, so that a poison message ends up alone. What was not handed
    out is free at once, and not counted. What was received singly is only split if its deliveries
    are spent, and its receipts stay valid until it is delivered again. Claims that are doomed, or
    being moved, stay so."""
    if is_doomed(claim):
        return [
            replace(
                claim, state=ClaimState.FREE, due_ms=0, holder="", tried=None, version=version()
            )
        ]
    if is_single(claim):
        return _freed_singly(claim, now_ms, due_ms, max_deliveries, version)
    untried = EMPTY if claim.tried is None else claim.left - claim.tried
    waiting = replace(
        claim,
        state=ClaimState.FREE,
        due_ms=0,
        deliveries=claim.deliveries - 1,
        joint=False,
        holder="",
        tried=None,
    )
    failure = failed_again(
        claim.failure, failure_record("expired", "", consumer_of(claim.holder), now_ms)
    )
    losses = claim.losses + 1
    left = claim.left - untried
    deliveries = claim.deliveries
    cut = losses >= LOSSES_BEFORE_CUT or deliveries >= max_deliveries
    if claim.joint or (cut and len(left) > 1):
        # Each must be delivered alone before it becomes a dead letter.
        deliveries = min(deliveries, max_deliveries - 1)
    free = replace(waiting, due_ms=due_ms, deliveries=deliveries, losses=losses, failure=failure)
    pieces = (_cut(left) if cut else [left]) if left else []
    parts = [(piece, free) for piece in pieces]
    return _laid_out(claim, [*parts, (untried, waiting)] if untried else parts, version)


def _freed_singly(
    claim: Claim, now_ms: int, due_ms: int, max_deliveries: int, version: Version
) -> list[Claim]:
    """`freed` for messages that were received singly: none has to do with another's failure."""
    record = json.loads(failure_record("expired", "", consumer_of(claim.holder), now_ms))
    record["received_ms"] = first_received_ms(claim)
    failure = failed_again(claim.failure, json.dumps(record))
    free = replace(claim, state=ClaimState.FREE, due_ms=due_ms, failure=failure)
    left = claim.left
    if claim.deliveries < max_deliveries:
        return _laid_out(claim, [(left, free)], version)
    # Each becomes a dead letter by itself, so each needs a row of its own.
    return _laid_out(claim, [(RangeSet.run(seq, seq + 1), free) for seq in left], version)


def scheduled(
    cursor: Cursor,
    runs: Iterable[tuple[int, int, int, int]],
    version: Version,
    priority: int = 0,
) -> list[Claim]:
    """Free rows for messages of a timer pipe, from the cursor's chain end on.

    runs: (start, end, pos, due_ms) each, without a gap; not delivered yet.
    """
    return [
        Claim(
            cursor.group_id,
            cursor.pipe_id,
            start,
            end,
            pos,
            ClaimState.FREE,
            due_ms,
            deliveries=0,
            version=version(),
            priority=priority,
        )
        for start, end, pos, due_ms in runs
    ]


def taken(
    free: Claim,
    until: Place,
    holder: str,
    due_ms: int,
    version: Version,
    *,
    joint: bool = False,
    tried: RangeSet | None = None,
) -> tuple[Claim, list[Claim]]:
    """The part of a free row below `until`, held by `holder` with one more delivery counted; and
    all resulting rows. joint: others are handed out with it. tried: see `Claim`."""
    middle = min(until.seq, free.end)
    mine = replace(
        free,
        end=middle,
        state=ClaimState.HELD,
        due_ms=due_ms,
        deliveries=free.deliveries + 1,
        holder=holder,
        joint=joint,
        acked=free.acked.within(free.start, middle),
        tried=tried,
        version=version(),
    )
    if middle == free.end:
        return mine, [mine]
    acked = free.acked.within(middle, free.end)
    if acked.covers(middle, free.end):
        return mine, [mine, _done(free, middle, free.end, version)]
    return mine, [mine, replace(free, start=middle, pos=until.pos, acked=acked, version=version())]


def taken_from(claim: Claim, below: int, version: Version) -> list[Claim]:
    """The rows of a held claim after its messages below a seq were taken from its holder and are
    done: the holder keeps a row of the rest."""
    rest = claim.left.within(below, claim.end)
    return _laid_out(claim, [(rest, claim)], version) if rest else as_dead(claim, version)


def as_dead(claim: Claim, version: Version) -> list[Claim]:
    """The claim after its last message was moved elsewhere."""
    return [_done(claim, claim.start, claim.end, version)]


def _cut(seqs: RangeSet) -> list[RangeSet]:
    """The set in at most `CUT_INTO` parts of nearly the same size, in order."""
    size = -(-len(seqs) // CUT_INTO)
    parts: list[list[tuple[int, int]]] = []
    room = 0
    for start, end in seqs.ranges:
        while start < end:
            if room == 0:
                parts.append([])
                room = size
            last = min(end, start + room)
            parts[-1].append((start, last))
            room -= last - start
            start = last
    return [RangeSet(part) for part in parts]


def _done(claim: Claim, start: int, end: int, version: Version) -> Claim:
    return replace(
        claim,
        start=start,
        end=end,
        state=ClaimState.DONE,
        holder="",
        acked=EMPTY,
        failure="",
        tried=None,
        version=version(),
    )
