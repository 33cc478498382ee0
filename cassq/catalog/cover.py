"""Cover: whether the claim rows of a group in a pipe are what they must be.

They are disjoint and cover what lies between the ack offset and the chain's end, without a gap.
Where they do not, the group is *wedged* in that pipe: some of it is delivered to nobody, or nothing
can be claimed any more. The reaper's pass `mend` puts that right.
"""

from __future__ import annotations

from collections.abc import Iterable

from cassq.catalog.port import Claims
from cassq.errors import CorruptionError
from cassq.model.rows import Claim, Cursor

LOOKS_MAX = 8


def fault(cursor: Cursor, rows: Iterable[Claim]) -> str:
    """What is wrong with claim rows, which are ordered by start; empty when nothing is. Pure."""
    at = cursor.ack.seq
    for row in rows:
        if row.end <= row.start:
            return f"the claim row at seq {row.start} is empty"
        if row.start > at:
            return f"no claim row covers seq {at}"
        if row.start < at:
            below = row.start < cursor.ack.seq
            other = "is done" if below else "has another claim row"
            return f"a claim row covers seq {row.start}, which {other}"
        at = row.end
    if at < cursor.chain.seq:
        return f"no claim row covers seq {at}"
    if at > cursor.chain.seq:
        return (
            f"a claim row covers seq {max(cursor.chain.seq, cursor.ack.seq)}, which was not claimed"
        )
    return ""


def fault_now(claims: Claims, group_id: str, pipe_id: str) -> tuple[Cursor, str] | None:
    """The cursor of a group in a pipe and what is wrong with its claim rows; None when nothing is,
    or others change the cursor all the time. Cost: two reads, and for a fault a third."""
    cursor = claims.cursor(group_id, pipe_id)
    for _ in range(LOOKS_MAX):
        if cursor is None:
            return None
        why = fault(cursor, claims.rows(group_id, pipe_id))
        if not why:
            return None
        # Acks between the two reads take rows away, and look like a gap. A cursor never comes back
        # to where it was: if it is the same behind the rows, they are of its moment.
        before, cursor = cursor, claims.cursor(group_id, pipe_id)
        if cursor == before:
            return before, why
    return None


def wedged(pipe_id: str, why: str) -> CorruptionError:
    """The error of whoever meets such rows."""
    return CorruptionError(
        f"the claims of a group in pipe {pipe_id} are damaged: {why}",
        hint="`cassq reap` mends that; other pipes go on meanwhile",
        pipe_id=pipe_id,
    )
