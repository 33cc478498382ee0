"""Where a query with a new checkpoint begins to read, if not at its group's offset.

Messages before that place are purged for the group, and recorded as such: they neither wait for
ever nor count as committed. Messages that the group has done are not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from cassq.base.clock import attempts, contended
from cassq.errors import UsageError
from cassq.lifecycle.expiry import skip
from cassq.lifecycle.groups import group_starts
from cassq.lifecycle.ports import Ports
from cassq.message.frames import Place
from cassq.model.rows import Cursor, GroupRow, QueueRow, Reason


def begin_at(
    ports: Ports,
    queue: QueueRow,
    group: GroupRow,
    position: str | datetime,
    check_alone: Callable[[Cursor], None],
) -> int:
    """Purge what a group would read before a position; returns how many messages.

    position: as `start` of `Queue.create_group`. check_alone: raises if the group has open claims.
    Raises UsageError, with nothing purged, if the group is done with messages after the position.
    May be repeated. Cost: two reads for each live pipe and, for a position in time, a scan of each;
    and a synced transaction for each pipe in which something is purged.
    """
    starts = group_starts(ports, queue, position)
    live = [pipe.id for pipe in ports.catalog.pipes.live(queue.id) if pipe.is_for(group.id)]
    cursors = [ports.catalog.claims.cursor(group.id, pipe_id) for pipe_id in live]
    for cursor in cursors:
        if cursor is not None:
            check_alone(cursor)
            _check_undone(cursor, starts.get(cursor.pipe_id, Place(0, 0)), queue, group)
    return sum(
        _purge(ports, cursor, starts[cursor.pipe_id], check_alone)
        for cursor in cursors
        if cursor is not None and cursor.pipe_id in starts
    )


def _check_undone(cursor: Cursor, start: Place, queue: QueueRow, group: GroupRow) -> None:
    if start.seq < cursor.ack.seq:
        raise UsageError(
            f"group {group.name!r} of queue {queue.name!r} is past messages {start.seq} to"
            f" {cursor.ack.seq - 1} of pipe {cursor.pipe_id}, which startingPosition includes: a"
            " group does not get a message twice",
            hint="read with a new group, for example queue.create_group('again'), or begin at the"
            " group's offset: startingPosition=group",
        )


def _purge(
    ports: Ports, cursor: Cursor | None, start: Place, check_alone: Callable[[Cursor], None]
) -> int:
    for _ in attempts(ports.clock):
        if cursor is None or cursor.chain.seq >= start.seq:
            return 0
        check_alone(cursor)
        if skip(ports, cursor, start, Reason.PURGED, synced=True) is not None:
            return start.seq - cursor.chain.seq
        cursor = ports.catalog.claims.cursor(cursor.group_id, cursor.pipe_id)
    raise contended("the position of the group")
