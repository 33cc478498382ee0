"""The expire pass: removes messages that are too old or too many.

Poppers and pushers also do this as they work; the pass does it for queues that have neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.lifecycle.expiry import expire, plan_expiry
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.model.rows import PipeRow, QueueRow
from cassq.producer.dedup import forget
from cassq.producer.quota import trim
from cassq.reaper.actions import VOID, Action, PlannedPass, Scope

MESSAGES, OVERFLOW, DEDUP_IDS = "old messages", "messages past the limit", "old dedup ids"


class Limited(NamedTuple):
    """A queue with limits; if its messages can expire, also its live pipes and the ids of its
    groups."""

    queue: QueueRow
    pipes: Sequence[PipeRow] = ()
    group_ids: Sequence[str] = ()


def plan(snapshot: Sequence[Limited], now_ms: int) -> list[Action]:
    """Decide what each queue's policy requires. now_ms: catalog time."""
    found: list[Action] = []
    for limited in snapshot:
        queue, policy = limited.queue, limited.queue.policy
        limit_ms = policy.age_limit_ms
        old = limit_ms is not None and plan_expiry(
            limited.pipes, limited.group_ids, now_ms - limit_ms
        )
        wanted = {
            MESSAGES: bool(old),
            OVERFLOW: policy.max_length is not None and policy.overflow == "drop-oldest",
            DEDUP_IDS: policy.dedup_window > 0,
        }
        subjects = [subject for subject, is_wanted in wanted.items() if is_wanted]
        found += [Action("expire", subject, queue.name, row=queue) for subject in subjects]
    return found


class Expire(PlannedPass[Sequence[Limited]]):
    """Removes old messages, the oldest messages past the limit, and old dedup ids."""

    name = "expire"

    def __init__(self, ports: Ports, dead_letter: DeadLetterFn) -> None:
        super().__init__(ports)
        self._dead_letter = dead_letter

    def look(self, scope: Scope) -> list[Limited]:
        """Cost: one query of a partial index; for queues whose messages expire, their pipes."""
        catalog = self._ports.catalog
        found: list[Limited] = []
        for queue in catalog.queues.limited(scope.ids):
            if queue.policy.age_limit_ms is None:
                found.append(Limited(queue))
            else:
                group_ids = [group.id for group in catalog.queues.groups(queue.id)]
                found.append(Limited(queue, catalog.pipes.live(queue.id), group_ids))
        return found

    def plan(self, snapshot: Sequence[Limited], now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: the same as `expiry.expire`, `quota.trim` or `dedup.forget`."""
        queue: QueueRow = action.row
        if action.subject == MESSAGES:
            count = expire(self._ports, queue)
        elif action.subject == OVERFLOW:
            count = trim(self._ports, queue, self._dead_letter)
        else:
            count = forget(self._ports, queue)
        return f"{count} removed" if count else None

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Do the actions; leave out those that found nothing to do."""
        return [action for action in super().apply_all(actions) if action.outcome != VOID]
