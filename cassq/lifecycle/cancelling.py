"""Cancelling: takes a message back before it is delivered.

The claims decide: a message that a popper has taken stays with it, and one that was marked done
here is never taken. If a message was not claimed yet, the end of the chain of claims is moved past
it, and the messages before it get free rows, as if they had been given back.
"""

from __future__ import annotations

from dataclasses import replace

from cassq.base.arguments import message_place
from cassq.base.clock import attempts, contended
from cassq.errors import UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.expiry import cut_out
from cassq.lifecycle.moves import removals
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, live_pipe, seal_pipe
from cassq.lifecycle.timers import schedule_pipe
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.rows import ClaimState, Cursor, GroupRow, PipeRow, QueueRow, Reason

# A popper of a keyed group reads all of a free row at once.
ROW_MESSAGES_MAX = 4096


def cancel(ports: Ports, queue: QueueRow, message_id: str | None) -> bool:
    """Cancel a delayed message. True if no existing group has received or will receive it; a
    message that was delivered and then purged counts as cancelled. Groups that are created later
    and start at the beginning do receive it.

    It counts as purged for each group that has not received it. Raises UsageError if the id is
    invalid or the message was not delayed. Cost: two synced transactions for each group.
    """
    pipe_id, seq = message_place(message_id)
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None:
        return False  # every group is done with it
    if pipe.queue_id != queue.id:
        raise UsageError(f"message {message_id} is not in queue {queue.name!r}")
    if pipe.timer_ms is None:
        raise UsageError(
            f"message {message_id} was not delayed", hint="only delayed messages can be cancelled"
        )
    try:
        if not _is_there(ports, pipe, seq):
            raise UsageError(f"there is no message {message_id}")
        cancelled = [_cancel_for(ports, group, pipe, seq) for group in _groups(ports, pipe)]
    except ExtentMissingError:
        if live_pipe(ports.catalog, pipe_id) is not None:
            raise
        return False  # it was retired meanwhile
    return all(cancelled)


def withdraw(ports: Ports, queue: QueueRow, group: GroupRow, message_id: str) -> bool:
    """Cancel a waiting message for this group, whether it is delayed, was never delivered, or waits
    to be tried again. True if the group will not receive it any more; False if a popper has it, it
    is on its way to the dead letters, or the group is done with it. Other groups are not affected.

    Raises UsageError for an invalid or unknown id, or if this group keeps order and earlier
    messages still wait; BackendTimeoutError if others keep changing the claims; CorruptionError if
    the pipe cannot be read. Cost: some reads, and a synced transaction; if many messages wait
    before it, a row for each 4,096 of them.
    """
    pipe_id, seq = message_place(message_id)
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None:
        return False
    if pipe.queue_id != queue.id or not pipe.is_for(group.id) or not _is_there(ports, pipe, seq):
        raise UsageError(f"there is no message {message_id} for group {group.name!r}")
    try:
        ordered = queue.policy.strict or group.policy.exclusive or group.policy.keyed
        return _cancel_for(ports, group, pipe, seq, tried=True, ordered=ordered)
    except ExtentMissingError:
        if live_pipe(ports.catalog, pipe_id) is not None:
            raise
        return False


def _is_there(ports: Ports, pipe: PipeRow, seq: int) -> bool:
    if end_of(ports.catalog, ports.store, pipe).seq > seq:
        return True
    # On networked stores the known end of an open pipe lags.
    end = seal_pipe(ports.catalog, ports.store, pipe.id)
    return end is not None and end.seq > seq


def _groups(ports: Ports, pipe: PipeRow) -> list[GroupRow]:
    groups = ports.catalog.queues.groups(pipe.queue_id)
    return [group for group in groups if pipe.is_for(group.id)]


def _cancel_for(
    ports: Ports,
    group: GroupRow,
    pipe: PipeRow,
    seq: int,
    *,
    tried: bool = False,
    ordered: bool = False,
) -> bool:
    """Cancel for one group; return whether it will never receive the message. tried: also cancel it
    if it was delivered before and given back. ordered: whether the group keeps order."""
    for _ in attempts(ports.clock):
        cursor = ports.catalog.claims.cursor(group.id, pipe.id)
        if cursor is None:
            return False
        if seq < cursor.start:
            return True  # the group starts after it
        if seq < cursor.ack.seq:
            return _was_purged(ports, group, pipe, seq)
        if seq >= cursor.chain.seq:
            if pipe.timer_ms is not None:
                schedule_pipe(ports, group, pipe)
            elif ordered and seq > cursor.chain.seq:
                # Free rows for messages before it would come after what the lock's holder claims.
                raise UsageError(
                    f"message {pipe.id}:{seq} waits behind others in group {group.name!r}, which"
                    " keeps their order",
                    hint="it can be cancelled while it is delayed, or given back to be tried again",
                )
            elif _take_unclaimed(ports, cursor, pipe, seq):
                return True
            continue
        rows = ports.catalog.claims.rows(group.id, pipe.id, range(seq, seq + 1))
        if not rows:
            continue  # the row changed between the two reads
        row = rows[0]
        if row.state is ClaimState.DONE or seq in row.acked:
            return _was_purged(ports, group, pipe, seq)
        if row.state is not ClaimState.FREE or (row.deliveries > 0 and not tried):
            return False
        if claims.is_leaving(row):
            return False
        if cut_out(ports, row, RangeSet.run(seq, seq + 1), Reason.CANCELLED):
            return True
    if tried:
        raise contended(f"the claims of pipe {pipe.id}")
    return False


def _take_unclaimed(ports: Ports, cursor: Cursor, pipe: PipeRow, seq: int) -> bool:
    """Move the chain past an unclaimed message, and mark that done; the messages before it become
    free. False if another process moved the chain. Raises as `reader` and `read` do."""
    reader = ports.store.reader(pipe.id)
    try:
        place = Place(seq, cursor.chain.pos)
        chain = reader.place_after(place, reader.read(place, seq + 1, 1, 0))
    finally:
        reader.close()
    starts = range(cursor.chain.seq, seq, ROW_MESSAGES_MAX)
    runs = [(at, min(at + ROW_MESSAGES_MAX, seq), cursor.chain.pos, 0) for at in starts]
    rows = claims.scheduled(cursor, runs, ports.ids.version, pipe.priority)
    row = replace(claims.unclaimed(cursor, chain, ports.ids.version), start=seq)
    facts = removals(row, row.left, Reason.CANCELLED, ports.catalog.now_ms())
    rows += claims.as_dead(row, ports.ids.version)
    return ports.catalog.claims.claim(cursor, chain, rows, removed=facts, synced=True)


def _was_purged(ports: Ports, group: GroupRow, pipe: PipeRow, seq: int) -> bool:
    """Whether a message that is done was cancelled or purged."""
    removed = ports.catalog.claims.removed(group.id, pipe.id)
    cancelled = (Reason.PURGED, Reason.CANCELLED)
    return any(row.start <= seq < row.end and row.reason in cancelled for row in removed)
