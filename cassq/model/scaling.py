"""Scaling: how many pipes of a queue should be open side by side, and each pusher's share of them.

One pipe serves any number of poppers of a shared group, but only one at a time of an *exclusive*
group: so a queue should have as many pipes as its throughput fills, or as poppers of an exclusive
group can use. More pipes than poppers would only weaken the order of messages: unless
`min_open_pipes` is greater, one pusher and one popper have one pipe, and so keep the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from cassq.model.queues import QueuePolicy
from cassq.model.rows import PipeRow, QueueRow

# The assumed throughput of a pipe; a single one measures several times as much.
PIPE_MESSAGES_PER_SECOND = 50_000
# A pipe that is not needed for this many leases is given up.
LEASES_KEPT = 2


class QueueLoad(NamedTuple):
    """The load on a queue.

    rate: messages pushed per second. poppers: live poppers of the group with the most. busy:
    poppers of the busiest exclusive group that hold messages. idle: poppers of the same group that
    found nothing to claim although messages wait.
    """

    rate: float = 0.0
    poppers: int = 0
    busy: int = 0
    idle: int = 0


def desired_pipes(load: QueueLoad, policy: QueuePolicy) -> int:
    """How many pipes the load requires, within the policy's limits. Pure."""
    if policy.strict:
        return 1
    by_rate = -(-load.rate // PIPE_MESSAGES_PER_SECOND)
    asked = max(int(by_rate), load.busy + load.idle)
    most = min(policy.max_open_pipes, policy.max_pop_width, max(1, load.poppers))
    return max(policy.min_open_pipes, min(asked, most))


def next_desired(queue: QueueRow, asked: int, now_ms: int) -> int | None:
    """The number to write if a load requires `asked` pipes: more at once, fewer only once they were
    not needed for `LEASES_KEPT` leases; None: write nothing.

    now_ms: catalog time.
    """
    kept_ms = round(LEASES_KEPT * queue.policy.lease * 1000)
    age_ms = now_ms - queue.desired_ms
    least = queue.policy.min_open_pipes
    present = max(queue.desired_pipes, least)
    if asked > present:
        return asked
    if asked == present:
        # Still needed: refresh it before it could be given up.
        return asked if asked > least and age_ms >= kept_ms // 4 else None
    return asked if age_ms >= kept_ms else None


def share_of(queue: QueueRow, pipes: Iterable[PipeRow], owner: str) -> int:
    """How many of a queue's desired pipes one of its pushers should have open; at least one.

    pipes: the unsealed ones; their owners are the pushers.
    """
    policy = queue.policy
    if policy.strict:
        return 1
    desired = max(policy.min_open_pipes, min(queue.desired_pipes, policy.max_open_pipes))
    at_once = (
        pipe for pipe in pipes if pipe.timer_ms is None and not pipe.group_id and not pipe.priority
    )
    owners = sorted({pusher_of(pipe.owner) for pipe in at_once} | {owner})
    return max(1, desired // len(owners) + (owners.index(owner) < desired % len(owners)))


_NUMBER = "/"  # in an owner's name: which of a pusher's pipes, side by side


def owner_of(pusher: str, number: int) -> str:
    """The owner of the pipes that a pusher fills one after another. number: which of the pipes that
    the pusher has open side by side. Messages with keys go to the pipes of number 0, or, in a queue
    with `key_lanes`, to those of their lane."""
    return f"{pusher}{_NUMBER}{number}" if number else pusher


def pusher_of(owner: str) -> str:
    """The pusher that owns a pipe."""
    return owner.partition(_NUMBER)[0]


def key_lane_of_pipe(owner: str, key_lanes: int) -> int:
    """The key lane of an owner's pipes. key_lanes: how many the queue has."""
    number = owner.partition(_NUMBER)[2]
    return int(number) % key_lanes if number else 0


def key_lane_of(key: bytes, key_lanes: int) -> int:
    """The key lane of a key: the same in every process, for ever. key_lanes: how many the queue
    has."""
    return xxh3_64_intdigest(key) % key_lanes


def by_key_lane(
    keys: Sequence[bytes | None] | None, count: int, key_lanes: int, turn: int
) -> dict[int, Sequence[int]]:
    """The indexes of `count` messages by their key lane. key_lanes: how many the queue has. turn:
    modulo `key_lanes`, the lane that gets the messages without a key."""
    unkeyed = turn % key_lanes
    if key_lanes == 1 or keys is None:
        return {unkeyed: range(count)}
    found: list[list[int]] = [[] for _ in range(key_lanes)]
    lanes = [unkeyed if key is None else xxh3_64_intdigest(key) % key_lanes for key in keys]
    for at, lane in enumerate(lanes):
        found[lane].append(at)
    return {lane: which for lane, which in enumerate(found) if which}
