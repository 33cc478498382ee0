"""Releasing a key of a keyed group that dead letters hold, or a failed message, which then becomes
a dead letter at once.
"""

from __future__ import annotations

import json

from cassq.base.clock import attempts, contended
from cassq.errors import OwnershipError, UsageError
from cassq.inspect.held_keys import FAILED, IN_HAND, HeldKey, held_keys
from cassq.lifecycle.dead_keys import released
from cassq.lifecycle.ports import Ports
from cassq.lifecycle.retries import DeadLetterFn
from cassq.message.ranges import EMPTY, RangeSet
from cassq.model import claims
from cassq.model.rows import Claim, ClaimState, GroupRow, QueueRow

KEYS_MAX = 1 << 30


def release_key(
    ports: Ports, queue: QueueRow, group: GroupRow, key: bytes, dead_letter: DeadLetterFn | None
) -> int:
    """Release a key of a group; returns how many messages held it. Durable on return.

    dead_letter: makes a dead letter of the failed message that holds the key, if one does; None
    leaves that message to its retries. Cost: reads the group's dead letters, if they hold keys, and
    with `dead_letter` the claimed messages.

    Raises UsageError for a group in which nothing holds keys. With `dead_letter`, raises
    OwnershipError if a popper has the message that holds the key.
    """
    if dead_letter is None:
        return released(ports, queue.name, group, key)
    if group.policy.order != "key":
        raise UsageError(
            f"the messages of group {group.name} hold no keys", hint="this is for order='key'"
        )
    found = int(_given_up(ports, queue, group, key, dead_letter))
    if group.policy.on_dead == "hold":
        found = max(found, released(ports, queue.name, group, key))
    return found


def _given_up(
    ports: Ports, queue: QueueRow, group: GroupRow, key: bytes, dead_letter: DeadLetterFn
) -> bool:
    """Make a dead letter of the failed message that holds a key; False if there is none."""
    for _ in attempts(ports.clock):
        head = _head(ports, queue, group, key)
        if head is None:
            return False
        row = _alone(ports, group, head)
        if row is not None and dead_letter(queue, group, row):
            return True
    raise contended(f"the claims of group {group.name!r}")


def _head(ports: Ports, queue: QueueRow, group: GroupRow, key: bytes) -> HeldKey | None:
    """The failed message that holds a key. Raises OwnershipError if a popper has it."""
    for held in held_keys(ports, queue.name, group, KEYS_MAX):
        if held.key == key and held.state == IN_HAND:
            raise OwnershipError(
                f"popper {held.holder} has the message {held.message_id}, which holds the key",
                hint="release the key after that message failed, or end its consumer",
            )
        if held.key == key and held.state == FAILED:
            return held
    return None


def _alone(ports: Ports, group: GroupRow, head: HeldKey) -> Claim | None:
    """Write a free row for this message alone, marked to become a dead letter; returns it, or None
    if the message's row has changed."""
    pipe_id, seq = head.place
    rows = ports.catalog.claims.rows(group.id, pipe_id, range(seq, seq + 1))
    if not rows or rows[0].state is not ClaimState.FREE or seq not in rows[0].left:
        return None
    row = rows[0]
    now_ms = ports.catalog.now_ms()
    error = json.loads(row.failure).get("error", "") if row.failure else ""
    doomed = claims.failure_record("rejected", error, "", now_ms, doomed=True)
    failure = claims.failed_again(row.failure, doomed)
    one = claims.ReturnedSeqs(RangeSet.run(seq, seq + 1), 0, row.deliveries, failure)
    new = claims.resolved(row, EMPTY, [one], ports.ids.version)
    if not ports.catalog.claims.replace(row, new):
        return None
    return next(each for each in new if each.state is ClaimState.FREE and seq in each.left)
