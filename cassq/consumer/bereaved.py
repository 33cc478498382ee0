"""Claims of a popper that is known to be dead: freed at once, not when they expire.

Nobody may say so of a popper but its parent process, which has seen it end.
"""

from __future__ import annotations

from cassq.consumer.group_health import GroupHealth, freed
from cassq.lifecycle.ports import Ports
from cassq.model import claims
from cassq.model.queues import rules_of
from cassq.model.rows import ClaimState, GroupRow, QueueRow

LISTED_MAX = 4096
# More deliveries than any message has: free rows are not listed for theirs.
_DELIVERIES = 2**31 - 1
_SLACK_MS = 1000  # clients of a cluster do not agree on the time exactly


def free_claims_of(ports: Ports, queue: QueueRow, group: GroupRow, popper: str) -> int:
    """Free what a dead popper has claimed, as if it had expired: the delivery counts, and the
    messages come again by the group's schedule. Returns how many messages that are.

    Claims whose deadline lies beyond the claim timeout, as a receipt or `Message.extend` makes
    them, keep it. In an exclusive or keyed group the lock of the dead popper decides, which its
    successor takes over.
    Cost: a range of open claims, and one synced transaction for each claim.
    """
    rules = rules_of(queue.policy, group.policy)
    if group.policy.keyed or group.policy.exclusive or queue.policy.strict:
        return 0
    catalog, now_ms = ports.catalog, ports.catalog.now_ms()
    health = GroupHealth(ports, group.id, lambda: rules)
    until_ms = now_ms + rules.claim_timeout_ms + _SLACK_MS
    count = 0
    for row in catalog.claims.overdue(group.id, until_ms, _DELIVERIES, LISTED_MAX):
        is_theirs = row.state is ClaimState.HELD and claims.consumer_of(row.holder) == popper
        if not is_theirs or row.holder.endswith(claims.DATED):
            continue
        pieces = freed(row, now_ms, rules, health, ports.ids.version)
        if catalog.claims.replace(row, pieces):
            count += len(row.left)
    return count
