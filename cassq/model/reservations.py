"""Reservations: the next message of a pipe, claimed by a popper before it is pushed.

A popper that takes one message after another would write twice for each: a claim and an ack. So in
the write that claims or acks one it may reserve the next; then it hands that out without a write.

A reservation is kept in the cursor, not in a claim row: `Cursor.owner` holds it as text, and the
epoch rises with it, so that a claim prepared without knowing of it is refused. It is for the one
message at the end of the chain, and is void once the chain has moved.

Invariants:
1. A reservation neither moves the chain nor acks anything: no claim is ever past a pipe's end.
2. While it stands, its message is claimed by others only after it was turned into a claim row of
   its popper, with one delivery counted (`Claims.claim`). So what was handed out under it counts
   as delivered, and comes again when its time is over, as with any other claim.
3. Its popper uses it only while the cursor is as it wrote it, and until its deadline.
"""

from __future__ import annotations

from cassq.message.frames import Place
from cassq.model.claims import Version
from cassq.model.rows import Claim, ClaimState, Cursor

_MARK = "next "


def reservation(
    cursor: Cursor, chain: Place, holder: str, due_ms: int, version: Version, priority: int
) -> Claim:
    """The claim of the message at `chain`, to which this cursor's chain is about to move."""
    return Claim(
        cursor.group_id,
        cursor.pipe_id,
        chain.seq,
        chain.seq + 1,
        chain.pos,
        ClaimState.HELD,
        due_ms,
        deliveries=1,
        holder=holder,
        version=version(),
        priority=priority,
    )


def as_owner(claim: Claim) -> str:
    """A reservation as the cursor's owner."""
    return f"{_MARK}{claim.start} {claim.due_ms} {claim.priority} {claim.version} {claim.holder}"


def reserved(cursor: Cursor) -> Claim | None:
    """The claim of the message at the end of a cursor's chain, if it is reserved."""
    if not cursor.owner.startswith(_MARK):
        return None
    _, seq, due_ms, priority, version, holder = cursor.owner.split(" ")
    if int(seq) != cursor.chain.seq:
        return None
    return reservation(cursor, cursor.chain, holder, int(due_ms), lambda: version, int(priority))
