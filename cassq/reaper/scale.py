"""The scale pass: decides how many pipes of each queue should be open at once.

Pushers follow that number: they open their share of additional pipes, or seal pipes without
replacing them. See `cassq.model.scaling` for how it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cassq.consumer.presence import GONE_MS
from cassq.lifecycle.sealing import seen_end
from cassq.model.rows import GroupRow, Member, PipeRow, QueueRow
from cassq.model.scaling import QueueLoad, desired_pipes, next_desired
from cassq.reaper.actions import Action, PlannedPass, Scope

LOOKED_MAX = 64


class PresentPoppers(NamedTuple):
    """The poppers that a group has now. waits: whether messages are known to wait for them; only
    determined for exclusive groups with idle poppers."""

    exclusive: bool
    members: Sequence[Member]
    waits: bool = False


class Busy(NamedTuple):
    """A queue that is, or was, being pushed to."""

    queue: QueueRow
    pipes: Sequence[PipeRow]  # unsealed
    groups: Sequence[PresentPoppers]


def load_of(busy: Busy) -> QueueLoad:
    """The load of a queue. Pure."""
    alone = [group for group in busy.groups if group.exclusive]
    holding = [sum(not member.waiting for member in group.members) for group in alone]
    idle = [
        sum(member.waiting for member in group.members) if group.waits else 0 for group in alone
    ]
    most = max(range(len(alone)), key=lambda n: holding[n] + idle[n], default=None)
    return QueueLoad(
        # Pushers of a priority always use one open pipe each, so these do not count.
        rate=sum(pipe.rate for pipe in busy.pipes if not pipe.priority),
        poppers=max((len(group.members) for group in busy.groups), default=0),
        busy=0 if most is None else holding[most],
        idle=0 if most is None else idle[most],
    )


def plan(snapshot: Sequence[Busy], now_ms: int) -> list[Action]:
    """Change the number of open pipes where the load requires it. now_ms: catalog time."""
    found: list[Action] = []
    for busy in snapshot:
        queue = busy.queue
        desired = next_desired(queue, desired_pipes(load_of(busy), queue.policy), now_ms)
        if desired is not None:
            found.append(Action("scale", f"{desired} open pipes", queue.name, row=(queue, desired)))
    return found


class Scale(PlannedPass[Sequence[Busy]]):
    """Sets how many pipes should be open."""

    name = "scale"

    def look(self, scope: Scope) -> list[Busy]:
        """Cost: one query; for each queue that is pushed to, or should have more than one open
        pipe, reads of its poppers; if poppers of an exclusive group are idle, looks into pipes
        until one with unclaimed messages is found."""
        catalog = self._ports.catalog
        unsealed = catalog.queues.busy(scope.ids)
        found: list[Busy] = []
        for queue in catalog.queues.by_ids(list(unsealed)):
            if queue is None or queue.deleted or queue.policy.strict:
                continue
            pipes = [p for p in unsealed[queue.id] if p.timer_ms is None and not p.group_id]
            groups = [self._present_poppers(group) for group in catalog.queues.groups(queue.id)]
            found.append(Busy(queue, pipes, groups))
        return found

    def _present_poppers(self, group: GroupRow) -> PresentPoppers:
        catalog = self._ports.catalog
        members = catalog.records.members(group.id, catalog.now_ms() - GONE_MS)
        exclusive = group.policy.exclusive
        idle = exclusive and any(member.waiting for member in members)
        return PresentPoppers(exclusive, members, idle and self._waits(group))

    def _waits(self, group: GroupRow) -> bool:
        """Whether some pipe has something that the group has not claimed."""
        catalog = self._ports.catalog
        chains = {cursor.pipe_id: cursor.chain.seq for cursor in catalog.claims.cursors(group.id)}
        return any(
            seen_end(self._ports.store, pipe) > chains.get(pipe.id, 0)
            for pipe in catalog.pipes.unclaimed(group, LOOKED_MAX, unacked=True)
        )

    def plan(self, snapshot: Sequence[Busy], now_ms: int) -> list[Action]:
        return plan(snapshot, now_ms)

    def apply(self, action: Action) -> str | None:
        """Cost: one unsynced write."""
        queue, desired = action.row
        if not self._ports.catalog.queues.set_desired_pipes(
            queue, desired, self._ports.catalog.now_ms()
        ):
            return None
        return f"{queue.desired_pipes} before" if desired != queue.desired_pipes else "still"

    def apply_all(self, actions: Sequence[Action]) -> list[Action]:
        """Do the actions; leave out those that changed no number."""
        return [action for action in super().apply_all(actions) if action.detail != "still"]
