"""The disband pass: removes groups that have had no popper for as long as `group_expires` says.

A popper is noted in the catalog when it opens, when it closes and now and then in between. A group
that seems to have none is watched for a while longer, by the watcher's own clock, before it is
removed: so if the machine or the catalog has paused, poppers that are alive have time to be noted
again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cassq.consumer.presence import GONE_MS
from cassq.inspect.expired_groups import removal_of
from cassq.inspect.stats import group_stats
from cassq.lifecycle.ports import Ports
from cassq.model.rows import GroupRow, QueueRow
from cassq.plurals import counted
from cassq.reaper.actions import Action, PlannedPass, Scope

logger: logging.Logger = logging.getLogger("cassq")


class IdleGroup(NamedTuple):
    """A group that, by the catalog, has had no popper for too long."""

    queue: QueueRow
    group: GroupRow


class SeenPoll(NamedTuple):
    """When an idle group last had a popper, and since when the watcher has seen no later one, by
    its own boot clock."""

    polled_ms: int
    since_ms: int


class IdleGroups(NamedTuple):
    """Groups without poppers, and since when each has been watched, by id."""

    groups: Sequence[IdleGroup]
    seen: Mapping[str, SeenPoll]


def plan(snapshot: IdleGroups, now_ms: int) -> list[Action]:
    """Remove groups that stayed without a popper while they were watched.

    now_ms: by the watcher's own boot clock, like the times in `seen`.
    """
    found = []
    for idle in snapshot.groups:
        last = snapshot.seen.get(idle.group.id)
        still = last is not None and last.polled_ms == idle.group.polled_ms
        if still and last is not None and now_ms - last.since_ms >= GONE_MS:
            found.append(Action("disband", idle.group.name, idle.queue.name, row=idle))
    return found


class Disband(PlannedPass[IdleGroups]):
    """Removes groups that have had no popper for too long."""

    name = "disband"

    def __init__(self, ports: Ports) -> None:
        super().__init__(ports)
        self._seen: dict[str, SeenPoll] = {}

    def now_ms(self) -> int:
        return self._ports.clock.boot_ms()

    def idle(self, scope: Scope) -> list[IdleGroup]:
        """The groups that seem to have had no popper for too long. Cost: one query; two reads for
        each group for which no popper was noted in that time."""
        catalog = self._ports.catalog
        now_ms = catalog.now_ms()
        overdue: list[GroupRow] = []
        for group in catalog.queues.expiring(scope.ids):
            limit_ms = group.expires_ms
            if limit_ms is None or max(group.polled_ms, group.created_ms) + limit_ms > now_ms:
                continue
            # A popper that was killed did not note its end, but was recorded as a member.
            if not catalog.records.members(group.id, now_ms - limit_ms):
                overdue.append(group)
        if not overdue:
            return []
        queue_ids = sorted({group.queue_id for group in overdue})
        queues = dict(zip(queue_ids, catalog.queues.by_ids(queue_ids), strict=True))
        found: list[IdleGroup] = []
        for group in overdue:
            queue = queues[group.queue_id]
            if queue is not None and not queue.deleted:
                found.append(IdleGroup(queue, group))
        return found

    def look(self, scope: Scope) -> IdleGroups:
        """Cost: that of `idle`."""
        groups, now_ms = self.idle(scope), self.now_ms()
        for _, group in groups:
            before = self._seen.get(group.id)
            if before is None or before.polled_ms != group.polled_ms:
                self._seen[group.id] = SeenPoll(group.polled_ms, now_ms)
        if scope.ids is None:
            for other in self._seen.keys() - {group.id for _, group in groups}:
                del self._seen[other]
        return IdleGroups(groups, dict(self._seen))

    def plan(self, snapshot: IdleGroups, now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: that of `group_stats`, and one synced catalog transaction."""
        queue, group = action.row
        catalog = self._ports.catalog
        stats = group_stats(self._ports, queue, group)
        removal = removal_of(group, stats, catalog.now_ms())
        if not catalog.queues.expire_group(group, removal):
            return None
        self._seen.pop(group.id, None)
        left = counted(stats.waiting + stats.pending, "message")
        idle = f"no popper for {group.policy.group_expires:g} s"
        logger.warning(
            "group %s of queue %s was removed: %s; %s not committed",
            *(group.name, queue.name, idle, left),
        )
        return f"{idle}; {left} not committed"
