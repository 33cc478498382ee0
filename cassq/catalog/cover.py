"""Cover: checks that the claim rows of a group in a pipe have no gaps and do not overlap.

The rows must be disjoint and cover everything between the ack offset and the chain's end. If not,
the group is *wedged* in that pipe: some messages are never delivered, or nothing can be claimed
any more. The reaper's pass `mend` repairs that.
"""

from __future__ import annotations

from collections.abc import Iterable

from cassq.catalog.port import Claims
from cassq.errors import CorruptionError
from cassq.model.rows import Claim, Cursor

LOOKS_MAX = 8


def fault(cursor: Cursor, rows: Iterable[Claim]) -> str:
    """The fault in claim rows, ordered by start; empty if there is none. Pure."""
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
    """A group's cursor in a pipe and the fault in its claim rows; None if there is none, or if
    other clients keep changing the cursor. Cost: two reads, and a third for a fault."""
    cursor = claims.cursor(group_id, pipe_id)
    for _ in range(LOOKS_MAX):
        if cursor is None:
            return None
        why = fault(cursor, claims.rows(group_id, pipe_id))
        if not why:
            return None
        # Acks between the two reads remove rows, which looks like a gap. A cursor never returns to
        # an earlier value: if it is unchanged after the rows were read, they belong to it.
        before, cursor = cursor, claims.cursor(group_id, pipe_id)
        if cursor == before:
            return before, why
    return None


def wedged(pipe_id: str, why: str) -> CorruptionError:
    """The error for faulty claim rows."""
    return CorruptionError(
        f"the claims of a group in pipe {pipe_id} are damaged: {why}",
        hint="`cassq reap` repairs this; other pipes are not affected",
        pipe_id=pipe_id,
    )
