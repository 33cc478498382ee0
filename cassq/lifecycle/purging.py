"""Purging: removes the messages that wait for a group.

Poppers keep the messages that they hold until the claim's deadline. Each removal is one conditional
write that marks messages done and records why, so a purge may stop anywhere and be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.expiry import cut_out, skip
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of
from cassq.message.frames import Place
from cassq.model import claims
from cassq.model.ledger import Unfinished, is_held, unfinished
from cassq.model.rows import Claim, Cursor, GroupRow, PipeRow, QueueRow, Reason

logger: logging.Logger = logging.getLogger("cassq")

TRIES_MAX = 16


def waiting(cursor: Cursor, rows: Iterable[Claim], end_seq: int, now_ms: int) -> list[Unfinished]:
    """The messages of a pipe that no consumer holds: free claims, claims past their deadline, and
    unclaimed messages; but not those being moved, which may have arrived."""
    return [
        part
        for part in unfinished(cursor, rows, end_seq, now_ms)
        if part.row is None or not (is_held(part.row, now_ms) or claims.is_leaving(part.row))
    ]


def count_waiting(ports: Ports, queue: QueueRow, groups: Iterable[GroupRow]) -> dict[str, int]:
    """Count by group what a purge would remove now. Cost: as `purge`, without writes."""
    return _each(ports, queue, groups, write=False)


def purge(ports: Ports, queue: QueueRow, groups: Iterable[GroupRow]) -> dict[str, int]:
    """Remove the messages that were pushed before now and wait for these groups, including delayed
    ones; return how many, by group.

    Cost: one synced transaction per pipe, however many messages wait, and one for each claim that
    was returned or scheduled.
    """
    return _each(ports, queue, groups, write=True)


def _each(
    ports: Ports, queue: QueueRow, groups: Iterable[GroupRow], *, write: bool
) -> dict[str, int]:
    ends: list[tuple[PipeRow, Place]] = []
    for pipe in ports.catalog.pipes.live(queue.id):
        try:
            ends.append((pipe, end_of(ports.catalog, ports.store, pipe)))
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("purging: skipped pipe %s: %s", pipe.id, exc)
    counts: dict[str, int] = {}
    for group in groups:
        act = _purge_pipe if write else _count_pipe
        mine = [(pipe, end) for pipe, end in ends if pipe.is_for(group.id)]
        counts[group.name] = sum(act(ports, group.id, pipe.id, end) for pipe, end in mine)
    return counts


def _count_pipe(ports: Ports, group_id: str, pipe_id: str, end: Place) -> int:
    catalog = ports.catalog
    cursor = catalog.claims.cursor(group_id, pipe_id)
    if cursor is None:
        return 0
    rows = catalog.claims.rows(group_id, pipe_id)
    return sum(part.messages for part in waiting(cursor, rows, end.seq, catalog.now_ms()))


def _purge_pipe(ports: Ports, group_id: str, pipe_id: str, end: Place) -> int:
    """Remove the messages that wait in one pipe below `end`; return how many."""
    catalog = ports.catalog
    count = 0
    for _ in range(TRIES_MAX):
        cursor = catalog.claims.cursor(group_id, pipe_id)
        if cursor is None:
            break
        rows = catalog.claims.rows(group_id, pipe_id)
        found = waiting(cursor, rows, end.seq, catalog.now_ms())
        removed = 0
        # Front first: later removals merge with it, and the ack offset moves once.
        for part in found:
            if part.row is not None:
                done = cut_out(ports, part.row, part.seqs, Reason.PURGED)
            else:
                done = skip(ports, cursor, end, Reason.PURGED, synced=True) is not None
            removed += part.messages if done else 0
        count += removed
        if removed == sum(part.messages for part in found):
            break  # otherwise some were claimed or finished meanwhile: look again
    return count
