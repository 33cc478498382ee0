"""Opening receivers, with which a gateway receives messages for its clients."""

from __future__ import annotations

from cassq.client.queue import Queue
from cassq.client.runtime import Runtime
from cassq.consumer.receiving import MAINTENANCE_SECONDS, Receiver
from cassq.errors import GroupNotFoundError


def open_receiver(runtime: Runtime, queue: Queue, group: str) -> Receiver:
    """Open a receiver for a group of a queue. Cost: one read. Raises GroupNotFoundError."""
    queue_row, groups = queue.watched.both()
    row = next((each for each in groups if each.name == group), None)
    if row is None:
        raise GroupNotFoundError(f"queue {queue.name!r} has no group {group!r}")
    watched = queue.watched.group(row)
    queue.watched.row.put(queue_row)
    receiver = Receiver(
        runtime.ports,
        queue.watched.row,
        watched,
        dead_letter=runtime.dead_letter,
        doorbell=runtime.doorbell(queue_row.id),
    )
    runtime.add_maintenance(receiver.maintain, MAINTENANCE_SECONDS)
    runtime.attend(watched, receiver.tally)
    runtime.opened(receiver, queue.watched)
    return receiver
