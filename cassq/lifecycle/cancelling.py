"""Cancelling: takes a delayed message back before it is delivered."""

from __future__ import annotations

from cassq.base.arguments import message_place
from cassq.errors import UsageError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.expiry import cut_out
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of, live_pipe, seal_pipe
from cassq.lifecycle.timers import schedule_pipe
from cassq.message.ranges import RangeSet
from cassq.model.rows import ClaimState, GroupRow, PipeRow, QueueRow, Reason

TRIES_MAX = 32


def cancel(ports: Ports, queue: QueueRow, message_id: str | None) -> bool:
    """Cancel a delayed message. True if no group has received or will receive it; a message that
    was delivered and then purged counts as cancelled. Groups created later, from the beginning, do
    receive it.

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


def _is_there(ports: Ports, pipe: PipeRow, seq: int) -> bool:
    if end_of(ports.catalog, ports.store, pipe).seq > seq:
        return True
    # On networked stores the known end of an open pipe lags.
    end = seal_pipe(ports.catalog, ports.store, pipe.id)
    return end is not None and end.seq > seq


def _groups(ports: Ports, pipe: PipeRow) -> list[GroupRow]:
    groups = ports.catalog.queues.groups(pipe.queue_id)
    return [group for group in groups if pipe.is_for(group.id)]


def _cancel_for(ports: Ports, group: GroupRow, pipe: PipeRow, seq: int) -> bool:
    """Cancel for one group; return whether it will never receive the message."""
    for _ in range(TRIES_MAX):
        cursor = ports.catalog.claims.cursor(group.id, pipe.id)
        if cursor is None:
            return False
        if seq < cursor.start:
            return True  # the group starts after it
        if seq < cursor.ack.seq:
            return _was_purged(ports, group, pipe, seq)
        if seq >= cursor.chain.seq:
            schedule_pipe(ports, group, pipe)
            continue
        rows = ports.catalog.claims.rows(group.id, pipe.id, range(seq, seq + 1))
        if not rows:
            continue  # the row changed between the two reads
        row = rows[0]
        if row.state is ClaimState.DONE or seq in row.acked:
            return _was_purged(ports, group, pipe, seq)
        if row.state is not ClaimState.FREE or row.deliveries > 0:
            return False
        if cut_out(ports, row, RangeSet.run(seq, seq + 1), Reason.CANCELLED):
            return True
    return False


def _was_purged(ports: Ports, group: GroupRow, pipe: PipeRow, seq: int) -> bool:
    """Whether it is done because it was cancelled or purged before."""
    removed = ports.catalog.claims.removed(group.id, pipe.id)
    cancelled = (Reason.PURGED, Reason.CANCELLED)
    return any(row.start <= seq < row.end and row.reason in cancelled for row in removed)
