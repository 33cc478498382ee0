"""Dead poppers: frees at once what a popper has claimed or locked, once it is known to be dead.

Only two processes can know that: the parent of the popper's process, which has seen it end, and a
process that got a lock which is only freed when the popper's process ends. A popper's process has
one client, so all locks of that client are freed.
"""

from __future__ import annotations

from cassq.catalog.port import limit_names, pipe_lock
from cassq.consumer.group_health import GroupHealth, freed
from cassq.consumer.keyed.take_over import lane_locks
from cassq.lifecycle.ports import Ports
from cassq.model import claims
from cassq.model.limits import kept, permits_as_text, permits_of
from cassq.model.queues import rules_of
from cassq.model.rows import ClaimState, GroupRow, QueueRow

LISTED_MAX = 4096
# More deliveries than any message has, so that no free rows are listed as spent.
_DELIVERIES = 2**31 - 1
_SLACK_MS = 1000  # the clocks of clients of a cluster differ a little


def free_dead_popper(ports: Ports, queue: QueueRow, group: GroupRow, popper: str) -> int:
    """Free what a dead popper had: its messages are delivered again as if its claims had expired,
    and the delivery counts. Returns the number of claims or locks freed.

    Claims keep a deadline that lies beyond the claim timeout, such as one set by a receipt or by
    `Message.extend`. In an exclusive or keyed group the next holder of the lock takes the claims
    over. Cost: a range read of open claims, and one synced transaction for each; for locks, a read
    for each live pipe of the queue, or for each lane, and one transaction for each lock; for
    permits, a read, and a write if the popper has any.
    """
    _free_permits(ports, group, popper)
    if group.policy.keyed:
        return _drop_locks(ports, popper, lane_locks(group.id, queue.policy.key_lanes))
    if group.policy.exclusive or queue.policy.strict:
        pipes = ports.catalog.pipes.live(queue.id)
        return _drop_locks(ports, popper, [pipe_lock(group.id, pipe.id) for pipe in pipes])
    return _free_claims(ports, queue, group, popper)


def _free_permits(ports: Ports, group: GroupRow, popper: str) -> None:
    """Give back the permits of a dead popper. If others change the permits at this moment, leaves
    them: they lapse by themselves."""
    leases, (_, name) = ports.catalog.leases, limit_names(group.id)
    text = leases.shared(name)
    permits = permits_of(text, ports.catalog.now_ms())
    if popper in permits:
        leases.swap(name, text, permits_as_text(kept(permits, popper, 0, 0), f"{popper}-"))


def _free_claims(ports: Ports, queue: QueueRow, group: GroupRow, popper: str) -> int:
    rules = rules_of(queue.policy, group.policy)
    catalog, now_ms = ports.catalog, ports.catalog.now_ms()
    health = GroupHealth(ports, group.id, lambda: rules)
    until_ms = now_ms + rules.claim_timeout_ms + _SLACK_MS
    count = 0
    for row in catalog.claims.overdue(group.id, until_ms, _DELIVERIES, LISTED_MAX):
        is_theirs = row.state is ClaimState.HELD and claims.consumer_of(row.holder) == popper
        if not is_theirs or claims.is_dated(row):
            continue
        count += catalog.claims.replace(row, freed(row, now_ms, rules, health, ports.ids.version))
    return count


def _drop_locks(ports: Ports, popper: str, names: list[str]) -> int:
    """Drop those of these locks that are leases of the popper's client. Locks of a lock server end
    with the client's session."""
    client = popper.partition(".")[0]  # see `cassq.base.ids`: owners of leases begin with it, too
    count = 0
    for name in names:
        owner = ports.catalog.leases.owner(name)
        if owner is not None and owner.partition(".")[0] == client:
            ports.catalog.leases.drop(name, owner)
            count += 1
    return count
