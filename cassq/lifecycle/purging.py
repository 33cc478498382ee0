"""Purging: removes the messages that wait for a group, or all that it has not finished.

Unless the purge includes them, poppers keep the messages that they hold until the deadline of the
claim. Each removal is one conditional write that marks messages done and records why, so a purge
may stop anywhere and be repeated.

Invariants:
1. Messages pushed after the purge began stay: it removes only messages below the ends of the pipes
   as it saw them, or claimed before it looked.
2. A claim that a purge took messages from is lost for its holder: no row has both messages that the
   holder may still ack and messages that were purged. In an exclusive group the epoch is raised
   first, so that the holder can settle nothing more of the pipe.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from cassq.base.clock import attempts, contended
from cassq.errors import CorruptionError
from cassq.extents.port import ExtentMissingError
from cassq.lifecycle.expiry import cut_out, skip
from cassq.lifecycle.moves import removals
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import end_of
from cassq.message.frames import Place
from cassq.message.ranges import RangeSet
from cassq.model import claims
from cassq.model.ledger import Unfinished, is_held, unfinished
from cassq.model.rows import Claim, ClaimState, Cursor, GroupRow, PipeRow, QueueRow, Reason

logger: logging.Logger = logging.getLogger("cassq")


@dataclass(frozen=True, slots=True)
class _Target:
    """What to purge: a group's messages in a pipe. end: of the pipe when the purge began. claimed:
    all messages below this seq were claimed before. held: also those that poppers hold. exclusive:
    whether the group is."""

    group_id: str
    pipe_id: str
    end: Place
    claimed: int
    held: bool
    exclusive: bool

    def seqs_of(self, part: Unfinished) -> RangeSet:
        """The messages of a part that were pushed before the purge began."""
        if part.row is None:
            return part.seqs
        return part.seqs.within(0, max(self.end.seq, self.claimed))


def waiting(
    cursor: Cursor, rows: Iterable[Claim], end_seq: int, now_ms: int, *, held: bool = False
) -> list[Unfinished]:
    """The messages of a pipe that no consumer holds: in free claims, in claims past their deadline,
    and unclaimed ones; but not those being moved, which may have arrived. held: also those that
    consumers hold."""
    return [
        part
        for part in unfinished(cursor, rows, end_seq, now_ms)
        if part.row is None
        or not (claims.is_leaving(part.row) or (is_held(part.row, now_ms) and not held))
    ]


def count_waiting(
    ports: Ports, queue: QueueRow, groups: Iterable[GroupRow], *, held: bool = False
) -> dict[str, int]:
    """Count the messages that a purge would remove now, by group. Cost: as `purge`, without
    writes."""
    return _each(ports, queue, groups, held=held, write=False)


def purge(
    ports: Ports, queue: QueueRow, groups: Iterable[GroupRow], *, held: bool = False
) -> dict[str, int]:
    """Remove the messages that were pushed before now and wait for these groups, including delayed
    ones; return how many, by group.

    held: also those that poppers hold; these lose their claims. Raises BackendTimeoutError if some
    held messages stay because others keep changing their claims; the rest is removed. Cost: for
    each group a read of its cursors; one synced transaction per pipe, however many messages wait,
    and one for each claim that was returned, scheduled or held.
    """
    return _each(ports, queue, groups, held=held, write=True)


def _each(
    ports: Ports, queue: QueueRow, groups: Iterable[GroupRow], *, held: bool, write: bool
) -> dict[str, int]:
    groups, pipes = list(groups), ports.catalog.pipes.live(queue.id)
    # Before the ends are read: on networked stores a known end may lag behind the claims.
    claimed: dict[tuple[str, str], int] = {}
    for group in groups:
        mine = [pipe.id for pipe in pipes if pipe.is_for(group.id)]
        for cursor in ports.catalog.claims.cursors(group.id, mine) if mine else ():
            claimed[group.id, cursor.pipe_id] = cursor.chain.seq
    ends: list[tuple[PipeRow, Place]] = []
    for pipe in pipes:
        try:
            ends.append((pipe, end_of(ports.catalog, ports.store, pipe)))
        except (ExtentMissingError, CorruptionError) as exc:
            logger.warning("purging: skipped pipe %s: %s", pipe.id, exc)
    counts: dict[str, int] = {}
    for group in groups:
        exclusive = queue.policy.strict or group.policy.exclusive
        act = _purge_pipe if write else _count_pipe
        counts[group.name] = sum(
            act(
                ports,
                _Target(
                    group.id, pipe.id, end, claimed.get((group.id, pipe.id), 0), held, exclusive
                ),
            )
            for pipe, end in ends
            if pipe.is_for(group.id)
        )
    return counts


def _found(ports: Ports, target: _Target, cursor: Cursor) -> list[tuple[Unfinished, RangeSet]]:
    """What to remove from a pipe now."""
    rows = ports.catalog.claims.rows(target.group_id, target.pipe_id)
    now_ms = ports.catalog.now_ms()
    parts = waiting(cursor, rows, target.end.seq, now_ms, held=target.held)
    return [(part, seqs) for part in parts if (seqs := target.seqs_of(part))]


def _count_pipe(ports: Ports, target: _Target) -> int:
    cursor = ports.catalog.claims.cursor(target.group_id, target.pipe_id)
    if cursor is None:
        return 0
    return sum(len(seqs) for _, seqs in _found(ports, target, cursor))


def _purge_pipe(ports: Ports, target: _Target) -> int:
    """Remove the messages that wait in one pipe; return how many."""
    catalog = ports.catalog
    count = left = 0
    for _ in attempts(ports.clock):
        cursor = catalog.claims.cursor(target.group_id, target.pipe_id)
        if cursor is None:
            return count
        found = _found(ports, target, cursor)
        if target.held and target.exclusive and any(_is_held(part) for part, _ in found):
            fenced = catalog.claims.fence(cursor, ports.ids.version())
            if fenced is None:
                left = len(found)
                continue  # its lock has a new holder
            cursor = fenced
        removed = 0
        # Front first: later removals merge with it, and the ack offset moves once.
        for part, seqs in found:
            removed += len(seqs) if _remove(ports, target, cursor, part, seqs) else 0
        count += removed
        left = sum(len(seqs) for _, seqs in found) - removed
        if not left:
            return count
        # Some were claimed or finished meanwhile: look again.
    if target.held and left:
        hint = "try again: the messages removed so far stay removed"
        raise contended(f"the claims of pipe {target.pipe_id}", hint=hint)
    return count


def _is_held(part: Unfinished) -> bool:
    """Whether messages have a holder, even past its deadline: it may still settle them."""
    return part.row is not None and part.row.state is ClaimState.HELD


def _remove(
    ports: Ports, target: _Target, cursor: Cursor, part: Unfinished, seqs: RangeSet
) -> bool:
    """Remove messages of a part; False if it has changed since it was read."""
    row = part.row
    if row is None:
        return skip(ports, cursor, target.end, Reason.PURGED, synced=True) is not None
    if not _is_held(part):
        return cut_out(ports, row, seqs, Reason.PURGED)
    facts = removals(row, seqs, Reason.PURGED, ports.catalog.now_ms())
    rows = claims.taken_from(row, seqs.ranges[-1][1], ports.ids.version)
    return ports.catalog.claims.replace(row, rows, removed=facts)
