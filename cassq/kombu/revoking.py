"""Revoking: a task that waits for its eta is cancelled in its queue.

Workers keep the ids of revoked tasks in memory, and forget them when they restart. So when a task
with an eta is pushed, its place is noted, stored as results are. A revocation passes here on its
way to the workers, and cancels the task in its queue too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from cassq.errors import CassqError
from cassq.kombu.brokers import TransportBroker
from cassq.message.message_ids import MessageId

logger: logging.Logger = logging.getLogger("cassq")

_MARGIN_SECONDS = 60.0


def note_waiting(
    broker: TransportBroker, message: Mapping[str, Any], queue: str, message_id: str, due: datetime
) -> None:
    """Note in which queue, and as which message, a task waits. Cost: an unsynced write."""
    task_id = message["headers"].get("id")
    if task_id:
        seconds = (due - broker.now()).total_seconds() + _MARGIN_SECONDS
        place = json.dumps([queue, message_id]).encode()
        try:
            broker.client.ports.catalog.results.put(_key(task_id), place, max(1.0, seconds))
        except CassqError as exc:  # the task is in its queue: only its revocation needs a worker
            logger.warning("where task %s waits was not noted: %s", task_id, exc)


def note_published(
    broker: TransportBroker,
    message: Mapping[str, Any],
    queue: str,
    due: datetime,
    future: Future[MessageId],
) -> None:
    """`note_waiting` for a message whose publishing has ended, unless that failed."""
    if future.exception() is None:
        note_waiting(broker, message, queue, future.result(), due)


def cancel_revoked(broker: TransportBroker, message: Mapping[str, Any]) -> None:
    """Cancel those tasks that a message to workers revokes and that are not due yet. If this fails,
    it is left to the workers."""
    ids = _revoked(message)
    if not ids:
        return
    try:
        found = broker.client.ports.catalog.results.find([_key(each) for each in ids])
        for raw in found.values():
            queue, message_id = json.loads(raw)
            of_task = broker.find(queue)
            if of_task is not None:
                of_task.cancel(message_id)
    except CassqError as exc:
        logger.warning("revoked tasks were not cancelled in their queue: %s", exc)


def _revoked(message: Mapping[str, Any]) -> list[str]:
    """The ids of the tasks that a command revokes; none for other commands."""
    if message.get("content-type") != "application/json":
        return []
    try:
        command = json.loads(message["body"])
    except ValueError:
        return []
    if not isinstance(command, dict) or command.get("method") != "revoke":
        return []
    if command.get("destination"):
        return []  # for some workers only
    ids = (command.get("arguments") or {}).get("task_id") or []
    return [ids] if isinstance(ids, str) else list(ids)


def _key(task_id: str) -> str:
    return f"kombu-eta:{task_id}"
