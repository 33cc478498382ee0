"""Whether the groups of a queue are done with a message, in any way."""

from __future__ import annotations

from cassq.lifecycle.ports import Ports
from cassq.lifecycle.sealing import live_pipe
from cassq.model.ledger import done_of


def unsettled_groups(ports: Ports, pipe_id: str, seq: int) -> list[str]:
    """The names of the groups that have not settled a message: it was not committed, and has not
    become a dead letter, been purged or expired. Groups that start after the message are left out.

    A dead letter counts as settled in its first place even after it was merged back. Cost: a read
    of the pipe's row; for each group two more, of its cursor and the row that covers the message.
    """
    pipe = live_pipe(ports.catalog, pipe_id)
    if pipe is None:
        return []  # retired: every group is done with it
    names: list[str] = []
    for group in ports.catalog.queues.groups(pipe.queue_id):
        if not pipe.is_for(group.id):
            continue
        cursor = ports.catalog.claims.find_cursor(group.id, pipe_id)
        rows = ports.catalog.claims.rows(group.id, pipe_id, range(seq, seq + 1)) if cursor else []
        if cursor is None or seq not in done_of(cursor, rows):
            names.append(group.name)
    return names
