"""Scaling: how many pipes of a queue are to be open side by side, and each pusher's share of them.

One pipe serves any number of poppers of a shared group, but one at a time of an *exclusive* group:
so what is wished for is as many pipes as throughput fills, or as poppers of an exclusive group
have something to do. More than there are poppers would only cost order, so one pusher and one
popper keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cassq.model.queues import QueuePolicy
from cassq.model.rows import PipeRow, QueueRow

# What one pipe is thought to take; a single one is measured to take several times as much.
PIPE_MESSAGES_PER_SECOND = 50_000
# What is not needed for so many leases is given up.
LEASES_KEPT = 2


class QueueLoad(NamedTuple):
    """What a queue has to bear.

    rate: messages pushed a second. poppers: those alive, of the group that has most. busy: those of
    the busiest exclusive group that hold messages. idle: of the same group, those that found
    nothing to claim although messages wait.
    """

    rate: float = 0.0
    poppers: int = 0
    busy: int = 0
    idle: int = 0


def wished_pipes(load: QueueLoad, policy: QueuePolicy) -> int:
    """How many pipes the load asks for, within the policy's limits. Pure."""
    if policy.strict:
        return 1
    by_rate = -(-load.rate // PIPE_MESSAGES_PER_SECOND)
    asked = max(int(by_rate), load.busy + load.idle)
    most = min(policy.max_open_pipes, policy.max_pop_width, max(1, load.poppers))
    return max(policy.min_open_pipes, min(asked, most))


def next_wish(queue: QueueRow, asked: int, now_ms: int) -> int | None:
    """What is to be written when a load asks for so many pipes: more at once, fewer only when
    they were not needed for `LEASES_KEPT` leases; None: nothing.

    now_ms: catalog time.
    """
    kept_ms = round(LEASES_KEPT * queue.policy.lease * 1000)
    age_ms = now_ms - queue.wished_ms
    least = queue.policy.min_open_pipes
    present = max(queue.wished_pipes, least)
    if asked > present:
        return asked
    if asked == present:
        # It is still needed: say so before it could be given up.
        return asked if asked > least and age_ms >= kept_ms // 4 else None
    return asked if age_ms >= kept_ms else None


def share_of(queue: QueueRow, pipes: Iterable[PipeRow], owner: str) -> int:
    """How many of a queue's wished pipes one of its pushers is to have open; at least one.

    pipes: those unsealed, by which the pushers are known.
    """
    policy = queue.policy
    if policy.strict:
        return 1
    wish = max(policy.min_open_pipes, min(queue.wished_pipes, policy.max_open_pipes))
    at_once = (pipe for pipe in pipes if pipe.timer_ms is None and not pipe.group_id)
    owners = sorted({pipe.owner for pipe in at_once} | {owner})
    return max(1, wish // len(owners) + (owners.index(owner) < wish % len(owners)))
